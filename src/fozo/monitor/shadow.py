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

from fozo.monitor.regression import Regression, prediction_features
from fozo.types import Array, Floats

PAIRS = 128  # most recent pairs that are compared
MIN_PAIRS = 16


@dataclass(frozen=True)
class Comparison:
    """The most recent pairs of predictions, plain and adapted."""

    pairs: int
    agreement: float  # fraction of equal predictions
    gain: float | None = None  # expected accuracy of the adapted model minus that of the plain one
    error: float | None = None  # its standard error, without what both predictions share

    @property
    def hurts(self) -> bool:
        """Whether adaptation is significantly worse: a guard begins."""
        return self.gain is not None and self.error is not None and self.gain < -2 * self.error

    @property
    def may_hurt(self) -> bool:
        """Whether it is worse by one standard error: a guard that has begun goes on, so that it does not flutter."""
        return self.gain is not None and self.error is not None and self.gain < -self.error


class Shadow:
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

    def compare(self, plain: Regression | None, adapted: Regression | None, where: Array | None) -> Comparison | None:
        """Compare the pairs; ``where`` are the coordinates of the recent images."""
        if len(self.pairs) < MIN_PAIRS:
            return None
        same = self.pairs[:, 6] > 0
        agreement, gain, error = float(same.mean()), None, None
        if where is not None and plain is not None and adapted is not None:
            p_plain, error_plain = plain.predict(self.pairs[:, :3], where)
            p_adapted, error_adapted = adapted.predict(self.pairs[:, 3:6], where)
            gains = np.where(same, 0.0, p_adapted - p_plain)
            gain = float(gains.mean())
            # Both are of the same images: errors that both regressions share cancel in the difference.
            unshared = np.sqrt(max(1 - plain.correlation(adapted), 0.0))
            errors = unshared * np.hypot(error_plain, error_adapted) * (1 - agreement)
            error = float(np.hypot(gains.std() / np.sqrt(len(gains)), errors))
        return Comparison(len(same), agreement, gain, error)
