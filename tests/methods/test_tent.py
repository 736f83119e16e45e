from typing import Any

import pytest
import torch

import fozo
from fozo.engines.torch_engine import TorchEngine
from fozo.methods.common.layernorm import LayerNorms
from fozo.state import diff
from tests.helpers import VARIANTS, random_images, random_vit
from tests.methods.rival_traces import close, engine, pixels


def test_the_rate_follows_the_stated_batch_size() -> None:
    by_size = fozo.create("tent", engine(), rate=0.004, batch_size=16)
    direct = fozo.create("tent", engine(), rate=0.001)
    for _ in range(2):
        close(by_size(pixels("stream")[:16]), direct(pixels("stream")[:16]), "logits")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eata", {"fisher_weight": 0, "e_margin": 1e-6}),
        ("sar", {"e_margin": 1e-6}),
        ("deyo", {"e_margin": 1e-6}),
        ("deyo", {"plpd_threshold": 1.0}),
    ],
)
def test_without_a_selected_image_nothing_is_learned(name: str, options: dict[str, Any]) -> None:
    images = pixels("stream")[:16]
    method = fozo.create(name, engine(), None, **options)
    before = method.state()
    close(method(images), fozo.create("noadapt", engine())(images), "logits")
    assert diff(before, method.state()).keys() <= {"batches"}


def test_a_frozen_prediction_uses_the_norm_of_an_adapted_embedding() -> None:
    """Some models have a LayerNorm before their first block."""
    vit = random_vit(VARIANTS["pre_norm"])
    images = random_images(8)
    method = fozo.create("tent", TorchEngine(vit), rate=0.5)
    method(images)
    norms = LayerNorms(method.engine)
    norms.write(method.state().norms)
    with torch.no_grad():
        expected = norms.engine.vit(torch.from_numpy(images))
    close(method.predict(images), expected, "logits", 1e-4)
