"""A monitor of a detector: drift in words, no expected accuracy, boxes passed through."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.engines.blackbox import black_box
from tests.methods.test_frames import hazy, scenes


def detect(images: Any) -> list[str]:
    return [f"boxes of {len(images)}"]


@pytest.mark.parametrize("corruptions", [False, True])
def test_drift_is_named_and_nothing_is_expected_of_boxes(corruptions: bool, tmp_path: Path) -> None:
    clean = np.ascontiguousarray(scenes(48)[..., ::-1])
    adapter = fozo.adapter(black_box(detect, name="boxes", image_size=(48, 64), mean=0, std=1), clean)
    made = fozo.Reference.collect(adapter, clean, corruptions=corruptions, sample=2)
    made.save(tmp_path / "monitor.npz")
    reference = fozo.Reference.load(tmp_path / "monitor.npz")
    assert (reference.signatures is not None) == corruptions and not reference.expects_accuracy
    monitor = fozo.Monitor(reference, shadow=1.0).watch(adapter)
    for seed in range(1, 4):
        assert adapter(scenes(8, seed=seed)[..., ::-1]) == ["boxes of 8"]
    assert monitor.metrics()["drift"] == 0 and monitor.status.images == 24
    for seed in range(4, 8):
        adapter(hazy(scenes(8, seed=seed))[..., ::-1])
    status = monitor.status
    assert status.drift.drift_detected and "contrast" in status.sentence
    assert (status.accuracy, status.relative_accuracy, status.shadow) == (None, None, None)
    assert "accuracy" not in monitor.sentence and not [name for name in monitor.metrics() if "accuracy" in name]
    adapter.save(tmp_path / "state")
    adapter.reset()
    assert monitor.status.images == 0
    adapter.restore(tmp_path / "state")
    assert monitor.status.images == 56


def test_frames_are_watched_size_by_size() -> None:
    adapter = fozo.adapter(lambda frame: "boxes", [*scenes(24), *scenes(24, 32, 32)], channels="bgr")
    one = adapter.front.adapters[48, 64]
    pixels = np.ascontiguousarray(scenes(24)[..., ::-1])
    monitor = fozo.Monitor(fozo.Reference.collect(one, pixels, corruptions=False)).watch(one)
    adapter([*hazy(scenes(24, seed=2)), *scenes(8, 32, 32, seed=3)])
    assert monitor.status.images == 24 and monitor.drift.drift_detected
