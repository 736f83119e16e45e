"""Camera faults on made sequences: a fixed camera's scene with sensor noise, to which something happens."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.monitor.faults import LASTING, SENTENCES, FaultDetector
from fozo.types import Floats


def scene(seed: int) -> Floats:
    """A picture of large shapes, ``[3, 64, 64]`` in [0, 1]."""
    coarse = np.random.default_rng(seed).random((3, 8, 8))
    return np.asarray(np.repeat(np.repeat(coarse, 8, axis=1), 8, axis=2), dtype=np.float32)


def frames(count: int, picture: Floats, seed: int = 0, noise: float = 0.01) -> Floats:
    """Frames of it, each with its own noise."""
    rng = np.random.default_rng(seed)
    return np.asarray(np.clip(picture + rng.normal(0, noise, (count, *picture.shape)), 0, 1), dtype=np.float32)


def faults_of(*parts: Floats) -> list[tuple[str, bool, int]]:
    detector = FaultDetector((64, 64))
    found = []
    for part in parts:
        for batch in (part[start : start + 5] for start in range(0, len(part), 5)):
            found += [(change.name, change.began, change.image) for change in detector.update(batch)]
    return found


GOOD = frames(40, scene(0))


def test_a_camera_that_works_has_no_fault() -> None:
    dusk = [frames(10, scene(0) * level, seed=i) for i, level in enumerate(np.linspace(1, 0.5, 6))]
    assert faults_of(GOOD, *dusk) == []


def test_unrelated_images_have_no_fault() -> None:
    assert faults_of(np.concatenate([frames(1, scene(seed)) for seed in range(60)])) == []


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("black", frames(20, 0 * scene(0))),
        ("covered", frames(20, 0.3 + 0 * scene(0))),
        ("over-exposed", np.clip(GOOD[:20] + 0.9, 0, 1)),
        ("turned", frames(20, scene(1), seed=1)),
    ],
)
def test_each_fault_begins_and_ends(name: str, part: Floats) -> None:
    found = faults_of(GOOD, part, GOOD)
    assert (name, True, 41) in found  # dated back to the first frame, though it counts a few frames later
    assert (name, False, 61) in found
    assert name in SENTENCES


def test_a_frozen_picture_is_told_from_a_still_scene() -> None:
    frozen = np.repeat(GOOD[-1:], 20, axis=0)
    assert faults_of(GOOD, frozen, GOOD) == [("frozen", True, 41), ("frozen", False, 61)]


def test_a_flicker_is_no_fault() -> None:
    flicker = frames(LASTING["black"] - 1, 0 * scene(0))
    assert not any(name == "black" for name, _, _ in faults_of(GOOD, flicker, GOOD))
