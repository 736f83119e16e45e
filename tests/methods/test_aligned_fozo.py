"""FOZO's own preset as a user meets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fozo
from fozo.engines.export import export
from fozo.engines.onnx_engine import OnnxEngine
from fozo.errors import FozoError
from fozo.methods.aligned_fozo import AlignedFOZO
from fozo.methods.prompt_fozo import PromptFOZO
from tests.helpers import random_images, random_vit

BATCHES = [random_images(20, seed=i) for i in range(4)]
SHIFTED = [0.3 * batch + 1.0 for batch in BATCHES]


def deviation(engine: fozo.Engine, source: fozo.SourceStatistics, method: AlignedFOZO) -> float:
    """How far the moved patch tokens of a shifted batch are from their clean mean, over all layers."""
    coefficients = method.spectra.transform(SHIFTED[3])
    keys = method.keys(coefficients)
    recalled = method.memory.recall(keys)
    used = method._plan(recalled)
    images = method._equalised(SHIFTED[3], coefficients, keys, recalled)
    taps = engine.run(engine.embed(images), fozo.Knobs(patches=used.move()), patch_moments=True)
    assert taps.patch_mean is not None
    moved = used.scale * taps.patch_mean + used.shift
    return float(np.square(moved[0].mean(axis=0) - source.patch_mean.mean).sum())


def test_it_is_the_default_and_costs_one_pass(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method = fozo.FOZO(engine, source)
    assert isinstance(method, AlignedFOZO) and method.passes == 1
    method(BATCHES[0])
    assert method.spent == 1
    assert isinstance(fozo.FOZO(engine, source, preset="paper"), PromptFOZO)


def test_the_first_images_are_predicted_as_they_are(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    """Nothing is known of a new stream, so no token is moved; later images are moved."""
    method = fozo.FOZO(engine, source, detail=0.0)
    adapted, plain = method(SHIFTED[0]), fozo.NoAdapt(engine)(SHIFTED[0])
    # Equal up to the order of additions, which depends on how many images go through the model together.
    np.testing.assert_allclose(adapted[:8], plain[:8], atol=1e-5)
    assert np.abs(adapted[8:] - plain[8:]).max() > 1e-3


@pytest.mark.parametrize("size", [1, 20])
def test_faded_images_get_their_contrast_back_at_once(
    engine: fozo.Engine, source: fozo.SourceStatistics, size: int
) -> None:
    """The images themselves tell what they lack, so not even the first has to wait for memories."""
    sharp, faded = BATCHES[0][:size], 0.2 * BATCHES[0][:size]
    method, plain = fozo.FOZO(engine, source, mean=0, spread=0), fozo.NoAdapt(engine)
    wanted = plain(sharp)
    assert np.square(method(faded) - wanted).sum() < 0.5 * np.square(plain(faded) - wanted).sum()
    method.reset()
    np.testing.assert_allclose(method(sharp), wanted, atol=0.1)


def test_tokens_end_nearer_to_their_clean_statistics(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method = fozo.FOZO(engine, source)
    before = deviation(engine, source, method)
    for batch in SHIFTED[:3]:
        method(batch)
    assert deviation(engine, source, method) < 0.8 * before


def test_another_domain_is_not_moved_by_the_memories_of_this_one(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = fozo.FOZO(engine, source)
    for batch in SHIFTED:
        method(batch)
    inverted = 3 - 2 * BATCHES[0]
    np.testing.assert_allclose(method(inverted)[:8], fozo.NoAdapt(engine)(inverted)[:8], atol=1e-3)
    assert method.telling()["worth"] < 20


def test_the_shift_score_is_about_one_on_clean_images_and_far_above_it_elsewhere(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = fozo.FOZO(engine, source)
    scores = {}
    for name, batch in (("clean", BATCHES[0]), ("shifted", SHIFTED[0])):
        method(batch)
        scores[name] = method.telling()["shift"]
    assert 0.2 < scores["clean"] < 5 and scores["shifted"] > 20


def test_same_input_same_numbers_and_reset_forgets(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    one, two = fozo.FOZO(engine, source, passes=2), fozo.FOZO(engine, source, passes=2, seed=5)
    first = [one(batch) for batch in SHIFTED]
    np.testing.assert_array_equal(first, [two(batch) for batch in SHIFTED])
    one.reset()
    np.testing.assert_array_equal(first, [one(batch) for batch in SHIFTED])


def test_a_restored_state_goes_on_as_if_nothing_had_happened(
    engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
) -> None:
    unbroken = fozo.FOZO(engine, source, passes="auto")
    for batch in SHIFTED[:2]:
        unbroken(batch)
    unbroken.save(tmp_path / "state.npz")
    resumed = fozo.FOZO(engine, source, passes="auto")
    resumed.restore(tmp_path / "state.npz")
    for batch in [*SHIFTED[2:], *BATCHES]:
        np.testing.assert_array_equal(resumed(batch), unbroken(batch))
    with pytest.raises(FozoError, match="passes"):
        fozo.FOZO(engine, source).restore(tmp_path / "state.npz")
    other = fozo.load_engine(random_vit(seed=1))
    theirs = fozo.SourceStatistics.collect(other, [random_images(8)])
    with pytest.raises(FozoError, match="fingerprint"):
        fozo.FOZO(other, theirs, passes="auto").restore(tmp_path / "state.npz")


def test_a_refused_batch_changes_nothing(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method, untouched = fozo.FOZO(engine, source), fozo.FOZO(engine, source)
    for each in (method, untouched):
        each(SHIFTED[0])
    broken = SHIFTED[1].copy()
    broken[17, 0, 0, 0] = np.nan
    for batch, sentence in ((broken, "NaN"), (broken[:0], "no images"), (broken[:, :2], "resize")):
        with pytest.raises(FozoError, match=sentence):
            method(batch)
    np.testing.assert_array_equal(method(SHIFTED[1]), untouched(SHIFTED[1]))


class Failing:
    """An engine that breaks down after some calls."""

    def __init__(self, engine: fozo.Engine, calls: int) -> None:
        self.engine, self.calls, self.spec = engine, calls, engine.spec
        self.embed, self.logits = engine.embed, engine.logits

    def run(self, tokens: object, knobs: fozo.Knobs, *, patch_moments: bool = False) -> fozo.Taps:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("out of memory")
        return self.engine.run(tokens, knobs, patch_moments=patch_moments)  # type: ignore[arg-type]


def test_a_failure_in_mid_batch_leaves_no_trace(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    failing = Failing(engine, calls=5)
    method = AlignedFOZO(failing, source, passes="auto")  # type: ignore[arg-type]
    method(SHIFTED[0][:8])
    before = {name: array.copy() for name, array in method.state().items()}
    with pytest.raises(RuntimeError):
        method(SHIFTED[1])
    for name, array in method.state().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize("size", [1, 3, 8, 20])
def test_any_batch_size(engine: fozo.Engine, source: fozo.SourceStatistics, size: int) -> None:
    method = fozo.FOZO(engine, source)
    out = np.concatenate([method(SHIFTED[0][i : i + size]) for i in range(0, 20, size)])
    assert out.shape == (20, engine.spec.classes) and np.isfinite(out).all()


def test_a_black_image_is_no_trouble(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method = fozo.FOZO(engine, source)
    for value in (0.0, 0.0, 1.0):
        assert np.isfinite(method(np.full_like(BATCHES[0], value))).all()


def test_torch_in_torch_out(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    arrays, tensors = fozo.FOZO(engine, source), fozo.FOZO(engine, source)
    out = tensors(torch.from_numpy(SHIFTED[0]))
    assert isinstance(out, torch.Tensor)
    np.testing.assert_array_equal(arrays(SHIFTED[0]), out.numpy())
    half = fozo.FOZO(engine, source)(torch.from_numpy(SHIFTED[0]).bfloat16())
    assert isinstance(half, torch.Tensor) and half.isfinite().all()


def test_onnx_gives_the_same_predictions(engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path) -> None:
    export(engine, tmp_path / "model.onnx")
    edge = fozo.FOZO(OnnxEngine(tmp_path / "model.onnx"), source, passes=2)
    here = fozo.FOZO(engine, source, passes=2)
    for batch in SHIFTED:
        np.testing.assert_allclose(edge(batch), here(batch), atol=1e-3)


def test_auto_looks_twice_where_a_domain_begins_and_keeps_its_budget(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = fozo.FOZO(engine, source, passes="auto", budget=1.1)
    costs = []
    for _ in range(20):
        method(SHIFTED[0])
        costs.append(method.spent)
    assert costs[0] > 1.3 and costs[1:] == [1.0] * 19 and np.mean(costs) <= 1.1
    method(3 - 2 * BATCHES[0])
    assert method.spent > 1.3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"passes": 0}, "from 1 up, or 'auto', not 0"),
        ({"passes": "much"}, "not 'much'"),
        ({"mean": 1.5}, "mean is 1.5"),
        ({"spread": float("nan")}, "spread is nan"),
        ({"doubt": -1}, "doubt is -1"),
        ({"together": 0}, "together is 0"),
        ({"budget": 0.5}, "budget is 0.5"),
        ({"speed": 1}, "no option 'speed'"),
        ({"preset": "mine"}, "no preset 'mine'; choose from aligned, official, paper"),
    ],
)
def test_bad_options(
    engine: fozo.Engine, source: fozo.SourceStatistics, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(FozoError, match=sentence):
        fozo.create("fozo", engine, source, **options)


def test_it_wants_images_and_statistics(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    with pytest.raises(FozoError, match="call it with the images"):
        fozo.FOZO(engine, source).adapt(engine.embed(BATCHES[0]))
    with pytest.raises(FozoError, match="needs source statistics"):
        fozo.FOZO(engine)
