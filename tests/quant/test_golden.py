"""The authors' own runs of PTQ4ViT, and of FOZO on its models, replayed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fozo import FOZO, quant
from fozo.engines.ptq4vit.scales import Array, Scales
from fozo.engines.torch_engine import TorchEngine
from fozo.models.vit import ViT
from fozo.types import Tap
from tests.helpers import Golden, run

TOLERANCE = 1e-9
OPERANDS = {
    "matmul1/A_interval": "scores.queries",
    "matmul1/B_interval": "scores.keys",
    "matmul2/B_interval": "mix.values",
    "matmul2/split": "mix.split",
    "/w_interval": ".weight",
    "/a_interval": ".input",
}
"""The authors' names of scales, and ours."""


def steps(trace: dict[str, np.ndarray]) -> dict[str, Array]:
    found = {}
    for key, value in trace.items():
        for theirs, ours in OPERANDS.items():
            if key.endswith(theirs):
                scalar = ours in (".input", "mix.split")
                found[key.removesuffix(theirs) + ours] = value.reshape(() if scalar else -1)
    return found


def scales(golden: Golden, trace: dict[str, np.ndarray]) -> Scales:
    return Scales(golden.engine.spec.fingerprint, 8, steps(trace))


@pytest.mark.parametrize("name", ["hessian", "L2_norm", "cosine", "hessian_softtarget"])
def test_from_the_authors_scales_the_model_computes_the_authors_logits(golden: Golden, name: str) -> None:
    trace = golden.trace(f"ptq4vit_{name}_f64")
    engine = quant.with_scales(golden.engine, scales(golden, trace))
    logits, plain = (run(one, golden.images["stream"])[Tap.LOGITS][0] for one in (engine, golden.engine))
    np.testing.assert_allclose(logits, trace["logits_quant"], rtol=0, atol=TOLERANCE)
    if name == "hessian":
        np.testing.assert_allclose(plain, trace["logits_fp"], rtol=0, atol=TOLERANCE)
    assert np.abs(logits - plain).max() > 0.1  # so the replay is of the quantised model


@pytest.mark.parametrize(
    ("metric", "name", "blocks"), [("l2", "L2_norm", 2), ("cosine", "cosine", 2), ("hessian", "hessian_softtarget", 12)]
)
def test_the_search_finds_the_authors_scales(golden: Golden, metric: str, name: str, blocks: int) -> None:
    """Without gradients later blocks have no say in earlier ones, so two of twelve are enough."""
    vit = golden.engine.vit
    with torch.device("meta"):
        short = ViT(replace(vit.architecture, depth=blocks))
    kept = short.state_dict().keys()
    short.load_state_dict({key: value for key, value in vit.state_dict().items() if key in kept}, assign=True)
    images = golden.images["source"][:32]
    found = quant.ptq4vit(TorchEngine(short.eval().requires_grad_(False)), images, metric=metric).scales.steps
    expected = steps(golden.trace(f"ptq4vit_{name}_f64"))
    compared = [key for key in found if blocks == 12 or not key.startswith("head")]
    assert found.keys() <= expected.keys() and len(compared) == 1 + 12 * blocks + (2 if blocks == 12 else 0)
    assert [key for key in compared if not np.allclose(found[key], expected[key], rtol=1e-9, atol=0)] == []


def test_fozo_on_the_quantised_model_replays_the_authors_run(golden: Golden) -> None:
    trace = golden.trace("fozoquant_n1_continual_f64")
    engine = quant.with_scales(golden.engine, scales(golden, golden.trace("ptq4vit_hessian_f64")))
    source = golden.calibrate(engine)
    np.testing.assert_allclose(source.features.mean.ravel(), trace["src_all_mean"], rtol=0, atol=TOLERANCE)
    method = FOZO(
        engine,
        source,
        passes=2,
        preset="official",
        start=trace["prompts_init"][0],
        noise=lambda step, shape: trace["Z"][step].reshape(shape),
    )
    images = golden.images["stream"]
    for t, batch in enumerate(np.split(images, np.cumsum(trace["batch_size"])[:-1])):
        logits = method(batch)
        end = int(trace["batch_size"][: t + 1].sum())
        np.testing.assert_allclose(logits, trace["logits"][end - len(batch) : end], rtol=0, atol=TOLERANCE)
        np.testing.assert_allclose(method.prompts, trace["prompts_after"][t][0], rtol=0, atol=TOLERANCE)
