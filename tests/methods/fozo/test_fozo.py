"""FOZO as a user meets it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo import FOZO
from fozo.core.moments import Moments
from fozo.core.objective import Objective
from fozo.errors import FozoError
from fozo.methods.common.journal import Journal
from fozo.testing import same
from fozo.types import Tap
from tests.helpers import random_images, random_vit, run

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 3}, "even number of passes"),
        ({"passes": 0}, "even number of passes"),
        ({"passes": "auto"}, "fozo: passes is 'auto'; give a value like 2"),
        ({"passes": 2.0}, "fozo: passes is 2.0; give a value like 2"),
        ({"schedule.decay": 0.0}, "decay must lie in"),
        ({"schedule.memory": 0.5}, "no option 'schedule.memory'; its options are epsilon"),
        ({"preset": "best"}, "has no preset 'best'"),
        ({"seed": -1}, "seed"),
        ({"start": np.zeros((2, 2))}, "of shape"),
        ({"shift": "left"}, "shift is 'left'; choose from sum, mean, none"),
        ({"features": "all"}, "features is 'all'; choose from normed, cls"),
        ({"distance": "far"}, "distance must be"),
        ({"nonsense": 1}, "nonsense"),
        ({"prompts": 0}, "at least one prompt"),
    ],
)
def test_bad_options_say_what_is_wrong(
    engine: fozo.Engine, source: fozo.SourceStatistics, options: dict[str, object], message: str
) -> None:
    with pytest.raises(FozoError, match=message):
        FOZO(engine, source, **options)  # type: ignore[arg-type]


def test_a_journal_follows_resets_and_restores(
    engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
) -> None:
    path, state = tmp_path / "run.journal", tmp_path / "state.npz"
    method = FOZO(engine, source, journal=path)
    for images in BATCHES[:3]:
        method(images)
    method.save(state)
    for images in BATCHES[3:6]:
        method(images)
    method.restore(state)
    np.testing.assert_array_equal(fozo.replay(path), method.prompts)
    method(BATCHES[0])
    np.testing.assert_array_equal(fozo.replay(path), method.prompts)
    method.reset()
    np.testing.assert_array_equal(fozo.replay(path), method.start)


def test_a_journal_is_continued_by_a_restored_run(
    engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
) -> None:
    path, state = tmp_path / "run.journal", tmp_path / "state.npz"
    first = FOZO(engine, source, journal=path)
    first(BATCHES[0])
    first.save(state)
    first(BATCHES[1])  # on record, but after the saved state: the power goes now
    assert first.journal is not None
    first.journal.close()
    second = FOZO(engine, source, journal=path)
    second.restore(state)
    second(BATCHES[1])
    np.testing.assert_array_equal(second.prompts, first.prompts)
    np.testing.assert_array_equal(fozo.replay(path), first.prompts)


@pytest.mark.parametrize("kind", [FozoError, OSError, struct.error, KeyboardInterrupt])
def test_a_batch_that_cannot_be_recorded_has_not_happened(
    engine: fozo.Engine,
    source: fozo.SourceStatistics,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[BaseException],
) -> None:
    path, error = tmp_path / "run.journal", kind("cannot be recorded")
    method, untouched = FOZO(engine, source, journal=path), FOZO(engine, source)
    method(BATCHES[0]), untouched(BATCHES[0])
    before, metrics, file = method.state(), method.metrics(), path.read_bytes()

    def failing(*_: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", failing)
        with pytest.raises(type(error), match="cannot be recorded"):
            method(BATCHES[1])
    assert same(method.state(), before) and method.metrics() == metrics and path.read_bytes() == file
    method(BATCHES[1]), untouched(BATCHES[1])
    np.testing.assert_array_equal(method.prompts, untouched.prompts)
    np.testing.assert_array_equal(fozo.replay(path), untouched.prompts)


def test_a_batch_that_is_refused_after_its_step_is_taken_back_in_the_journal(
    source: fozo.SourceStatistics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is in the file already; a rewind then says that it does not count."""
    path = tmp_path / "run.journal"
    method = FOZO(fozo.load_engine(random_vit()), source, journal=path)
    method(BATCHES[0])
    before, metrics, prompts = method.state(), method.metrics(), method.prompts
    append = Journal.append

    def late(*call: Any) -> None:
        append(*call)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", late)
        with pytest.raises(KeyboardInterrupt):
            method(BATCHES[1])
    assert same(method.state(), before) and method.metrics() == metrics
    np.testing.assert_array_equal(fozo.replay(path), prompts)
    method(BATCHES[1])
    np.testing.assert_array_equal(fozo.replay(path), method.prompts)


def test_the_number_of_prompts_can_be_chosen(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    assert FOZO(engine, source, prompts=5).prompts.shape == (5, engine.spec.dim)
    assert fozo.create("fozo", engine, source, preset="paper", prompts=1).parameters == engine.spec.dim
