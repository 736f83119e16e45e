from __future__ import annotations

import numpy as np
import pytest
from scipy.special import softmax

from fozo.monitor.accuracy import Estimate, prediction_features
from fozo.monitor.quality import QualityStatistics
from fozo.monitor.regression import Evidence, Regression
from fozo.monitor.signatures import Coordinates
from fozo.types import Array, Floats
from tests.monitor.conftest import Material

CLASSES, WIDTH = 10, 8
LEVELS = (0, 1, 2, 3)


class Kind:
    """A kind of corruption: it lies in a direction of its own, and makes a model boast, or modest."""

    def __init__(self, number: int) -> None:
        rng = np.random.default_rng(number)
        self.number, self.boast = number, (0.5, 1.0, 2.0)[number % 3]
        self.way = rng.standard_normal(WIDTH)
        self.way *= 4 / np.linalg.norm(self.way)

    def see(self, level: int, count: int, seed: int) -> tuple[Floats, Array, Array, Array]:
        """Logits, places, what the model said of the clean images, which is too modest, and what is right."""
        rng = np.random.default_rng((seed, self.number, level))
        labels, noise = rng.integers(CLASSES, size=count), rng.standard_normal((2, count, CLASSES))
        truth = np.eye(CLASSES)[labels]
        clean = 2 * (noise[0] + 3 * truth)
        logits = clean if not level else 2 * self.boast * (0.8 * noise[0] + 0.6 * noise[1] + (3 - 0.7 * level) * truth)
        places = level * self.way + rng.standard_normal((count, WIDTH))
        named = logits.argmax(axis=1)
        return logits, places, softmax(clean, axis=1)[np.arange(count), named], 1.0 * (named == labels)


def evidence(kinds: list[Kind], labelled: bool) -> list[Evidence]:
    seen = [("clean", kinds[0].see(0, 512, 1))]
    seen += [(str(kind.number), kind.see(level, 64, 2 + level)) for kind in kinds for level in LEVELS[1:]]
    return [Evidence(name, *facts[:3], facts[3] if labelled else None) for name, facts in seen]


@pytest.fixture(scope="module")
def kinds() -> list[Kind]:
    return [Kind(number) for number in range(12)]


@pytest.mark.parametrize("labelled", [True, False])
def test_accuracy_is_expected_where_confidence_deceives(kinds: list[Kind], labelled: bool) -> None:
    """Kinds that make a model boast, and kinds that make it modest: average confidence is then far off."""
    regression = Regression.of(evidence(kinds, labelled))
    clean = kinds[0].see(0, 4000, 99)[3].mean()
    errors, deceived, inside = [], [], []
    for kind in kinds:
        for level in LEVELS[1:]:
            logits, places, _, right = kind.see(level, 400, 50 + level)
            estimate = regression.estimate(
                prediction_features(logits), Coordinates(places.mean(axis=0), 400), relative=not labelled
            )
            truth = right.mean() / (1.0 if labelled else clean)
            errors.append(abs(estimate.value - truth))
            deceived.append(abs(softmax(logits, axis=1).max(axis=1).mean() - right.mean()))
            inside.append(estimate.low <= truth <= estimate.high)
    assert np.mean(errors) < (0.07 if labelled else 0.11) < 0.15 < np.mean(deceived)
    assert np.mean(inside) > 0.85 or not labelled


def test_what_was_never_seen_is_less_sure(kinds: list[Kind]) -> None:
    regression = Regression.of(evidence(kinds, labelled=True))
    logits, places, _, _ = kinds[0].see(2, 64, 77)
    near, far = Coordinates(places.mean(axis=0), 64), Coordinates(-10 * kinds[0].way, 64)
    assert (
        regression.mean(prediction_features(logits), near)[1]
        < 0.6 * regression.mean(prediction_features(logits), far)[1]
    )


def test_few_images_are_not_far_by_chance_alone(kinds: list[Kind]) -> None:
    regression = Regression.of(evidence(kinds, labelled=True))
    logits, places, _, _ = kinds[0].see(0, 400, 78)
    said = [
        regression.mean(prediction_features(logits[i : i + 2]), Coordinates(places[i : i + 2].mean(axis=0), 2))[0]
        for i in range(200)
    ]
    assert np.mean(said) == pytest.approx(
        regression.mean(prediction_features(logits), Coordinates(places.mean(axis=0), 400))[0], abs=0.05
    )


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_a_model_that_is_always_right_or_wrong_has_finite_numbers(right: float) -> None:
    logits, places, _, _ = Kind(0).see(1, 80, 0)
    facts = logits, places, np.full(80, 0.5 + 0.49 * (2 * right - 1)), np.full(80, right)
    regression = Regression.of([Evidence("clean", *facts), Evidence("fog", *facts)])
    estimate = regression.estimate(prediction_features(logits), Coordinates(places.mean(axis=0), 80))
    assert estimate.low <= estimate.value <= estimate.high and abs(estimate.value - right) < 0.2


def test_it_holds_for_real_images_and_their_corruptions(material: Material) -> None:
    quality, signatures, adapter = (
        QualityStatistics(material.adapter.engine.spec),
        material.reference.signatures,
        material.adapter.clone(),
    )
    regression = material.reference.adapted
    assert regression is not None and signatures is not None and not material.reference.unlabelled
    errors = []
    for kind, severity in (("clean", 0), ("fog", 4), ("gaussian_noise", 4), ("contrast", 2), ("pixelate", 4)):
        some = slice(700, 860)
        images = material.images(some, kind, severity)
        adapter.reset()
        logits = np.concatenate([adapter(part) for part in np.array_split(images, 8)])
        estimate = regression.estimate(prediction_features(logits), signatures.coordinates(quality(images)))
        truth = float((logits.argmax(axis=1) == material.labels[some]).mean())
        errors.append(abs(estimate.value - truth))
        assert estimate.low - 0.03 <= truth <= estimate.high + 0.03, (kind, truth, estimate)
    assert np.mean(errors) < 0.08


def test_an_estimate_says_what_it_is_of() -> None:
    words = str(Estimate.about(0.5, 0.05, outside=True, relative=True))
    assert words == "expected accuracy 50% of that on clean images (39% to 61%, outside what was seen at calibration)"
    assert str(Estimate.about(0.99, 0.05, outside=False, relative=False)) == "expected accuracy 99% (88% to 100%)"


def test_two_classes_and_one_have_margins_too() -> None:
    assert np.isfinite(prediction_features(np.array([[0.3, 1.0]]))).all()
    assert np.isfinite(prediction_features(np.array([[900.0], [-900.0]]))).all()
