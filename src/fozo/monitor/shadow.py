"""The shadow: the plain model predicts some of the images too, to measure whether adaptation helps.

Where both predictions name the same class, both are right or both are wrong: only pairs that differ can gain or lose.
For these the probability of being right is estimated for both (:mod:`fozo.monitor.regression`). Adaptation *hurts*
where the plain model's is higher by more than two standard errors: those of the pairs, and of the part of the
regressions' errors that both do not share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.monitor.accuracy import prediction_features
from fozo.monitor.regression import Regression
from fozo.monitor.signatures import Coordinates
from fozo.monitor.types import Stateful
from fozo.types import Array, Floats

PAIRS = 128
"""Most recent pairs that are compared."""
MIN_PAIRS = 16


@dataclass(frozen=True)
class Comparison:
    """The most recent pairs of predictions, plain and adapted."""

    pairs: int
    agreement: float
    """Fraction of equal predictions."""
    entropy_plain: float
    entropy_adapted: float
    gain: float | None = None
    """Expected accuracy of the adapted model minus that of the plain one, where it can be estimated."""
    error: float | None = None
    """Its standard error, without what both predictions share."""

    @property
    def hurts(self) -> bool:
        """Whether adaptation is significantly worse: a guard begins."""
        return self.gain is not None and self.error is not None and self.gain < -2 * self.error

    @property
    def may_hurt(self) -> bool:
        """Whether it is worse by one standard error: a guard that has begun goes on, so that it does not flutter."""
        return self.gain is not None and self.error is not None and self.gain < -self.error


class Shadow(Stateful):
    """Chooses images for the plain model, and remembers features of both predictions."""

    STATE = ("due", "pairs")

    def __init__(self, rate: float) -> None:
        self.rate, self.due = rate, 0.0
        self.pairs: Array = np.zeros((0, 7))

    def choose(self, count: int) -> npt.NDArray[np.int64]:
        """Which of the next ``count`` images the plain model predicts too: evenly spaced."""
        steps = np.floor(self.due + self.rate * np.arange(count + 1))
        self.due = (self.due + self.rate * count) % 1.0
        return np.flatnonzero(np.diff(steps) > 0)

    def add(self, plain: Floats, adapted: Floats) -> None:
        """Remember pairs of logits ``[n, classes]``: features of both, and whether they name the same class."""
        same = plain.argmax(axis=1) == adapted.argmax(axis=1)
        pairs = np.column_stack([prediction_features(plain), prediction_features(adapted), same])
        self.pairs = np.concatenate([self.pairs, pairs])[-PAIRS:]

    def forget(self) -> None:
        """Drop the pairs: they are of another domain."""
        self.pairs = self.pairs[:0]

    def compare(
        self, coordinates: Coordinates | None, plain: Regression | None, adapted: Regression | None
    ) -> Comparison | None:
        """Compare the pairs; ``coordinates`` are those of the recent images."""
        if len(self.pairs) < MIN_PAIRS:
            return None
        p, a, same = self.pairs[:, :3], self.pairs[:, 3:6], self.pairs[:, 6] > 0
        agreement = float(same.mean())
        gain = error = None
        if coordinates is not None and plain is not None and adapted is not None:
            gains = adapted.probabilities(a, coordinates) - plain.probabilities(p, coordinates)
            gains = np.where(same, 0.0, gains)
            gain = float(gains.mean())
            # Both are of the same images: errors that both regressions share cancel in the difference.
            unshared = np.sqrt(max(1 - plain.correlation(adapted), 0.0))
            errors = np.hypot(plain.mean(p, coordinates)[1], adapted.mean(a, coordinates)[1])
            error = float(np.hypot(gains.std() / np.sqrt(len(gains)), unshared * errors * (1 - agreement)))
        return Comparison(len(p), agreement, float(p[:, 2].mean()), float(a[:, 2].mean()), gain, error)
