import numpy as np
import pytest
from scipy.special import logit

from fozo.monitor.accuracy import (
    ADAPTED_ERROR,
    MIN_IMAGES,
    CleanConfidence,
    Estimate,
    different_pictures,
    prediction_features,
)
from fozo.monitor.quality import QualityStatistics
from fozo.types import Array
from tests.monitor.conftest import Material, run, watched

CLASSES = 10


def predictions(confidence: float, count: int, seed: int) -> tuple[Array, Array]:
    """Logits of two classes, and which are right: far fewer than their confidence says, and ever fewer as it falls."""
    rng = np.random.default_rng(seed)
    confidences = np.clip(confidence + 0.1 * rng.standard_normal(count), 0.5, 0.999)
    correct = rng.random(count) < 0.7 - 1.3 * (0.9 - confidences)
    return np.column_stack([logit(confidences), np.zeros(count)]), correct.astype(np.float64)


def clean_confidence(labelled: bool = True) -> CleanConfidence:
    logits, correct = predictions(0.9, 4000, 0)
    return CleanConfidence.of(prediction_features(logits), correct if labelled else None, ADAPTED_ERROR)


def test_accuracy_is_expected_where_confidence_deceives() -> None:
    clean = clean_confidence()
    for seed, confidence in enumerate((0.9, 0.8, 0.7, 0.6)):
        logits, correct = predictions(confidence, 400, 1 + seed)
        estimate = clean.estimate(prediction_features(logits), 400)
        assert estimate is not None and abs(estimate.value - correct.mean()) < 0.06
        assert estimate.low < correct.mean() < estimate.high < estimate.low + 0.25


def test_few_pictures_widen_the_interval_and_fewer_say_nothing() -> None:
    features = prediction_features(predictions(0.8, 400, 1)[0])
    clean = clean_confidence()
    assert clean.estimate(features, MIN_IMAGES - 1) is None
    few = clean.estimate(features, MIN_IMAGES)
    many = clean.estimate(features, 400)
    assert few is not None and many is not None and few.value == many.value
    assert few.high - few.low > 1.5 * (many.high - many.low)


def test_without_labels_it_is_a_fraction_of_the_clean_accuracy_and_at_most_all_of_it() -> None:
    clean = clean_confidence(labelled=False)
    for confidence, low, high in ((0.9, 0.95, 1.0), (0.6, 0.4, 0.7), (0.99, 1.0, 1.0)):
        estimate = clean.estimate(prediction_features(predictions(confidence, 400, 1)[0]), 400, relative=True)
        assert estimate is not None and estimate.relative
        assert low <= estimate.value <= high and 0 <= estimate.low <= estimate.value <= estimate.high <= 1


@pytest.mark.parametrize("correct", [0.0, 1.0])
@pytest.mark.parametrize("confidence", [0.0, 900.0])
def test_a_model_that_is_always_right_or_wrong_has_finite_numbers(correct: float, confidence: float) -> None:
    features = prediction_features(confidence * np.eye(CLASSES))
    clean = CleanConfidence.of(features, np.full(CLASSES, correct), ADAPTED_ERROR)
    estimate = clean.estimate(features, 100)
    assert estimate is not None and 0 <= estimate.low <= estimate.value <= estimate.high <= 1
    assert abs(estimate.value - correct) < 0.01


def test_it_holds_for_real_images_and_their_corruptions(material: Material) -> None:
    adapter = material.adapter.clone()
    quality = QualityStatistics(adapter.engine.spec)
    errors = []
    inside = 0
    for kind, severity in (("clean", 0), ("fog", 4), ("gaussian_noise", 4), ("contrast", 2), ("pixelate", 4)):
        images = material.images(slice(700, 860), kind, severity)
        adapter.reset()
        logits = run(adapter, images)
        estimate = material.reference.expect(prediction_features(logits), quality(images))
        truth = float((logits.argmax(axis=1) == material.labels[700:860]).mean())
        assert estimate is not None
        errors.append(abs(estimate.value - truth))
        inside += estimate.low <= truth <= estimate.high
    assert np.mean(errors) < 0.08 and inside >= 4  # fog deceives this model by 15 points


def test_one_scene_has_no_expected_accuracy_and_neither_has_a_broken_camera(material: Material) -> None:
    adapter, monitor = watched(material)
    run(adapter, material.images(slice(400, 464)))
    assert "expected_accuracy" in adapter.metrics() and "unknown" not in monitor.sentence
    black = np.zeros((16, 28, 28, 1), dtype=np.uint8)
    noise = np.random.default_rng(0).integers(-4, 5, (64, 28, 28, 1))
    scene = np.clip(material.pixels[401].astype(int) + noise, 0, 255).astype(np.uint8)
    for pixels, faults in ((black, True), (scene, False)):
        adapter.reset()
        run(adapter, adapter.engine.spec.normalise(pixels))
        status = monitor.status
        assert bool(status.faults) == faults and status.expected is None and status.accuracy_unknown
        assert "expected accuracy unknown" in status.sentence and "expected_accuracy" not in adapter.metrics()
    adapter.reset()
    run(adapter, adapter.engine.spec.normalise(black))
    for start, known in ((400, False), (416, True)):  # black pictures do not count
        run(adapter, material.images(slice(start, start + 12)))
        assert (monitor.status.accuracy is not None) == known


def test_frames_of_one_scene_are_one_picture_and_a_tour_is_its_scenes() -> None:
    rng = np.random.default_rng(0)
    clean = rng.standard_normal((64, 40))
    length = 40.0
    assert different_pictures(clean, length) == 64
    assert different_pictures(0.6 * clean, length) == 64  # as in fog
    scene = clean[0] + 0.1 * rng.standard_normal((64, 40))
    assert different_pictures(scene, length) == 1
    tour = clean[np.arange(64) // 4 % 3] + 0.1 * rng.standard_normal((64, 40))
    assert different_pictures(tour, length) == 3


def test_an_estimate_says_what_it_is_of_and_one_class_has_a_confidence_too() -> None:
    assert str(Estimate(0.5, 0.393, 0.607, relative=True)) == (
        "expected accuracy 50% of that on clean images (39% to 61%)"
    )
    assert str(Estimate(0.99, 0.883, 1.0)) == "expected accuracy 99% (88% to 100%)"
    assert np.isfinite(prediction_features(np.array([[900.0], [-900.0]]))).all()
