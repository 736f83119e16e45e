"""Models of transformers become fozo's ViT with equal logits, or are refused with a reason."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

import fozo
from fozo.engines.hooked import HookedEngine
from tests.models.helpers import assert_equal_logits, images, shake

HF_SIZES: dict[str, Any] = {
    "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 32,
    "patch_size": 8, "num_labels": 6,
}  # fmt: skip


def hf_model(kind: str, **changes: Any) -> nn.Module:
    import transformers

    sizes = {**HF_SIZES, **changes}
    if kind == "Siglip":
        sizes = {"num_labels": sizes.pop("num_labels"), "vision_config": sizes, "text_config": {"vocab_size": 50_000}}
    family, _, head = kind.partition(" ")
    config = getattr(transformers, f"{family}Config")(**sizes)
    return shake(getattr(transformers, f"{family}ForImageClassification{head}")(config))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("ViT", {}),
        ("ViT", {"qkv_bias": False, "hidden_act": "gelu_pytorch_tanh"}),
        ("ViT", {"num_channels": 1}),
        ("DeiT", {}),
        ("DeiT WithTeacher", {}),
        ("Dinov2", {}),
        ("Dinov2", {"layerscale_value": 0.5, "mlp_ratio": 2}),
        ("Dinov2WithRegisters", {}),
        ("Siglip", {}),
    ],
)
def test_transformers_models(kind: str, changes: dict[str, Any]) -> None:
    model = hf_model(kind, **changes)
    assert_equal_logits(model, fozo.load_engine(model), images(3, changes.get("num_channels", 3)))


def test_transformers_models_with_the_names_of_version_4(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older releases named the same tensors differently."""
    model = hf_model("ViT")
    old = {
        r"vit\.layers\.(\d+)": r"vit.encoder.layer.\1",
        r"attention\.q_proj": "attention.attention.query",
        r"attention\.k_proj": "attention.attention.key",
        r"attention\.v_proj": "attention.attention.value",
        r"attention\.o_proj": "attention.output.dense",
        r"mlp\.fc1": "intermediate.dense",
        r"mlp\.fc2": "output.dense",
    }
    state = model.state_dict()
    for new, earlier in old.items():
        state = {re.sub(new, earlier, name): tensor for name, tensor in state.items()}
    assert "vit.encoder.layer.0.attention.attention.query.weight" in state
    monkeypatch.setattr(model, "state_dict", lambda: state)
    assert_equal_logits(model, fozo.load_engine(model), images())


def test_dinov2_at_another_size_equals_transformers_own_interpolation() -> None:
    model = hf_model("Dinov2")
    assert_equal_logits(model, fozo.load_engine(model, image_size=48), images(2, 3, 48, 48))


@pytest.mark.parametrize("make", [lambda: hf_model("Dinov2", use_swiglu_ffn=True), lambda: hf_model("Beit")])
def test_other_transformers_models_run_by_hooks(make: Callable[[], nn.Module]) -> None:
    model = make()
    engine = fozo.load_engine(model)
    assert isinstance(engine, HookedEngine)
    assert_equal_logits(model, engine, images())


def test_a_transformers_model_without_a_head_is_a_black_box() -> None:
    body = hf_model("ViT").get_submodule("vit")
    assert "it does not return logits" in fozo.describe_model(body).sentence
