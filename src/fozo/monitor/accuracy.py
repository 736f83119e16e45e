"""How often predictions are right, from how far their confidence has fallen below that on clean images.

    accuracy = clean accuracy - 1.3 (clean confidence - confidence)

This is DoC (Guillory et al., "Predicting with Confidence on Unseen Distributions", ICCV 2021) with a slope: predictions
become wrong faster than they become unsure. The slope was chosen on four kinds of corruption. Nothing is measured on
corrupted images; docs/monitoring.md compares it with ten other estimates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import entr, softmax

from fozo.state import State
from fozo.types import Array, Floats

SLOPE = 1.3  # by how much accuracy falls with the mean confidence
MIN_IMAGES = 16  # different pictures below which nothing is said
SAME_PICTURE = 0.05  # squared distance of features, in units of a clean image's, up to which two pictures are one
PLAIN_ERROR = 0.08  # standard error of an expected accuracy beside chance, over kinds of corruption: of a plain model
ADAPTED_ERROR = 0.03  # of an adapted one, whose confidence a corruption moves less
T95 = 2.0  # standard errors to each side of a 95 % interval
PAIRS = 128  # most recent pairs that are compared
MIN_PAIRS = 16
BEGIN_ERRORS = 2.0  # standard errors by which adaptation has to be worse for a guard to begin
END_ERRORS = 1.0  # standard errors by which it has to be worse for a guard to go on


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy, with a 95 % interval."""

    value: float
    low: float
    high: float
    relative: bool = False
    """Whether it is a fraction of the accuracy on clean images, which is unknown without labels."""

    def __str__(self) -> str:
        unit = " of that on clean images" if self.relative else ""
        return f"expected accuracy {self.value:.0%}{unit} ({self.low:.0%} to {self.high:.0%})"


def prediction_features(logits: Floats) -> Array:
    """Features of single predictions: their confidence and entropy, ``[n, 2]``; 0 without logits."""
    x = np.asarray(logits, dtype=np.float64)
    if not x.shape[1]:
        return np.zeros((len(x), 2))
    p = softmax(x, axis=1)
    return np.stack([p.max(axis=1), entr(p).sum(axis=1)], axis=1)


@dataclass(frozen=True)
class CleanConfidence(State):
    """How confident the predictions of clean images are, and how often they are right."""

    confidence: float
    """Mean of the largest probabilities."""
    accuracy: float
    """Without labels, the mean confidence."""
    images: int
    """How many clean images there were."""
    error: float
    """Standard error of an expected accuracy beside chance."""

    def __post_init__(self) -> None:
        if self.images < 1 or self.error < 0 or not (0 < self.confidence <= 1 and 0 <= self.accuracy <= 1):
            raise ValueError("a confidence is not within 0 and 1, or of no images")

    @classmethod
    def of(cls, predictions: Array, correct: Array | None, error: float) -> CleanConfidence:
        """Take it from :func:`prediction_features` of clean images, and from which are right, if that is known."""
        confidence = float(predictions[:, 0].mean())
        accuracy = confidence if correct is None else float(correct.mean())
        return cls(confidence, accuracy, len(predictions), error)

    def probabilities(self, predictions: Array) -> Array:
        """How often each of some predictions is right; only means have a meaning, single ones may be beyond 0 and 1."""
        return np.asarray(self.accuracy + SLOPE * (predictions[:, 0] - self.confidence))

    def estimate(self, predictions: Array, pictures: int, *, relative: bool = False) -> Estimate | None:
        """Expected accuracy of predictions of so many different pictures.

        ``None`` where these are too few: frames of one scene are right or wrong together, and so is their confidence.
        A ``relative`` one is a fraction of that on clean images, at most 1: what is more than that is content.
        """
        if pictures < MIN_IMAGES:
            return None
        value = float(np.clip(self.probabilities(predictions).mean(), 0, 1))
        chance = value * (1 - value) * (1 / pictures + 1 / self.images)
        margin = T95 * float(np.sqrt(chance + self.error**2))
        unit = self.accuracy if relative else 1.0
        value, low, high = np.clip(np.array([value, value - margin, value + margin]) / unit, 0, 1).tolist()
        return Estimate(value, low, high, relative)


def different_pictures(rows: Array, length: float) -> int:
    """How many different pictures there are among whitened features ``[n, f]``; ``length`` is a clean image's.

    A picture is another one where it is far from all those counted before it. So frames of a camera that stands still
    count as one, those of a camera that pans among scenes as its scenes, and images in fog or noise as themselves.
    """
    near = cdist(rows, rows, "sqeuclidean") <= SAME_PICTURE * length
    counted: list[int] = []
    for index, is_near in enumerate(near):
        if not is_near[counted].any():
            counted.append(index)
    return len(counted)


@dataclass(frozen=True)
class Comparison:
    """The most recent pairs of predictions of the same images: the plain model's and the adapted one's.

    The plain model predicts some of the images too (the shadow), to measure whether adaptation helps. Where both
    predictions name the same class, both are right or both are wrong: only pairs that differ can gain or lose. For
    these the probability of being right is estimated for both. Adaptation *hurts* where the plain model's is higher
    by more than two standard errors: those of the pairs, and of the estimates themselves.
    """

    pairs: int
    agreement: float
    """Fraction of equal predictions."""
    gain: float | None = None
    """Expected accuracy of the adapted model minus that of the plain one."""
    error: float | None = None
    """Its standard error, without what both predictions share."""

    def worse_by(self, errors: float) -> bool:
        """Whether adaptation is worse by more than some standard errors."""
        return self.gain is not None and self.error is not None and self.gain < -errors * self.error

    @property
    def hurts(self) -> bool:
        """Whether adaptation is significantly worse: a guard begins."""
        return self.worse_by(BEGIN_ERRORS)

    @property
    def may_hurt(self) -> bool:
        """Whether it is worse by one standard error: a guard that has begun goes on, so that it does not flutter."""
        return self.worse_by(END_ERRORS)

    @classmethod
    def of(cls, pairs: Array, plain: CleanConfidence | None, adapted: CleanConfidence | None) -> Comparison:
        """Compare pairs that :func:`paired` returned."""
        is_same = pairs[:, 2] > 0
        agreement = float(is_same.mean())
        if plain is None or adapted is None:
            return cls(len(pairs), agreement)
        gains = np.where(is_same, 0.0, adapted.probabilities(pairs[:, 1:]) - plain.probabilities(pairs))
        model_error = np.hypot(plain.error, adapted.error) * (1 - agreement)
        error = float(np.hypot(gains.std() / np.sqrt(len(gains)), model_error))
        return cls(len(pairs), agreement, float(gains.mean()), error)


def paired(plain: Floats, adapted: Floats) -> Array:
    """Pairs of logits ``[n, classes]``: confidences of both, and whether they name the same class: ``[n, 3]``."""
    is_same = plain.argmax(axis=1) == adapted.argmax(axis=1)
    return np.column_stack([prediction_features(plain)[:, 0], prediction_features(adapted)[:, 0], is_same])
