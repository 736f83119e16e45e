"""FOZO as a user meets it."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import softmax

import fozo
from fozo import FOZO
from fozo.core.moments import Moments
from fozo.core.objective import Objective
from fozo.errors import FozoError
from fozo.methods.common.journal import Journal
from fozo.methods.fozo.method import ContentShift, token_rms
from fozo.testing import same
from fozo.types import Tap
from tests.helpers import random_images, run

BATCHES = [random_images(n, seed=i) for i, n in enumerate([8, 8, 3, 1, 8, 1, 1, 5])]


def test_seeds_differ_and_repeat(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    runs = [FOZO(engine, source, seed=seed)(BATCHES[0]) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_the_returned_prediction_is_that_of_the_lowest_loss(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method = FOZO(engine, source, passes=6, shift="none")
    candidates = method.spsa.ask()
    logits = method(BATCHES[0])
    taps = run(engine, BATCHES[0], fozo.Knobs(prompts=candidates))
    every, features = taps[Tap.LOGITS], taps[Tap.FEATURES]
    matches = [bool(np.allclose(one, logits, atol=1e-6)) for one in every]
    losses = [Objective()(source.features, Moments.of(features[k]), every[k]) for k in range(6)]
    assert matches == [k == int(np.argmin(losses)) for k in range(6)]
    assert method.metrics()["loss"] == pytest.approx(min(losses))


@pytest.mark.parametrize(("shift", "scale"), [("mean", 1.0), ("sum", 2.0)])
def test_the_activation_shift_averages_or_adds_up_the_two_sides(
    engine: fozo.Engine, source: fozo.SourceStatistics, shift: str, scale: float
) -> None:
    method = FOZO(engine, source, shift=shift)
    pooled = run(engine, BATCHES[0], fozo.Knobs(prompts=method.spsa.ask()))[Tap.POOLED]
    method(BATCHES[0])
    np.testing.assert_allclose(method.state()["shift"][0], scale * pooled.mean(axis=(0, 1)), rtol=1e-4, atol=1e-6)


def test_it_descends_its_objective_on_a_fixed_batch(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    """Not only runs: on one batch over and over, with many samples, the loss falls."""
    images = random_images(16, seed=9) * 1.5 + 0.5
    method = FOZO(engine, source, passes=32, shift="none")
    losses = []
    for _ in range(40):
        method(images)
        losses.append(method.metrics()["loss"])
    assert np.mean(losses[-5:]) < losses[0] - 0.01 * abs(losses[0])


def test_statistics_of_a_single_image_are_those_of_the_window(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = FOZO(engine, source, window=4)
    for i in range(6):
        method(random_images(1, seed=i))
    rows = method.window.rows
    assert len(rows) == 4
    features = np.full((1, *rows.shape[1:]), 0.5)
    expected = np.concatenate([rows[1:], features])
    np.testing.assert_allclose(method.moments(features).std, expected.std(axis=0, ddof=1))
    # Two images have a standard deviation of their own, as published.
    assert method.moments(np.repeat(features, 2, axis=0)).count == 2


def test_a_journal_follows_restores_and_resets_and_is_continued(
    engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
) -> None:
    path, state = tmp_path / "run.journal", tmp_path / "state.npz"
    first = FOZO(engine, source, journal=path)
    first(BATCHES[0])
    first.save(state)
    first(BATCHES[1])  # on record, but after the saved state: the power goes now
    prompts = first.prompts
    first.restore(state)
    np.testing.assert_array_equal(fozo.replay(path), first.prompts)
    assert first.journal is not None
    first.journal.close()
    second, replayed = FOZO(engine, source, journal=path), FOZO(engine, source)
    second.restore(state)
    second(BATCHES[1])
    np.testing.assert_array_equal(second.prompts, prompts)
    np.testing.assert_array_equal(fozo.replay(path), prompts)
    replayed.replay(path)
    fresh = FOZO(engine, source).state()  # the statistics of recent images are in no journal
    assert len(fresh["shift"]) == len(fresh["window"]) == 0
    assert same(replayed.state(), second.state() | {name: fresh[name] for name in FOZO.UNJOURNALED})
    second.reset()
    np.testing.assert_array_equal(fozo.replay(path), second.start)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("kind", [FozoError, OSError, struct.error, KeyboardInterrupt])
def test_a_batch_that_cannot_be_recorded_has_not_happened(
    engine: fozo.Engine,
    source: fozo.SourceStatistics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
    written: bool,
) -> None:
    """Where its record is in the file already, a rewind says that it does not count."""
    path, append = tmp_path / "run.journal", Journal.append
    method, untouched = FOZO(engine, source, journal=path), FOZO(engine, source)
    method(BATCHES[0]), untouched(BATCHES[0])
    before, metrics, file = method.state(), method.metrics(), path.read_bytes()

    def failing(*call: Any) -> None:
        if written:
            append(*call)
        raise kind("cannot be recorded")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", failing)
        with pytest.raises(kind, match="cannot be recorded"):
            method(BATCHES[1])
    assert same(method.state(), before) and method.metrics() == metrics and (path.read_bytes() == file) != written
    np.testing.assert_array_equal(fozo.replay(path), method.prompts)
    method(BATCHES[1]), untouched(BATCHES[1])
    np.testing.assert_array_equal(method.prompts, untouched.prompts)
    np.testing.assert_array_equal(fozo.replay(path), untouched.prompts)


def test_a_frozen_run_predicts_with_its_prompts_and_its_shift(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = FOZO(engine, source)
    method(BATCHES[0])
    method.freeze()
    pooled = run(engine, BATCHES[1], fozo.Knobs(prompts=method.prompts[None]))[Tap.POOLED][0]
    shift = source.pooled.mean - method.state()["shift"][0]
    np.testing.assert_allclose(method(BATCHES[1]), engine.head()(pooled + shift), rtol=1e-5, atol=1e-5)
    assert method.passes_per_image == 1
    with pytest.raises(FozoError, match="2 averages, not one"):
        method.load_state(method.state() | {"shift": np.stack([shift, shift])})


def test_presets_have_the_published_constants() -> None:
    paper, official = FOZO.PRESETS["paper"], FOZO.PRESETS["official"]
    assert (paper.schedule.rate, paper.weight, paper.prompts, paper.passes) == (0.08, 0.4, 3, 2)
    assert (official.schedule.rate_min, official.schedule.rate_max, official.schedule.rate_at_jump) == (0.1, 3.0, 0.1)
    assert official.window == 64


def test_the_number_of_prompts_can_be_chosen(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    assert FOZO(engine, source, prompts=5).prompts.shape == (5, engine.spec.dim)
    assert fozo.create("fozo", engine, source, preset="paper", prompts=1).parameters == engine.spec.dim


# --- the preset "scaled" ----------------------------------------------------------------------------------------------


def test_scaled_predicts_the_mean_of_all_candidates(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method = FOZO(engine, source, preset="scaled", passes=4)
    candidates, drifted = method.spsa.ask(), BATCHES[0] + 1.5
    logits = method(drifted)
    pooled = run(engine, drifted, fozo.Knobs(prompts=candidates))[Tap.POOLED]
    shift = method.shift.vector(source.pooled.mean)  # of this batch: it counts already
    assert shift is not None and np.abs(shift).max() > 0
    expected = softmax(engine.head()(pooled + shift), axis=2).mean(axis=0)
    np.testing.assert_allclose(np.exp(logits), expected, rtol=1e-4)


def test_scaled_perturbs_in_units_of_the_tokens(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method = FOZO(engine, source, preset="scaled")
    unit, points = token_rms(source), method.spsa.ask()
    assert method.prompts.shape == (1, engine.spec.dim) and not method.prompts.any()
    assert np.std(points[0] - points[1]) / 2 == pytest.approx(method.config.schedule.epsilon * unit, rel=0.2)
    for _ in range(20):
        method(BATCHES[0])
    assert np.sqrt(np.square(method.prompts - method.start).mean()) < method.config.trust * unit


def test_the_content_shift_leaves_clean_images_alone_and_believes_a_drift(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    for offset, believed in ((0.0, False), (2.0, True)):
        shift, rows = ContentShift(source, engine.head(), 40.0), []
        np.testing.assert_allclose(shift.deviation, source.pooled.std, rtol=1e-2)  # the unit of what is believed
        for seed in range(3):
            rows.append(run(engine, random_images(32, seed=200 + seed))[Tap.POOLED] + offset * source.pooled.std)
            shift.take(rows[-1])
        vector = shift.vector(source.pooled.mean)
        assert vector is not None
        assert (np.abs(vector / source.pooled.std).mean() > 1.0) == believed
        assert believed or np.abs(vector / source.pooled.std).mean() < 0.1
    centre = source.pooled.mean  # a drift is shifted to the origin, not to the source's mean
    assert (rows[-1].mean(axis=(0, 1)) + vector) @ centre < 0.5 * centre @ centre


@pytest.mark.parametrize(
    ("name", "value"),
    [("predict", "median"), ("units", "pixels"), ("trust", 0.0), ("shift_images", -1.0)],
)
def test_impossible_switches_are_refused(name: str, value: object) -> None:
    with pytest.raises(FozoError, match=name):
        FOZO.configure("scaled", {name: value})
