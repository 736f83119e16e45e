"""FOZO as a user meets it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fozo
from fozo import FOZO
from fozo.core.moments import Moments
from fozo.core.noise import PhiloxNoise
from fozo.core.objective import Objective
from fozo.errors import FozoError
from fozo.methods.common.journal import Journal
from fozo.testing import same
from fozo.types import Tap
from tests.helpers import SMALL, random_images, random_vit, run

BATCHES = [random_images(n, seed=i) for i, n in enumerate([8, 8, 3, 1, 8, 1, 1, 5])]


@pytest.mark.parametrize("preset", FOZO.PRESETS)
@pytest.mark.parametrize("passes", [2, 6])
@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_a_restored_run_equals_the_unbroken_one(
    engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path, preset: str, passes: int, cut: int
) -> None:
    def make() -> FOZO:
        return FOZO(engine, source, passes=passes, seed=3, preset=preset)

    unbroken = make()
    expected = [unbroken(images) for images in BATCHES]
    first = make()
    for images in BATCHES[:cut]:
        first(images)
    first.save(tmp_path / "state.npz")
    second = make()
    second(BATCHES[-1])  # whatever it did before is forgotten
    second.restore(tmp_path / "state.npz")
    for images, logits in zip(BATCHES[cut:], expected[cut:], strict=True):
        np.testing.assert_array_equal(second(images), logits)
    np.testing.assert_array_equal(second.prompts, unbroken.prompts)


def test_reset_behaves_as_newly_made(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    used = FOZO(engine, source, seed=1)
    expected = [used(images) for images in BATCHES]
    assert not np.array_equal(used.prompts, used.start)
    used.reset()
    for images, logits in zip(BATCHES, expected, strict=True):
        np.testing.assert_array_equal(used(images), logits)


def test_seeds_differ_and_repeat(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    runs = [FOZO(engine, source, seed=seed)(BATCHES[0]) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_torch_in_torch_out(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    arrays = FOZO(engine, source)(BATCHES[0])
    tensors = FOZO(engine, source)(torch.from_numpy(BATCHES[0]))
    assert isinstance(arrays, np.ndarray) and arrays.shape == (8, SMALL.classes)
    assert isinstance(tensors, torch.Tensor) and not tensors.requires_grad
    np.testing.assert_array_equal(arrays, tensors.numpy())


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


def test_it_descends_its_objective_on_a_fixed_batch(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    """Not only runs: on one batch over and over, with many samples, the loss falls."""
    images = random_images(16, seed=9) * 1.5 + 0.5
    method = FOZO(engine, source, passes=32, shift="none")
    losses = []
    for _ in range(40):
        method(images)
        losses.append(method.metrics()["loss"])
    assert np.mean(losses[-5:]) < losses[0] - 0.01 * abs(losses[0])


@pytest.mark.parametrize("preset", FOZO.PRESETS)
def test_a_stream_of_single_images_stays_finite(
    engine: fozo.Engine, source: fozo.SourceStatistics, preset: str
) -> None:
    method = FOZO(engine, source, preset=preset)
    for i in range(12):
        assert np.isfinite(method(random_images(1, seed=i))).all()
    assert np.isfinite(method.prompts).all()


def test_statistics_of_a_single_image_are_those_of_the_window(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = FOZO(engine, source, window=4)
    for i in range(6):
        method(random_images(1, seed=i))
    rows = method.window.rows
    assert rows is not None and len(rows) == 4
    features = np.full((1, *rows.shape[1:]), 0.5)
    expected = np.concatenate([rows[1:], features])
    np.testing.assert_allclose(method.moments(features).std, expected.std(axis=0, ddof=1))
    # Two images have a standard deviation of their own, as published.
    assert method.moments(np.repeat(features, 2, axis=0)).count == 2


def test_bad_images_are_refused_by_name_and_change_nothing(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method, untouched = FOZO(engine, source), FOZO(engine, source)
    for m in (method, untouched):
        m(BATCHES[0])
    for value in (np.nan, np.inf, -np.inf):
        broken = BATCHES[1].copy()
        broken[5, 0, 2, 2] = value
        with pytest.raises(FozoError, match="image 5 of the batch"):
            method(broken)
    for wrong, message in [
        (BATCHES[1][:0], "no images"),
        (BATCHES[1][0, 0], "shape"),
        (BATCHES[1][:, :, :8], "shape"),
        ((BATCHES[1] * 10).astype(np.uint8), "mean and std of vit are unknown"),
    ]:
        with pytest.raises(FozoError, match=message):
            method(wrong)
    np.testing.assert_array_equal(method(BATCHES[2]), untouched(BATCHES[2]))


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


def test_needs_source_statistics(engine: fozo.Engine) -> None:
    with pytest.raises(FozoError, match="needs source statistics"):
        FOZO(engine)


def test_a_state_from_elsewhere_is_refused(engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    method = FOZO(engine, source, passes=2)
    method(BATCHES[0])
    method.save(path)
    with pytest.raises(FozoError, match=r"passes=2.*this run has 4"):
        FOZO(engine, source, passes=4).restore(path)
    with pytest.raises(FozoError, match="method='fozo'"):
        fozo.NoAdapt(engine).restore(path)
    other = fozo.load_engine(random_vit(seed=1))
    theirs = fozo.calibrate(other, [BATCHES[0]])
    with pytest.raises(FozoError, match="fingerprint"):
        FOZO(other, theirs).restore(path)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(FozoError, match="truncated"):
        method.restore(path)
    source.save(path)
    with pytest.raises(FozoError, match="'source statistics' where 'state' is needed"):
        method.restore(path)


def test_a_class_mask_restricts_predictions_and_entropy(source: fozo.SourceStatistics) -> None:
    masked = fozo.load_engine(random_vit(), classes=[4, 0, 5])
    full = fozo.load_engine(random_vit())
    np.testing.assert_allclose(
        fozo.NoAdapt(masked)(BATCHES[0]), fozo.NoAdapt(full)(BATCHES[0])[:, [4, 0, 5]], atol=1e-6
    )
    assert FOZO(masked, source)(BATCHES[0]).shape == (8, 3)
    for bad in ([], [1, 1], [7], [-1]):
        with pytest.raises(FozoError, match="distinct indices below 7"):
            fozo.load_engine(random_vit(), classes=bad)


class TestJournal:
    def test_replays_to_the_same_prompts(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
    ) -> None:
        path = tmp_path / "run.journal"
        method = FOZO(engine, source, passes=4, seed=11, journal=path)
        history = [method.prompts]
        for images in BATCHES:
            method(images)
            history.append(method.prompts)
        fingerprint = engine.spec.fingerprint
        for batches, prompts in enumerate(history):
            np.testing.assert_array_equal(fozo.replay(path, fingerprint=fingerprint, batches=batches), prompts)

    def test_follows_resets_and_restores(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
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

    def test_is_continued_by_a_restored_run(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
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

    def test_of_another_run_is_refused(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
    ) -> None:
        path = tmp_path / "run.journal"
        FOZO(engine, source, seed=1, journal=path)
        with pytest.raises(FozoError, match=r"differs in .*seed"):
            FOZO(engine, source, seed=2, journal=path)

    @pytest.mark.parametrize("kind", [FozoError, OSError, struct.error, KeyboardInterrupt])
    def test_a_batch_that_cannot_be_recorded_has_not_happened(
        self,
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
        self, source: fozo.SourceStatistics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

    def test_holds_any_number_of_passes(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
    ) -> None:
        path = tmp_path / "run.journal"
        method = FOZO(engine, source, passes=512, journal=path)
        method(BATCHES[3])
        np.testing.assert_array_equal(fozo.replay(path), method.prompts)

    def test_of_a_run_with_its_own_noise_wants_it_again(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
    ) -> None:
        path, noise = tmp_path / "run.journal", PhiloxNoise(77)
        method = FOZO(engine, source, noise=noise, journal=path)
        method(BATCHES[0])
        with pytest.raises(FozoError, match="its own noise"):
            fozo.replay(path)
        np.testing.assert_array_equal(fozo.replay(path, noise=noise), method.prompts)


def test_the_number_of_prompts_can_be_chosen(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    assert FOZO(engine, source, prompts=5).prompts.shape == (5, engine.spec.dim)
    assert fozo.create("fozo", engine, source, preset="paper", prompts=1).parameters == engine.spec.dim
