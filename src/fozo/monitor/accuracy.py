"""Expected accuracy without labels.

Average confidence is no accuracy: models stay confident where they err. So it is learnt at calibration, on clean images
and on corrupted ones, how often predictions like these are right: a logistic regression of being right on what one
prediction shows (confidence, margin, entropy, at the temperature that fits the clean images), what those around it
show on average, and how far the images look from clean ones. Where calibration images have no labels, the plain model's
probabilities for the same image uncorrupted stand in for them: a prediction counts as right by what these give to it.
That is as good as the model's confidence on clean images is; the *change* against clean images depends on it less.

The interval has two parts: chance (a mean of so many predictions, each right or wrong), and the error of the
regression for a corruption that it has not seen, measured by leaving out one kind after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.types import Array, Floats

CHUNK = 40
"""Predictions that are looked at together when the regression is learnt."""
RIDGE = 1.0
TEMPERATURES = np.exp(np.linspace(-1.5, 1.5, 61))
Z95 = 1.96


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy, with an interval that should hold the truth in 95 of 100 cases."""

    value: float
    low: float
    high: float
    outside: bool = False
    """Whether the images look like nothing seen at calibration: then the interval promises too much."""
    unlabelled: bool = False
    """Whether it rests on the plain model's confidence on clean images, for want of labels."""

    def __str__(self) -> str:
        """Put it in words."""
        hint = ", if the model's confidence on clean images is honest" if self.unlabelled else ""
        hint += ", outside what was seen at calibration" if self.outside else ""
        return f"expected accuracy {self.value:.0%} ({self.low:.0%} to {self.high:.0%}{hint})"


@dataclass(frozen=True)
class Evidence:
    """Predictions of some images of one domain, and whether (or how probably) they were right."""

    domain: str
    logits: Floats
    distance: float
    """Of the images from clean ones: :meth:`fozo.monitor.drift.CleanImages.distance`."""
    right: Array


def probabilities(logits: Floats) -> Array:
    """Softmax, in double precision."""
    x = np.asarray(logits, dtype=np.float64)
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def shown(logits: Floats, temperature: float) -> Array:
    """What single predictions show: log-odds of the confidence, margin, entropy: ``[n, 3]``."""
    x = np.asarray(logits, dtype=np.float64) / temperature
    x = x - x.max(axis=1, keepdims=True)
    p = probabilities(x)
    first = np.clip(p.max(axis=1), 1e-4, 1 - 1e-4)
    second = np.sort(x, axis=1)[:, -2] if x.shape[1] > 1 else np.full(len(x), -10.0)
    entropy = -(p * np.log(p + 1e-12)).sum(axis=1)
    return np.stack([np.log(first / (1 - first)), np.minimum(-second, 10.0), entropy], axis=1)


@dataclass(frozen=True)
class Regression:
    """How often predictions are right, by what they show."""

    temperature: float
    centre: Array
    scale: Array
    weights: Array
    error: float
    """Standard deviation of its error for a kind of corruption that it was not shown."""

    @classmethod
    def of(cls, evidence: Sequence[Evidence], temperature: float) -> Regression:
        """Learn it."""
        parts = [part for each in evidence for part in _chunks(each)]
        columns = [_columns(shown(part.logits, temperature), part.distance) for part in parts]
        right = [part.right for part in parts]
        fitted = _fit(np.concatenate(columns), np.concatenate(right))
        kinds = np.array([part.domain.partition("/")[0] for part in parts])
        excess = []
        for kind in np.unique(kinds):
            others = [i for i in range(len(parts)) if kinds[i] != kind]
            if not others:
                continue
            unseen = _fit(np.concatenate([columns[i] for i in others]), np.concatenate([right[i] for i in others]))
            for i in np.flatnonzero(kinds == kind):
                p = _predict(columns[i], *unseen)
                # What remains of the squared error beyond that of chance is the regression's own.
                excess.append((p.mean() - right[i].mean()) ** 2 - np.square(p - right[i]).sum() / len(p) ** 2)
        error = float(np.sqrt(max(np.mean(excess), 0.0))) if excess else 0.0
        return cls(temperature, *fitted, error)

    def probabilities(self, shown: Array, distance: float) -> Array:
        """Probability of being right for each of the predictions of one domain, given what they show."""
        return _predict(_columns(shown, distance), self.centre, self.scale, self.weights)

    def estimate(self, shown: Array, distance: float, *, outside: bool = False, unlabelled: bool = False) -> Estimate:
        """Estimate the accuracy of predictions of one domain."""
        p = self.probabilities(shown, distance)
        value = float(p.mean())
        half = Z95 * float(np.sqrt(self.error**2 + (p * (1 - p)).sum() / len(p) ** 2))
        return Estimate(value, max(0.0, value - half), min(1.0, value + half), outside, unlabelled)


def fit_temperature(logits: Floats, labels: npt.NDArray[np.integer]) -> float:
    """Find the temperature at which clean predictions are likeliest (Guo et al., 2017)."""
    x = np.asarray(logits, dtype=np.float64)
    x = x - x.max(axis=1, keepdims=True)
    own = x[np.arange(len(x)), labels]
    losses = [(np.log(np.exp(x / t).sum(axis=1)) - own / t).mean() for t in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmin(losses))])


def _chunks(evidence: Evidence) -> list[Evidence]:
    """Cut predictions into groups of about :data:`CHUNK`: means over more of them are another thing."""
    count = max(1, len(evidence.logits) // CHUNK)
    pairs = zip(np.array_split(evidence.logits, count), np.array_split(evidence.right, count), strict=True)
    return [Evidence(evidence.domain, logits, evidence.distance, right) for logits, right in pairs]


def _columns(shown: Array, distance: float) -> Array:
    around = np.append(shown.mean(axis=0), np.log(distance + 0.05))
    return np.concatenate([shown, np.broadcast_to(around, (len(shown), len(around)))], axis=1)


def _predict(columns: Array, centre: Array, scale: Array, weights: Array) -> Array:
    score = np.clip((columns - centre) / scale @ weights[1:] + weights[0], -30, 30)
    return np.asarray(1 / (1 + np.exp(-score)))


def _fit(columns: Array, right: Array) -> tuple[Array, Array, Array]:
    """Logistic regression by Newton's method, with a ridge on all but the intercept."""
    centre, scale = columns.mean(axis=0), columns.std(axis=0) + 1e-9
    x = np.concatenate([np.ones((len(columns), 1)), (columns - centre) / scale], axis=1)
    weights, ridge = np.zeros(x.shape[1]), RIDGE * np.eye(x.shape[1])
    ridge[0, 0] = 1e-6
    for _ in range(40):
        p = 1 / (1 + np.exp(-np.clip(x @ weights, -30, 30)))
        curvature = (x.T * (p * (1 - p) + 1e-9)) @ x + ridge
        step = np.linalg.solve(curvature, x.T @ (right - p) - ridge @ weights)
        weights = weights + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    return centre, scale, weights
