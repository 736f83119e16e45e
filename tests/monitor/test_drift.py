from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from fozo.errors import FozoError
from fozo.monitor.drift import CleanImages, DriftDetector
from fozo.monitor.quality import QualityStatistics
from fozo.types import Array
from tests.monitor.conftest import CALIBRATION, Material

FEATURES = 12


def invented(count: int, seed: int, shift: float = 0.0) -> Array:
    """Features that go together, with a heavy tail, as those of images do."""
    rng = np.random.default_rng(seed)
    mix = np.random.default_rng(99).standard_normal((FEATURES, FEATURES)) / 3 + np.eye(FEATURES)
    return np.asarray(rng.standard_t(6, (count, FEATURES)) @ mix + 5 + shift)


@pytest.fixture(scope="module")
def clean() -> CleanImages:
    return CleanImages.of(invented(400, 0))


@pytest.mark.parametrize("size", [1, 4, 32, 256])
def test_thresholds_and_p_values_agree(clean: CleanImages, size: int) -> None:
    for rate, content in product((0.01, 1e-4, 1e-6), (0.0, 0.25)):
        threshold = clean.threshold(rate, size, content)
        below, at, above = (clean.p_value(factor * threshold, size, content) for factor in (0.99, 1.0, 1.01))
        assert above < rate < below and at == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize("size", [1, 8, 64])
def test_false_alarms_of_real_clean_images_keep_to_the_rate(material: Material, size: int) -> None:
    """A small version of benchmarks/monitor.py: 2000 batches of real images that were not calibrated on."""
    quality = QualityStatistics(material.adapter.engine.spec)
    features = quality(material.images(slice(CALIBRATION, None)))
    clean = material.reference.clean
    rows = clean.whitening(features)
    picks = np.random.default_rng(size).integers(len(rows), size=(2000, size))
    p = np.array([clean.p_value(clean.distance(rows[pick]), size, 0.0) for pick in picks])
    # 20 are expected at 1 in 100 and 2 at 1 in 1000; images recur and 300 calibrated, so twice that is allowed for.
    assert (p < 1e-2).sum() <= 45 and (p < 1e-3).sum() <= 10
    assert (p < 0.5).mean() > 0.25  # the test has power


def test_a_shift_is_noticed_and_dated_and_its_end_too(clean: CleanImages) -> None:
    detector = DriftDetector(clean)
    for start in range(0, 96, 8):
        assert not detector.update(invented(8, start)).drift_detected
    assert detector.drift.since is None and detector.drift.p_value > 1e-4
    found = [detector.update(invented(8, 1000 + start, 2.0), time=60.0 + start) for start in range(0, 64, 8)]
    assert found[1].drift_detected and found[1].is_drift and found[1].warning_detected
    assert found[-1].since == 97 and found[-1].since_time == 60.0  # the first that was shifted
    assert found[-1].distance > found[-1].threshold and found[-1].p_value < 1e-4
    assert found[-1].as_dict()["is_drift"] == 1 and "p_val" in found[-1].as_dict()
    over = [detector.update(invented(8, 2000 + start)) for start in range(0, 64, 8)]
    assert not over[3].drift_detected and over[3].since is None  # after 16 clean images, and a warning at most
    assert detector.seen == 96 + 64 + 64


def test_single_images_add_up(clean: CleanImages) -> None:
    detector = DriftDetector(clean)
    for row in invented(40, 5):
        assert not detector.update(row[None]).drift_detected
    found = [detector.update(row[None]).drift_detected for row in invented(40, 6, 1.5)]
    assert found[-1] and 0 < found.index(True) < 20  # not by the first alone


def test_frames_of_one_scene_are_not_independent(clean: CleanImages) -> None:
    scene = invented(40, 7)[np.argmax(np.square(clean.whitening(invented(40, 7))).sum(axis=1) > clean.length)]
    frames = scene + 0.01 * invented(64, 8)
    rows = clean.whitening(frames)
    assert clean.independent(rows) < 1.2
    assert clean.p_value(clean.distance(rows), clean.independent(rows), 0.0) > 1e-4
    assert clean.p_value(clean.distance(rows), 64, 0.0) < 1e-6  # what taking them for independent would have said


def test_content_is_allowed_for(clean: CleanImages) -> None:
    rows = clean.whitening(invented(2000, 9, 0.35))
    assert 0.03 < clean.distance(rows) < 0.2
    assert clean.p_value(clean.distance(rows), 2000, 0.0) < 1e-6
    assert clean.p_value(clean.distance(rows), 2000, 0.25) == 1.0


def test_what_cannot_be_is_refused(clean: CleanImages) -> None:
    with pytest.raises(FozoError, match="at least 16 clean images, not 5"):
        CleanImages.of(invented(5, 0))
    with pytest.raises(FozoError, match=r"rate of false alarms is 0\.7"):
        DriftDetector(clean, 0.7)
    with pytest.raises(FozoError, match="content is nan"):
        DriftDetector(clean, content=float("nan"))
    detector = DriftDetector(clean)
    assert detector.update(np.zeros((0, FEATURES))) == detector.drift  # no sound image, no verdict
