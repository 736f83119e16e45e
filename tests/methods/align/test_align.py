"""Align as a user meets it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fozo
from fozo.core.statistics import Statistics
from fozo.errors import FozoError
from fozo.state import same
from fozo.types import NO_KNOBS, Batch, Knobs, Tap, Taps
from tests.helpers import EngineAround, random_images, random_vit

BATCHES = [random_images(20, seed=i) for i in range(4)]
SHIFTED = [0.3 * batch + 1.0 for batch in BATCHES]


class Watched(EngineAround):
    """An engine that keeps what was asked of it and what it reported, and breaks down after some runs if told to."""

    def __init__(self, engine: fozo.Engine, runs: float = float("inf")) -> None:
        super().__init__(engine)
        self.runs, self.seen = runs, list[tuple[Knobs, Taps]]()

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        self.runs -= 1
        if self.runs < 0:
            raise RuntimeError("out of memory")
        found = super().run(batch, knobs, taps)
        self.seen.append((knobs, found))
        return found


def test_it_is_what_adapter_makes_and_costs_one_pass(engine: fozo.Engine, source: Statistics, tmp_path: Path) -> None:
    source.save(tmp_path / "source.safetensors")
    for method in (fozo.adapter(engine, source), fozo.adapter(random_vit(), tmp_path / "source.safetensors")):
        assert isinstance(method, fozo.Align)
        method(BATCHES[0])
        assert method.passes_per_image == 1
    chosen = fozo.adapter(engine, source, slots=2)
    assert isinstance(chosen, fozo.Align) and chosen.config.slots == 2
    with pytest.raises(FozoError, match="no option 'speed'"):
        fozo.adapter(engine, source, speed=1)


def test_the_first_images_are_predicted_as_they_are(engine: fozo.Engine, source: Statistics) -> None:
    method = fozo.Align(engine, source, equaliser_strength=0.0, centre_images=0.0)
    adapted, plain = method(SHIFTED[0]), fozo.NoAdapt(engine)(SHIFTED[0])
    # Equal up to the order of additions, which depends on how many images go through the model together.
    np.testing.assert_allclose(adapted[:8], plain[:8], atol=1e-5)
    assert np.abs(adapted[8:] - plain[8:]).max() > 1e-3


@pytest.mark.parametrize("size", [1, 20])
def test_faded_images_get_their_contrast_back_at_once(engine: fozo.Engine, source: Statistics, size: int) -> None:
    sharp, faded = BATCHES[0][:size], 0.2 * BATCHES[0][:size]
    method = fozo.Align(engine, source, mean_strength=0.0, cls_strength=0.0, covariance_strength=0.0, centre_images=0.0)
    plain = fozo.NoAdapt(engine)
    wanted = plain(sharp)
    assert np.square(method(faded) - wanted).sum() < 0.5 * np.square(plain(faded) - wanted).sum()
    method.reset()
    np.testing.assert_allclose(method(sharp), wanted, atol=0.1)


def test_tokens_end_nearer_to_their_clean_statistics(engine: fozo.Engine, source: Statistics) -> None:
    deviations = []
    for strength in (0.0, 0.15, 0.3):
        watched = Watched(engine)
        method = fozo.Align(watched, source, mean_strength=strength, covariance_strength=0.0)
        for batch in [*SHIFTED, *SHIFTED]:
            method(batch)
        knobs, taps = watched.seen[-1]
        moved = taps[Tap.PATCH_MEAN]
        if knobs.patches is not None:
            moved = moved + knobs.patches.shift
        deviations.append(float(np.square(moved[0].mean(axis=0) - source.patch_mean.mean)[1:].sum()))
    assert deviations[1] < 0.9 * deviations[0] and deviations[2] < deviations[1]


def test_each_idea_can_be_switched_off(engine: fozo.Engine, source: Statistics) -> None:
    off: dict[str, Any] = {
        "equaliser_strength": 0.0,
        "mean_strength": 0.0,
        "cls_strength": 0.0,
        "covariance_strength": 0.0,
    }
    plain = fozo.NoAdapt(engine)
    method = fozo.Align(engine, source, **off, centre_images=0.0)
    for batch in SHIFTED:
        np.testing.assert_allclose(method(batch), plain(batch), atol=1e-5)
    for name in (*off, "centre_images"):
        usual = getattr(method.config, name) or getattr(fozo.Align.PRESETS["default"], name)
        one = fozo.Align(engine, source, **{**off, "centre_images": 0.0, name: usual})
        for batch in [*SHIFTED, *SHIFTED]:
            logits = one(batch)
        assert np.abs(logits - plain(batch)).max() > 1e-3, name


@pytest.mark.parametrize("size", [1, 20])
def test_a_clean_stream_is_hardly_moved(engine: fozo.Engine, source: Statistics, size: int) -> None:
    changes = []
    for stream in (BATCHES, SHIFTED):
        method, plain = fozo.Align(engine, source, equaliser_strength=0.0), fozo.NoAdapt(engine)
        for batch in stream:
            logits = np.concatenate([method(batch[start : start + size]) for start in range(0, 20, size)])
        changes.append(np.square(logits - plain(batch)).mean())
    assert changes[0] < 0.02 * changes[1]


def test_another_domain_is_not_moved_by_the_memories_of_this_one(engine: fozo.Engine, source: Statistics) -> None:
    method = fozo.Align(engine, source, equaliser_strength=0.0, centre_images=0.0)
    for batch in SHIFTED:
        method(batch)
    inverted = 3 - 2 * BATCHES[0]
    np.testing.assert_allclose(method(inverted)[:8], fozo.NoAdapt(engine)(inverted)[:8], atol=1e-3)
    assert method.metrics()["effective_sample_size"] < 20


def test_the_shift_score_is_about_one_on_clean_images_and_far_above_it_elsewhere(
    engine: fozo.Engine, source: Statistics
) -> None:
    method = fozo.Align(engine, source)
    scores = {}
    for name, batch in (("clean", BATCHES[0]), ("shifted", SHIFTED[0])):
        method(batch)
        scores[name] = method.metrics()["shift"]
    assert 0.2 < scores["clean"] < 5 and scores["shifted"] > 20


def test_a_failure_in_mid_batch_leaves_no_trace(engine: fozo.Engine, source: Statistics) -> None:
    watched = Watched(engine)
    method = fozo.Align(watched, source)
    method(BATCHES[0])
    state, metrics, spent = method.state(), method.metrics(), method.passes_per_image
    watched.runs = 2
    with pytest.raises(RuntimeError, match="out of memory"):
        method(SHIFTED[1])
    assert same(method.state(), state)
    assert method.metrics() == metrics and method.passes_per_image == spent


def test_domains_that_alternate_keep_slots_of_their_own(engine: fozo.Engine, source: Statistics) -> None:
    method = fozo.Align(engine, source)
    for batch in SHIFTED:
        method(batch)
        method(-1.0 - 0.3 * batch)
    before = [slot.images for slot in method.state().slots]
    assert len(before) <= 12 and sorted(before)[-2] > 30
    mixed = np.concatenate([SHIFTED[0][:4], -1.0 - 0.3 * BATCHES[0][:4]])
    assert method(mixed).shape == (8, engine.spec.classes) and method.passes_per_image == 1


def test_a_camera_remembers_little(engine: fozo.Engine, source: Statistics, tmp_path: Path) -> None:
    method = fozo.Align(engine, source, slots=2)
    for factor in (1.0, 3.0, -2.0, 0.1):
        for batch in BATCHES:
            method(np.float32(factor) * batch + np.float32(factor))
    assert len(method.state().slots) == 2 and len(method.state().recent) == 16
    method.save(tmp_path / "state")
    spec = engine.spec
    pairs = spec.dim * (spec.dim + 1) // 2
    slot = 4 * len(spec.aligned) * pairs + 6 * spec.depth * spec.dim + 3 * 4 * len(source.descriptor.mean)
    assert (tmp_path / "state").stat().st_size < 2 * slot + 16_000


@pytest.mark.parametrize("size", [1, 3, 8, 20])
def test_any_batch_size_and_uniform_images(engine: fozo.Engine, source: Statistics, size: int) -> None:
    method = fozo.Align(engine, source)
    for images in (SHIFTED[0], np.zeros_like(BATCHES[0]), np.ones_like(BATCHES[0])):
        out = np.concatenate([method(images[i : i + size]) for i in range(0, 20, size)])
        assert out.shape == (20, engine.spec.classes) and np.isfinite(out).all()


def test_half_precision(engine: fozo.Engine, source: Statistics) -> None:
    half = fozo.Align(engine, source)(torch.from_numpy(SHIFTED[0]).bfloat16())
    assert isinstance(half, torch.Tensor) and half.isfinite().all()


def test_onnx_gives_the_same_predictions(engine: fozo.Engine, source: Statistics, tmp_path: Path) -> None:
    fozo.export(engine, tmp_path / "model.onnx")
    edge = fozo.Align(fozo.load_engine(tmp_path / "model.onnx"), source)
    here = fozo.Align(engine, source)
    for batch in SHIFTED:
        np.testing.assert_allclose(edge(batch), here(batch), atol=1e-3)


def test_without_covariances_it_does_the_rest(engine: fozo.Engine, source: Statistics) -> None:
    """Statistics of fozo 0.2 have none, and files that it exported have no matrices."""
    without = fozo.Align(engine, replace(source, patch_moments=None, noise=None))
    off = fozo.Align(engine, replace(source, noise=None), covariance_strength=0.0)
    for batch in SHIFTED:
        np.testing.assert_array_equal(without(batch), off(batch))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"mean_strength": 1.5}, "mean_strength is 1.5"),
        ({"covariance_strength": float("nan")}, "covariance_strength is nan"),
        ({"equaliser_strength": "all"}, "equaliser_strength is 'all'; give a value like 0.7"),
        ({"cls_strength": -0.1}, "cls_strength is -0.1"),
        ({"centre_images": float("inf")}, "centre_images is inf"),
        ({"slots": 0}, "slots must be above 0, not 0"),
        ({"speed": 1}, "no option 'speed'"),
        ({"preset": "mine"}, "no preset 'mine'; choose from default"),
    ],
)
def test_bad_options(engine: fozo.Engine, source: Statistics, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(FozoError, match=sentence):
        fozo.create("align", engine, source, **options)  # type: ignore[arg-type]


def test_a_state_is_continued_with_room_for_more_or_fewer_domains(
    engine: fozo.Engine, source: Statistics, tmp_path: Path
) -> None:
    method = fozo.Align(engine, source)
    for batch in BATCHES:
        method(batch)
    method.save(tmp_path / "camera.state")
    for slots in (1, 20):
        again = fozo.Align(engine, source, slots=slots)
        again.restore(tmp_path / "camera.state")
        np.testing.assert_array_equal(again.predict(SHIFTED[0]), method.predict(SHIFTED[0]))
    with pytest.raises(FozoError, match=r"saved with config.mean_strength=0.15, but this run has 0.2"):
        fozo.Align(engine, source, mean_strength=0.2).restore(tmp_path / "camera.state")
