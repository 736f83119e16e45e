"""Torch modules of any family by hooks: the same knobs and taps as of modules that fozo converts."""

import re
import threading
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch

import fozo
from fozo.engines.blackbox import BlackBoxEngine
from fozo.engines.hooked import HookedEngine, hooked
from fozo.engines.tokens import NoTokensError
from fozo.errors import ModelWarning
from fozo.methods.pea import measure_covariances
from fozo.testing import check_engine
from fozo.types import Knobs, Tap
from tests.engines.onnx import zoo
from tests.engines.onnx.zoo import images, random_knobs
from tests.refusals import refuses

OWN = [
    "timm ViT", "timm ViT, mean of patches", "timm ViT, attention pooling (SigLIP)", "timm ViT, 4 registers",
    "timm ViT, pre-norm (CLIP)", "transformers DINOv2, registers", "torchvision ViT",
]  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_knobs_and_taps_are_those_of_the_converted_module(name: str) -> None:
    module: Any = zoo.module(name)
    engine = hooked(module, chunk=4)
    own = fozo.load_engine(getattr(module, "model", module))
    assert engine.spec.patch_size == (zoo.PATCH, zoo.PATCH)
    knobs = random_knobs(own.spec)
    if own.spec.class_token and not engine.spec.class_token:  # it is there, and the head does not read it
        knobs = Knobs(patches=knobs.patches, matrices=knobs.matrices)
    got = engine.run(engine.check(images()), knobs, tuple(Tap))
    expected = own.run(own.check(images()), knobs, tuple(Tap))
    for tap in Tap:
        scale = np.abs(expected[tap]).max()
        np.testing.assert_allclose(got[tap], expected[tap], rtol=0, atol=1e-5 * scale, err_msg=f"{name}, {tap}")


@pytest.mark.parametrize(
    "name",
    [
        "timm BEiT",
        "timm EVA-02",
        "timm DINOv3",
        "transformers BEiT",
        "transformers DINOv3 under a linear layer",
        "transformers I-JEPA",
        "transformers Data2Vec",
    ],
)
def test_families_without_a_converter_keep_every_promise(name: str) -> None:
    module = zoo.module(name)
    engine = fozo.load_engine(module)
    assert isinstance(engine, HookedEngine)
    with torch.no_grad():
        expected = module(torch.from_numpy(images())).numpy()
    logits = engine.run(engine.check(images()))[Tap.LOGITS][0]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    check_engine(engine)
    source = fozo.calibrate(engine, [images(8)])
    assert fozo.Align(engine, source)(images()).shape == (3, zoo.CLASSES)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("timm Swin", "no list of blocks"),
        ("transformers Swin", "blocks stand in stages"),
        ("transformers Swin v2", "blocks stand in stages"),
        ("timm XCiT", "one pixel changes"),
        ("timm ResNet", "has no attention"),
        ("normalisation and softmax inside", "not made by a linear layer"),
    ],
)
def test_what_cannot_be_hooked_says_why(name: str, reason: str) -> None:
    module = zoo.module(name)
    with pytest.raises(NoTokensError, match=reason):
        hooked(module, (zoo.size_of(name), zoo.size_of(name)))
    engine = fozo.load_engine(module.model if isinstance(module, zoo.Logits) else module)
    assert isinstance(engine, BlackBoxEngine) and engine.reason
    assert re.search(f"only its images are restored, because .*{reason}", fozo.describe_model(engine).sentence)
    warned: Any = nullcontext() if "no attention" in reason else pytest.warns(ModelWarning, match=reason)
    with warned:
        adapter = fozo.adapter(engine, [images(8, size=zoo.size_of(name))])
    assert adapter(images(size=zoo.size_of(name))).shape == (3, zoo.CLASSES)


def test_clips_image_tower_gives_adapted_embeddings() -> None:
    tower: Any = zoo.module("CLIP's image tower").model
    engine = fozo.load_engine(tower)
    assert isinstance(engine, HookedEngine)
    check_engine(engine)
    with torch.no_grad():
        expected = tower(torch.from_numpy(images())).image_embeds.numpy()
    np.testing.assert_allclose(engine(images()), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert fozo.adapter(tower, [images(8)])(images()).shape == expected.shape


def test_both_towers_of_clip_are_a_function_of_images() -> None:
    from transformers import CLIPConfig, CLIPModel

    vision = {name: value for name, value in zoo.HUGGING_FACE.items() if name != "num_labels"}
    text = {"hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 3, "vocab_size": 9, "bos_token_id": 0}
    model: Any = CLIPModel(CLIPConfig(vision_config=vision, text_config={**text, "eos_token_id": 1}))
    model.eval()
    refuses("CLIPModel are not known.*nor by hooks, because it cannot be taken apart", fozo.load_engine, model)
    answer: Any = fozo.adapter(model.get_image_features, [images(8)])(images())
    assert len(answer.pooler_output) == 3


@pytest.mark.parametrize("method", ["neo", "t3a", "lame", "gain", "pea"])
def test_rivals_do_on_hooked_modules_what_they_do_on_converted_ones(method: str) -> None:
    module: Any = zoo.module("transformers ViT")
    answers = []
    for engine in (hooked(module), fozo.load_engine(module.model)):
        options: dict[str, Any] = {"statistics": fozo.calibrate(engine, [images(8)])}
        if method == "pea":
            options["covariances"] = measure_covariances(engine, [images(8)])
        adapter = fozo.create(method, engine, **options)
        answers.append(np.concatenate([adapter(images()) for _ in range(3)]))
    by_hooks, converted = answers
    np.testing.assert_allclose(by_hooks, converted, rtol=0, atol=1e-4 * np.abs(by_hooks).max())
    assert method in fozo.describe_model(module).methods


def test_the_users_module_is_left_alone() -> None:
    """Other threads see no knobs, gradients flow, and no hook stays behind."""
    module = zoo.module("timm BEiT")
    engine = fozo.load_engine(module)
    batch = torch.from_numpy(images())
    expected = module(batch).detach()
    answers = []

    def other() -> None:
        engine.run(engine.check(images()), random_knobs(engine.spec))

    thread = threading.Thread(target=other)
    thread.start()
    while thread.is_alive():
        answers.append(module(batch).detach())
    thread.join()
    answers.append(module(batch).detach())
    assert all(torch.equal(answer, expected) for answer in answers)
    module(batch).sum().backward()
    assert all(not part._forward_hooks and not part._forward_pre_hooks for part in module.modules())
    refuses("takes no prompts", engine.run, engine.check(images()), Knobs(prompts=np.zeros((1, 2, engine.spec.dim))))
