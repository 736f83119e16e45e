"""FOZO as a user meets it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo import FOZO
from fozo.core.moments import Moments, Window
from fozo.core.objective import Objective
from fozo.methods.common.journal import Journal
from fozo.state import same
from fozo.types import Tap
from tests.helpers import random_images, run

BATCHES = [random_images(8), random_images(8, seed=1)]


def candidates(method: FOZO) -> Any:
    """The prompts that the next batch is predicted under."""
    return method._spsa.ask(method.state().spsa)


def test_seeds_differ_and_repeat(engine: fozo.Engine, source: fozo.Statistics) -> None:
    runs = [FOZO(engine, source, seed=seed)(BATCHES[0]) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_the_returned_prediction_is_that_of_the_lowest_loss(engine: fozo.Engine, source: fozo.Statistics) -> None:
    method = FOZO(engine, source, passes=6, shift="none")
    taps = run(engine, BATCHES[0], fozo.Knobs(prompts=candidates(method)))
    logits = method(BATCHES[0])
    matches = [bool(np.allclose(one, logits, atol=1e-6)) for one in taps[Tap.LOGITS]]
    losses = [
        Objective()(source.features, Moments.of(features), one)
        for features, one in zip(taps[Tap.FEATURES], taps[Tap.LOGITS], strict=True)
    ]
    assert matches == [k == int(np.argmin(losses)) for k in range(6)]
    assert method.metrics()["loss"] == pytest.approx(min(losses))


def test_the_activation_shift_adds_up_the_means_of_both_sides(engine: fozo.Engine, source: fozo.Statistics) -> None:
    method = FOZO(engine, source)
    pooled = run(engine, BATCHES[0], fozo.Knobs(prompts=candidates(method)))[Tap.POOLED]
    method(BATCHES[0])
    average = method.state().shift.average
    np.testing.assert_allclose(average, 2 * pooled.mean(axis=(0, 1)), rtol=1e-4, atol=1e-6)
    method.freeze()
    pooled = run(engine, BATCHES[1], fozo.Knobs(prompts=method.prompts[None]))[Tap.POOLED][0]
    shifted = pooled + source.pooled.mean - average
    np.testing.assert_allclose(method(BATCHES[1]), engine.head()(shifted), rtol=1e-5, atol=1e-5)


def test_it_descends_its_objective_on_a_fixed_batch(engine: fozo.Engine, source: fozo.Statistics) -> None:
    """Not only runs: on one batch over and over, with many samples, the loss falls."""
    images = random_images(16, seed=9) * 1.5 + 0.5
    method = FOZO(engine, source, passes=32, shift="none")
    losses = []
    for _ in range(40):
        method(images)
        losses.append(method.metrics()["loss"])
    assert np.mean(losses[-5:]) < losses[0] - 0.01 * abs(losses[0])


def test_single_images_are_remembered_for_their_statistics(engine: fozo.Engine, source: fozo.Statistics) -> None:
    method = FOZO(engine, source, window=4)
    for seed in range(6):
        method(random_images(1, seed=seed))
    window = method.state().window
    assert len(window.rows) == 4
    features = np.full((1, *window.rows.shape[1:]), 0.5)
    expected = np.concatenate([window.rows[1:], features])
    np.testing.assert_allclose(window.moments(features, 4).std, expected.std(axis=0, ddof=1))
    pair = np.repeat(features, 2, axis=0)  # two images have a standard deviation of their own, as published
    assert window.moments(pair, 4).count == Window.empty(features.shape[1:]).moments(pair, 4).count == 2


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_a_batch_that_cannot_be_recorded_has_not_happened(
    engine: fozo.Engine,
    source: fozo.Statistics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
    written: bool,
) -> None:
    """Where its record is in the file already, a rewind says that it does not count."""
    path = tmp_path / "run.journal"
    append = Journal.append
    method = FOZO(engine, source, journal=path)
    untouched = method.clone()
    method(BATCHES[0])
    untouched(BATCHES[0])
    before = method.state()

    def failing(*call: Any) -> None:
        if written:
            append(*call)
        raise kind("cannot be recorded")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", failing)
        with pytest.raises(kind, match="cannot be recorded"):
            method(BATCHES[1])
    assert same(method.state(), before)
    np.testing.assert_array_equal(fozo.replay_prompts(path), method.prompts)
    method(BATCHES[1])
    untouched(BATCHES[1])
    np.testing.assert_array_equal(fozo.replay_prompts(path), untouched.prompts)


def test_presets_have_the_published_constants() -> None:
    paper = FOZO.PRESETS["paper"]
    official = FOZO.PRESETS["official"].schedule
    assert (paper.schedule.rate, paper.weight, paper.prompts, paper.passes) == (0.08, 0.4, 3, 2)
    assert (official.rate_min, official.rate_max, official.rate_at_jump) == (0.1, 3.0, 0.1)


def test_the_number_of_prompts_can_be_chosen(engine: fozo.Engine, source: fozo.Statistics) -> None:
    assert FOZO(engine, source, prompts=5).prompts.shape == (5, engine.spec.dim)
    assert FOZO(engine, source, preset="paper", prompts=1).parameter_count == engine.spec.dim
