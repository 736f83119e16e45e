"""Camera faults on made sequences: a fixed camera's scene with sensor noise, to which something happens."""

import numpy as np
import pytest

from fozo.monitor.faults import LASTING, FaultDetector
from fozo.types import Floats


def scene(seed: int) -> Floats:
    """A picture of large shapes, ``[3, 64, 64]`` in [0, 1]."""
    coarse = np.random.default_rng(seed).random((3, 8, 8))
    return np.asarray(np.repeat(np.repeat(coarse, 8, axis=1), 8, axis=2), dtype=np.float32)


def frames(count: int, picture: Floats, seed: int = 0, noise: float = 0.01) -> Floats:
    """Frames of it, each with its own noise."""
    rng = np.random.default_rng(seed)
    return np.asarray(np.clip(picture + rng.normal(0, noise, (count, *picture.shape)), 0, 1), dtype=np.float32)


def faults_of(*parts: Floats) -> list[tuple[str, int]]:
    detector = FaultDetector((64, 64))
    state = detector.init()
    frames = np.concatenate(parts)
    events = []
    for frame in frames:
        state, shown = detector.look(state, frame)
        state, new_events = detector.count(state, shown, 0.0)
        events += new_events
    return [(event.name, event.image) for event in events]


GOOD = frames(40, scene(0))


def test_neither_dusk_nor_unrelated_images_nor_a_flicker_are_faults() -> None:
    dusk = [frames(10, scene(0) * level, seed=i) for i, level in enumerate(np.linspace(1, 0.5, 6))]
    assert faults_of(GOOD, *dusk) == []
    assert faults_of(*(frames(1, scene(seed)) for seed in range(60))) == []
    flicker = frames(LASTING["black"] - 1, 0 * scene(0))
    assert not any(name == "black" for name, _ in faults_of(GOOD, flicker, GOOD))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("black", frames(20, 0 * scene(0))),
        ("covered", frames(20, 0.3 + 0 * scene(0))),
        ("over-exposed", np.clip(GOOD[:20] + 0.9, 0, 1)),
        ("frozen", np.repeat(GOOD[-1:], 20, axis=0)),
    ],
)
def test_each_fault_begins_and_ends(name: str, part: Floats) -> None:
    """Dated back to the first frame, though it counts a few frames later."""
    assert {(name, 41), (f"{name} over", 61)} <= set(faults_of(GOOD, part, GOOD))
