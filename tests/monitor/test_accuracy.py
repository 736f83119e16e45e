from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from fozo.monitor.accuracy import Evidence, Regression, fit_temperature, shown
from fozo.monitor.looks import Looker
from fozo.types import Floats
from tests.monitor.conftest import Material

CLASSES = 10


def predictions(count: int, signal: float, boast: float, seed: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Logits of a model that is right the oftener the stronger the signal, and boasts of it, and the labels."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=count)
    logits = rng.standard_normal((count, CLASSES))
    logits[np.arange(count), labels] += signal
    return boast * logits, labels


def test_the_temperature_of_a_boaster_is_found() -> None:
    logits, labels = predictions(4000, 3.0, 1.0, 0)
    own = fit_temperature(logits, labels)
    assert fit_temperature(2 * logits, labels) == pytest.approx(2 * own, rel=0.06)


def test_accuracy_is_expected_where_confidence_deceives() -> None:
    """Models that grow surer of themselves as they get worse: average confidence is then far off."""
    boasts = {0: 1.0, 1: 1.4, 2: 1.8, 3: 2.2}
    evidence = []
    for level, boast in boasts.items():
        for kind in range(4):
            logits, labels = predictions(320, 3.0 - 0.7 * level + 0.1 * kind, boast, 10 * level + kind)
            evidence.append(
                Evidence(f"{kind}/{level}", logits, 0.1 * np.exp(level) - 0.05, 1.0 * (logits.argmax(axis=1) == labels))
            )
    regression = Regression.of(evidence, 1.0)
    errors, deceived, inside = [], [], []
    for level, boast in boasts.items():
        for seed in range(8):
            logits, labels = predictions(200, 3.0 - 0.7 * level + 0.15, boast, 1000 + 10 * level + seed)
            truth = float((logits.argmax(axis=1) == labels).mean())
            estimate = regression.estimate(shown(logits, 1.0), 0.1 * np.exp(level) - 0.05)
            errors.append(abs(estimate.value - truth))
            odds = np.exp(logits - logits.max(axis=1, keepdims=True))
            deceived.append(abs((1 / odds.sum(axis=1)).mean() - truth))
            inside.append(estimate.low <= truth <= estimate.high)
    assert np.mean(errors) < 0.05 < 0.1 < np.mean(deceived)
    assert np.mean(inside) > 0.85


def test_it_holds_for_real_images_and_their_corruptions(material: Material) -> None:
    looker, clean, adapter = Looker(material.adapter.engine.spec), material.reference.clean, material.adapter.clone()
    regression = material.reference.adapted
    assert regression is not None and not material.reference.unlabelled
    errors = []
    for kind, severity in (("clean", 0), ("fog", 4), ("gaussian_noise", 4), ("contrast", 2), ("pixelate", 4)):
        some = slice(700, 860)
        images = material.images(some, kind, severity)
        adapter.reset()
        logits = np.concatenate([adapter(part) for part in np.array_split(images, 8)])
        estimate = regression.estimate(
            shown(logits, regression.temperature), clean.distance(clean.whitening(looker(images)))
        )
        truth = float((logits.argmax(axis=1) == material.labels[some]).mean())
        errors.append(abs(estimate.value - truth))
        assert estimate.low - 0.03 <= truth <= estimate.high + 0.03, (kind, truth, estimate)
    assert np.mean(errors) < 0.08


def test_an_estimate_says_what_it_is_of() -> None:
    logits, labels = predictions(80, 2.0, 1.0, 0)
    regression = Regression.of([Evidence("clean/0", logits, 0.1, 1.0 * (logits.argmax(axis=1) == labels))], 1.0)
    words = str(regression.estimate(shown(logits, 1.0), 0.1, outside=True, unlabelled=True))
    assert "if the model's confidence on clean images is honest, outside what was seen" in words


def test_two_classes_and_one_have_margins_too() -> None:
    assert np.isfinite(shown(np.array([[0.3, 1.0]]), 1.0)).all()
    assert np.isfinite(shown(np.array([[900.0], [-900.0]]), 1.0)).all()
