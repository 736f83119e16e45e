"""Models of timm become fozo's ViT with equal logits, or are refused with a reason."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fozo
from fozo.engines.hooked import HookedEngine
from fozo.types import NO_KNOBS, Knobs
from tests.helpers import TINY
from tests.models.helpers import SIZES, assert_equal_logits, images, shake, timm_vit
from tests.refusals import refuses

TIMM = {
    "plain": {},
    "no_qkv_bias": {"qkv_bias": False},
    "layer_scale": {"init_values": 0.1},
    "pre_norm": {"pre_norm": True},
    "registers": {"reg_tokens": 4},
    "registers_without_positions": {"reg_tokens": 4, "no_embed_class": True},
    "cls_without_position": {"no_embed_class": True},
    "gray": {"in_chans": 1},
    "oblong": {"img_size": (32, 64), "patch_size": (8, 16)},
    "deep_and_wide": {"depth": 5, "embed_dim": 96, "mlp_ratio": 2.0},
    "tanh": {"act_layer": "gelu_tanh"},
    "quick": {"act_layer": "quick_gelu"},
    "average_of_normed": {"global_pool": "avg", "fc_norm": False},
    "average_without_cls": {"global_pool": "avg", "class_token": False, "no_embed_class": True},
    "average_with_registers": {"global_pool": "avg", "class_token": False, "reg_tokens": 4},
    "norm_after_cls": {"fc_norm": True},
    "attention": {"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"},
    "attention_with_cls": {"global_pool": "map"},
}


@pytest.mark.parametrize("case", TIMM)
def test_timm_models(case: str) -> None:
    model = timm_vit(**TIMM[case])  # type: ignore[arg-type]
    patch_embed: Any = model.patch_embed
    batch = images(3, TIMM[case].get("in_chans", 3), *patch_embed.img_size)  # type: ignore[attr-defined]
    assert_equal_logits(model, fozo.load_engine(model), batch)


def test_a_timm_model_brings_its_name_and_normalisation() -> None:
    import timm

    engine = fozo.load_engine(timm.create_model("vit_tiny_patch16_224"))
    assert engine.spec.name == TINY
    assert engine.spec.mean == (0.5, 0.5, 0.5) and engine.spec.image_size == (224, 224)
    assert engine.spec.label(207) == "golden retriever" and engine.spec.label(0) == "tench, Tinca tinca"
    engine = fozo.load_engine(timm.create_model("deit_tiny_patch16_224"))
    assert engine.spec.mean == pytest.approx((0.485, 0.456, 0.406))


@pytest.mark.parametrize("size", [16, 48, (24, 40)])
def test_positions_are_resampled_as_timm_does(size: int | tuple[int, int]) -> None:
    model = timm_vit()
    engine = fozo.load_engine(model, image_size=size)
    height, width = (size, size) if isinstance(size, int) else size
    model.set_input_size((height, width))  # type: ignore[operator]
    assert_equal_logits(model, engine, images(2, 3, height, width))


@pytest.mark.parametrize(
    "changes",
    [
        {"global_pool": "max"},
        {"global_pool": "avg", "pool_include_prefix": True},
        {"qk_norm": True},
        {"act_layer": "silu"},
        {"pos_embed": "none"},
        {"scale_mlp_norm": True},
    ],
)
def test_timm_models_that_are_no_plain_vit_run_by_hooks(changes: dict[str, Any]) -> None:
    model = timm_vit(**changes)
    engine = fozo.load_engine(model)
    assert isinstance(engine, HookedEngine)
    assert_equal_logits(model, engine, images())


def test_what_has_no_head_or_other_blocks_is_a_black_box() -> None:
    from timm.models.vision_transformer import ResPostBlock

    reasons = {
        "logits are not made by a linear layer": timm_vit(num_classes=0),
        "blocks do not begin with a norm": timm_vit(block_fn=ResPostBlock),
        "no attention": nn.Linear(2, 2).eval(),
    }
    for reason, model in reasons.items():
        found = fozo.describe_model(model)
        assert found.abilities == () and reason in found.sentence


def distilled() -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return shake(VisionTransformerDistilled(**SIZES))  # type: ignore[no-untyped-call]


POOLED: dict[str, Callable[[], nn.Module]] = {
    "average": lambda: timm_vit(global_pool="avg"),
    "distilled": distilled,
    "attention": lambda: timm_vit(global_pool="map", class_token=False),
}


@pytest.mark.parametrize("case", POOLED)
def test_pools_from_module_file_and_onnx(case: str, tmp_path: Path) -> None:
    """The two heads of DeiT become one on two tokens, an unread class token a register; a file tells all of it too."""
    model, batch = POOLED[case](), images()
    engine = fozo.load_engine(model)
    assert_equal_logits(model, engine, batch)
    assert engine.spec.class_token == (case == "distilled")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    assert_equal_logits(model, fozo.load_engine(tmp_path / "model.safetensors", heads=4), batch)
    fozo.export(engine, tmp_path / "model.onnx")
    exported = fozo.load_engine(tmp_path / "model.onnx", threads=1)
    assert_equal_logits(model, exported, batch)
    assert exported.spec == engine.spec


@pytest.mark.parametrize("case", POOLED)
def test_align_moves_what_there_is(case: str) -> None:
    engine = fozo.load_engine(POOLED[case]())
    source = fozo.calibrate(engine, [images(32).numpy()])
    method, moved = fozo.Align(engine, source), list[Knobs]()
    run = engine.run
    engine.run = lambda batch, knobs=NO_KNOBS, taps=(): moved.append(knobs) or run(batch, knobs, taps)  # type: ignore[method-assign, func-returns-value]
    for _ in range(4):
        method(0.1 * images(16).numpy() + 2)
    cls, patches = moved[-1].cls, moved[-1].patches
    assert cls is not None and patches is not None
    assert patches.shift.any() and cls.shift.any() == engine.spec.class_token


def test_a_model_that_only_looks_familiar_is_caught_by_the_probe() -> None:
    model = timm_vit()
    original = model.forward
    model.forward = lambda x: original(x) * 1.5
    refuses("computes other logits", fozo.load_engine, model)


def test_the_probe_leaves_a_training_model_in_training() -> None:
    model = timm_vit(proj_drop_rate=0.5).train()
    engine = fozo.load_engine(model)
    assert all(module.training for module in model.modules())
    assert_equal_logits(model.eval(), engine, images())


def test_safetensors_and_torch_files_give_the_same_engine(tmp_path: Path) -> None:
    model = timm_vit()
    state = model.state_dict()
    save_file(state, tmp_path / "model.safetensors")
    torch.save({"model": {f"module.{name}": tensor for name, tensor in state.items()}}, tmp_path / "model.pth")
    one = fozo.load_engine(tmp_path / "model.safetensors", heads=4)
    two = fozo.load_engine(str(tmp_path / "model.pth"), heads=4)
    assert one.spec.fingerprint == two.spec.fingerprint
    assert_equal_logits(model, one, images())


def test_a_pickle_is_never_run(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
            return Path.touch, (ran,)

    torch.save({"weights": Trap()}, tmp_path / "trap.pth")
    refuses("not a readable weights file", fozo.load_engine, tmp_path / "trap.pth")
    assert not ran.exists()


def test_broken_files_are_one_clear_error(tmp_path: Path) -> None:
    save_file(timm_vit().state_dict(), tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    for name, content in [("cut.safetensors", data[:-50]), ("empty.safetensors", b""), ("noise.pth", b"\x00" * 99)]:
        (tmp_path / name).write_bytes(content)
        refuses("not a readable weights file", fozo.load_engine, tmp_path / name)
    torch.save([1, 2], tmp_path / "list.pth")
    refuses("no state dict", fozo.load_engine, tmp_path / "list.pth")
    refuses(r"no file model\.onnx", fozo.load_engine, "model.onnx")


def test_what_cannot_be_inferred_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(timm_vit().state_dict(), path)
    cases: list[tuple[dict[str, Any], str]] = [({}, "pass heads="), ({"heads": 5}, "cannot be split over 5 heads")]
    for options, words in cases:
        refuses(words, fozo.load_engine, path, **options)
    save_file(timm_vit(img_size=(32, 64)).state_dict(), path)
    refuses("pass image_size", fozo.load_engine, path, heads=4)
    assert fozo.load_engine(path, heads=4, image_size=(32, 64)).spec.image_size == (32, 64)
    state = timm_vit().state_dict()
    del state["blocks.1.norm2.bias"], state["blocks.1.norm2.weight"]
    save_file(state, path)
    refuses(r"blocks\.1\.norm2\.\w+' is missing", fozo.load_engine, path, heads=4)


def test_a_named_file_runs_with_the_activation_and_the_epsilon_of_its_family(tmp_path: Path) -> None:
    """No probe compares a file with its original, so what the name tells is all there is."""
    model = timm_vit(act_layer="quick_gelu", norm_layer=partial(nn.LayerNorm, eps=1e-5), pre_norm=True)
    path = tmp_path / "vit_small_patch8_clip_quickgelu_32.openai.safetensors"
    save_file(model.state_dict(), path)
    engine = fozo.load_engine(path, heads=4)
    assert_equal_logits(model, engine, images())
    assert engine.spec.mean == pytest.approx((0.481, 0.458, 0.408), abs=1e-3)
    assert fozo.load_engine(path, heads=4, architecture="unknown").spec.mean is None


def test_a_name_that_does_not_fit_the_weights_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(timm_vit().state_dict(), path)
    for name, words in ((TINY, "patch"), ("vit_tiny_patch8_32", "has tokens of width 192, but these weights are")):
        refuses(words, fozo.load_engine, path, architecture=name, heads=4)
