"""Quantised models: every architecture, every knob, files, and the authors' own runs replayed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fozo
from fozo import FOZO, quant
from fozo.engines.ptq4vit import Scales
from fozo.engines.ptq4vit.engine import after_gelu, after_softmax, step_shapes, uniform
from fozo.engines.torch_engine import TorchEngine
from fozo.models.vit import ViT
from fozo.quant.search import Operands, best
from fozo.types import Array, Tap
from tests.helpers import KNOBS, SMALL, VARIANTS, Golden, naive, random_images, random_knobs, random_vit, run
from tests.refusals import refuses

SHORT = replace(SMALL, depth=1, dim=12, heads=2, hidden=16)


def rough(engine: fozo.Engine, bits: int = 8) -> Scales:
    """Steps of about the right size, without a search."""
    rng = np.random.default_rng(3)
    assert isinstance(engine, TorchEngine)
    shapes = step_shapes(engine.vit.architecture)
    steps = {name: np.asarray(rng.uniform(0.5, 1.5, shape) * 5 / 128) for name, shape in shapes.items()}
    steps |= {name: np.asarray(2.0**-6) for name in steps if name.endswith("split")}
    return Scales(engine.spec.fingerprint, bits, steps, "rough")


@pytest.mark.parametrize("kind", KNOBS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_engines_savings_change_nothing_in_any_architecture(variant: str, kind: str) -> None:
    """Also with prompts: steps belong to tensors, not to tokens."""
    a = VARIANTS[variant]
    plain = fozo.load_engine(random_vit(a))
    engine = quant.with_scales(plain, rough(plain))
    images = random_images(3, architecture=a)
    knobs = random_knobs(a, 2, 3, kind)
    rounded, exact = (run(one, images, knobs)[Tap.POOLED] for one in (engine, plain))
    for k in range(knobs.candidates()):
        # Rounding turns a last bit into a whole step now and then, so values are compared in the mean.
        expected = naive(engine.vit, a, images, knobs, k)[Tap.POOLED]
        np.testing.assert_allclose(np.abs(rounded[k] - expected).mean(), 0, atol=2e-2)
    assert 1e-3 < np.abs(rounded - exact).mean() < 0.5


def test_more_bits_are_nearer_and_every_metric_works() -> None:
    a = replace(SHORT, registers=1, pool="cls+mean", activation="quick_gelu")
    plain = fozo.load_engine(random_vit(a))
    images = random_images(8, architecture=a)
    exact = run(plain, images)[Tap.LOGITS]
    calls: list[tuple[int, int]] = []
    for metric in quant.METRICS:
        errors = []
        for bits in quant.BITS if metric == "hessian" else (8,):
            engine = quant.ptq4vit(
                plain, images[:4], bits, metric=metric, progress=lambda done, total: calls.append((done, total))
            )
            errors.append(np.abs(run(engine, images)[Tap.LOGITS] - exact).mean())
        assert errors == sorted(errors, reverse=True) and errors[-1] < 0.05 * exact.std(), errors
    assert calls[:9] == [(done, 8) for done in range(9)]


def test_dropping_candidates_early_never_changes_the_winner() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        hopeless = 100.0 * (rng.random((30, 1)) < 0.5)
        tables = [torch.from_numpy(rng.integers(0, 6, (30, 4)) + hopeless) for _ in range(5)]
        samples = [Operands(*(torch.full((1,), float(i)),) * 4) for i in range(5)]
        seen = 0

        def errors(sample: Operands, chosen: torch.Tensor, tables: list[torch.Tensor] = tables) -> torch.Tensor:
            nonlocal seen
            seen += len(chosen)
            return tables[int(sample.left)][chosen]

        found = best(torch.arange(30), samples, errors)
        assert torch.equal(found, torch.stack(tables).sum(dim=0).argmin(dim=0))  # ties: the first of them
        assert seen < 4 * 30


def test_grids() -> None:
    x = torch.tensor([-9.0, -0.26, 0.24, 0.26, 9.0], dtype=torch.float64)
    assert uniform(x, x.new_tensor(0.5), 8).tolist() == [-4.0, -0.5, 0.0, 0.5, 3.5]
    fine = after_gelu(torch.tensor([-0.17, -0.08, 0.26], dtype=torch.float64), x.new_tensor(0.5), 8)
    np.testing.assert_allclose(fine, [-0.169971, -0.084986, 0.5], atol=1e-6)
    small = after_softmax(torch.tensor([0.001, 0.9], dtype=torch.float64), x.new_tensor(2.0**-9), 128)
    np.testing.assert_allclose(small, [0.001, 0.9], atol=5e-3)
    assert abs(float(small[0]) - 0.001) < 1e-5


def test_scales_are_kept_and_another_models_are_refused(tmp_path: Path) -> None:
    plain = fozo.load_engine(random_vit(SHORT))
    engine = quant.with_scales(plain, rough(plain))
    engine.scales.save(tmp_path / "scales.safetensors")
    again = quant.with_scales(plain, tmp_path / "scales.safetensors")
    assert again.spec == engine.spec and again.spec.fingerprint.startswith(f"{plain.spec.fingerprint}-ptq4vit8-")
    images = random_images(2, architecture=SHORT)
    np.testing.assert_array_equal(run(again, images)[Tap.LOGITS], run(engine, images)[Tap.LOGITS])
    other = fozo.load_engine(random_vit(SHORT, seed=1))
    refuses(
        r"searched for rough .*not for vit.*fozo quantise", quant.with_scales, other, tmp_path / "scales.safetensors"
    )
    steps = dict(engine.scales.steps)
    del steps["head.input"]
    refuses(r"head\.input is missing", quant.with_scales, plain, replace(engine.scales, steps=steps))
    refuses("not positive", replace, engine.scales, steps={"head.input": np.array(np.nan)})


def test_what_is_refused(tmp_path: Path) -> None:
    plain = fozo.load_engine(random_vit(SHORT), mean=0.5, std=0.5)
    images = random_images(2, architecture=SHORT)
    refuses("bits is 5; choose from 4, 6, 8", quant.ptq4vit, plain, images, 5)
    refuses("no metric 'l3'", quant.ptq4vit, plain, images, metric="l3")
    engine = quant.with_scales(plain, rough(plain))
    refuses("quantised already", quant.ptq4vit, engine, images)
    refuses(r"tent needs gradients: .*because rounding has none", fozo.create, "tent", engine)
    refuses("export its weights with --int8", fozo.export, engine, tmp_path / "model.onnx")
    fozo.export(plain, tmp_path / "model.onnx")
    quantize = torch.ao.quantization.quantize_dynamic
    parts = {name: torch.nn.Linear(2, 2) for name in ("patch_embed", "cls_token", "blocks", "norm", "head")}
    packed = quantize(torch.nn.ModuleDict(parts).eval())  # type: ignore[no-untyped-call]
    refuses(r"ModuleDict was quantised in PyTorch \(\w+\..* is packed\)", fozo.load_engine, packed)
    refuses(
        "quantises torch models, not OnnxEngine",
        quant.with_scales,
        fozo.load_engine(tmp_path / "model.onnx"),
        rough(plain),
    )


def test_a_head_restricted_to_some_classes_has_the_same_rows() -> None:
    vit = random_vit()
    whole, some = fozo.load_engine(vit), fozo.load_engine(vit, classes=(5, 2))
    scales = rough(whole)
    images = random_images(2)
    both = [quant.with_scales(engine, scales) for engine in (whole, some)]
    logits = [run(engine, images)[Tap.LOGITS] for engine in both]
    np.testing.assert_allclose(logits[0][..., [5, 2]], logits[1], atol=1e-5)
    assert both[1].spec.subset == (5, 2)


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
