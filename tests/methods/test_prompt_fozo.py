"""FOZO as a user meets it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import fozo
from fozo.core.journal import Journal
from fozo.core.spsa import Step
from fozo.errors import FozoError
from fozo.methods.prompt_fozo import PRESETS, PromptFOZO
from tests.helpers import SMALL, random_images, random_vit

BATCHES = [random_images(n, seed=i) for i, n in enumerate([8, 8, 3, 1, 8, 1, 1, 5])]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("passes", [2, 6])
@pytest.mark.parametrize("cut", [0, 1, 4, 7])
def test_a_restored_run_equals_the_unbroken_one(
    engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path, preset: str, passes: int, cut: int
) -> None:
    def make() -> PromptFOZO:
        return PromptFOZO(engine, source, passes=passes, seed=3, preset=preset)

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
    used = PromptFOZO(engine, source, seed=1)
    expected = [used(images) for images in BATCHES]
    assert not np.array_equal(used.prompts, used.start)
    used.reset()
    for images, logits in zip(BATCHES, expected, strict=True):
        np.testing.assert_array_equal(used(images), logits)


def test_seeds_differ_and_repeat(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    runs = [PromptFOZO(engine, source, seed=seed)(BATCHES[0]) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_torch_in_torch_out(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    arrays = PromptFOZO(engine, source)(BATCHES[0])
    tensors = PromptFOZO(engine, source)(torch.from_numpy(BATCHES[0]))
    assert isinstance(arrays, np.ndarray) and arrays.shape == (8, SMALL.classes)
    assert isinstance(tensors, torch.Tensor) and not tensors.requires_grad
    np.testing.assert_array_equal(arrays, tensors.numpy())


def test_the_returned_prediction_is_that_of_the_lowest_loss(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method = PromptFOZO(engine, source, passes=6, shift="none")
    candidates = method.spsa.ask()
    logits = method(BATCHES[0])
    taps = engine.run(engine.embed(BATCHES[0]), fozo.Knobs(prompts=candidates))
    every = engine.logits(taps.pooled)
    matches = [bool(np.allclose(one, logits, atol=1e-6)) for one in every]
    losses = [method.objective(method.source_features, method._moments(taps.features[k]), every[k]) for k in range(6)]
    assert matches == [k == int(np.argmin(losses)) for k in range(6)]
    assert method.last is not None and method.last.loss == pytest.approx(min(losses))


def test_it_descends_its_objective_on_a_fixed_batch(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    """Not only runs: on one batch over and over, with many samples, the loss falls."""
    images = random_images(16, seed=9) * 1.5 + 0.5
    method = PromptFOZO(engine, source, passes=32, shift="none")
    losses = []
    for _ in range(40):
        method(images)
        assert method.last is not None
        losses.append(method.last.loss)
    assert np.mean(losses[-5:]) < losses[0] - 0.01 * abs(losses[0])


@pytest.mark.parametrize("preset", PRESETS)
def test_a_stream_of_single_images_stays_finite(
    engine: fozo.Engine, source: fozo.SourceStatistics, preset: str
) -> None:
    method = PromptFOZO(engine, source, preset=preset)
    for i in range(12):
        assert np.isfinite(method(random_images(1, seed=i))).all()
    assert np.isfinite(method.prompts).all()
    assert method.window.rows is not None and len(method.window.rows) == 12


def test_statistics_of_a_single_image_are_those_of_the_window(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = PromptFOZO(engine, source, window=4)
    for i in range(6):
        method(random_images(1, seed=i))
    rows = method.window.rows
    assert rows is not None and len(rows) == 4
    features = np.full((1, *rows.shape[1:]), 0.5)
    expected = np.concatenate([rows[1:], features])
    moments = method._moments(features)
    np.testing.assert_allclose(moments.std, expected.std(axis=0, ddof=1))
    # Two images have a spread of their own, as published.
    assert method._moments(np.repeat(features, 2, axis=0)).count == 2


def test_bad_images_are_refused_by_name_and_change_nothing(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    method, untouched = PromptFOZO(engine, source), PromptFOZO(engine, source)
    for m in (method, untouched):
        m(BATCHES[0])
    for value in (np.nan, np.inf, -np.inf):
        broken = BATCHES[1].copy()
        broken[5, 0, 2, 2] = value
        with pytest.raises(FozoError, match="image 5 of the batch"):
            method(broken)
    for wrong, message in [
        (BATCHES[1][:0], "no images"),
        (BATCHES[1][0], "shape"),
        (BATCHES[1][:, :, :8], "shape"),
        ((BATCHES[1] * 10).astype(np.uint8), "normalise"),
    ]:
        with pytest.raises(FozoError, match=message):
            method(wrong)
    np.testing.assert_array_equal(method(BATCHES[2]), untouched(BATCHES[2]))


def test_a_model_that_overflows_is_refused_and_changes_nothing(
    engine: fozo.Engine, source: fozo.SourceStatistics
) -> None:
    method = PromptFOZO(engine, source)
    before = method.state()
    with np.errstate(all="ignore"), pytest.raises(FozoError, match="not all finite"):
        method(np.full_like(BATCHES[0], 3e38))
    for name, array in method.state().items():
        np.testing.assert_array_equal(array, before[name])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passes": 3}, "even number of passes"),
        ({"passes": 0}, "even number of passes"),
        ({"preset": "best"}, "has no preset 'best'"),
        ({"seed": -1}, "seed"),
        ({"start": np.zeros((2, 2))}, "of shape"),
        ({"shift": "left"}, "shift must be"),
        ({"features": "all"}, "features must be"),
        ({"distance": "far"}, "distance must be"),
        ({"nonsense": 1}, "nonsense"),
        ({"prompts": 0}, "at least one prompt"),
    ],
)
def test_bad_options_say_what_is_wrong(
    engine: fozo.Engine, source: fozo.SourceStatistics, options: dict[str, object], message: str
) -> None:
    with pytest.raises(FozoError, match=message):
        fozo.create("fozo", engine, source, **({"preset": "official"} | options))


def test_needs_source_statistics(engine: fozo.Engine) -> None:
    with pytest.raises(FozoError, match="needs source statistics"):
        PromptFOZO(engine)


def test_a_state_from_elsewhere_is_refused(engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path) -> None:
    path = tmp_path / "state.npz"
    method = PromptFOZO(engine, source, passes=2)
    method(BATCHES[0])
    method.save(path)
    with pytest.raises(FozoError, match=r"passes=2.*this run has 4"):
        PromptFOZO(engine, source, passes=4).restore(path)
    with pytest.raises(FozoError, match="method='fozo'"):
        fozo.NoAdapt(engine).restore(path)
    other = fozo.load_engine(random_vit(seed=1))
    theirs = fozo.SourceStatistics.collect(other, [BATCHES[0]])
    with pytest.raises(FozoError, match="fingerprint"):
        PromptFOZO(other, theirs).restore(path)
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
    assert PromptFOZO(masked, source)(BATCHES[0]).shape == (8, 3)
    for bad in ([], [1, 1], [7], [-1]):
        with pytest.raises(FozoError, match="distinct indices below 7"):
            fozo.load_engine(random_vit(), classes=bad)


def test_noadapt_is_the_plain_model(engine: fozo.Engine, tmp_path: Path) -> None:
    method = fozo.NoAdapt(engine)
    plain = random_vit()(torch.from_numpy(BATCHES[0])).numpy()
    np.testing.assert_allclose(method(BATCHES[0]), plain, atol=1e-5)
    method.save(tmp_path / "state.npz")
    method.restore(tmp_path / "state.npz")
    method.reset()


class TestJournal:
    def test_replays_to_the_same_prompts(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
    ) -> None:
        path = tmp_path / "run.journal"
        method = PromptFOZO(engine, source, passes=4, seed=11, journal=path)
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
        method = PromptFOZO(engine, source, journal=path)
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
        first = PromptFOZO(engine, source, journal=path)
        first(BATCHES[0])
        first.save(state)
        first(BATCHES[1])  # on record, but after the saved state: the power goes now
        second = PromptFOZO(engine, source, journal=path)
        second.restore(state)
        second(BATCHES[1])
        np.testing.assert_array_equal(second.prompts, first.prompts)
        np.testing.assert_array_equal(fozo.replay(path), first.prompts)

    def test_of_another_run_is_refused(
        self, engine: fozo.Engine, source: fozo.SourceStatistics, tmp_path: Path
    ) -> None:
        path = tmp_path / "run.journal"
        PromptFOZO(engine, source, seed=1, journal=path)
        with pytest.raises(FozoError, match=r"differs in .*seed"):
            PromptFOZO(engine, source, seed=2, journal=path)

    def test_a_batch_that_cannot_be_recorded_has_not_happened(
        self,
        engine: fozo.Engine,
        source: fozo.SourceStatistics,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        method = PromptFOZO(engine, source, journal=tmp_path / "run.journal")
        method(BATCHES[0])
        before = method.state()

        def full(self: Journal, step: Step, point: np.ndarray) -> None:
            raise FozoError("disk full")

        monkeypatch.setattr(Journal, "append", full)
        with pytest.raises(FozoError, match="disk full"):
            method(BATCHES[1])
        assert method.state().keys() == before.keys()
        for name, array in method.state().items():
            np.testing.assert_array_equal(array, before[name])


def test_the_number_of_prompts_can_be_chosen(engine: fozo.Engine, source: fozo.SourceStatistics) -> None:
    assert PromptFOZO(engine, source, prompts=5).prompts.shape == (5, engine.spec.dim)
    assert fozo.create("fozo", engine, source, preset="official", prompts=1).parameters == engine.spec.dim
