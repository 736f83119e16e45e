"""The shadow: the plain model predicts some of the images too, to measure whether adaptation helps.

Where both predictions name the same class, both are right or both are wrong: only pairs that differ can gain or lose.
For these the probability of being right is estimated for both (:mod:`fozo.monitor.regression`). Adaptation *hurts*
where the plain model's is higher by more than two standard errors: those of the pairs, and of the part of the
regressions' errors that both do not share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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

    @classmethod
    def of(cls, pairs: Array, plain: Regression | None, adapted: Regression | None, where: Array | None) -> Comparison:
        """Compare pairs that :func:`paired` returned; ``where`` are the coordinates of the recent images."""
        same = pairs[:, 6] > 0
        agreement = float(same.mean())
        if where is None or plain is None or adapted is None:
            return cls(len(pairs), agreement)
        p_plain, error_plain = plain.predict(pairs[:, :3], where)
        p_adapted, error_adapted = adapted.predict(pairs[:, 3:6], where)
        gains = np.where(same, 0.0, p_adapted - p_plain)
        # Both are of the same images: errors that both regressions share cancel in the difference.
        unshared = np.sqrt(max(1 - plain.correlation(adapted), 0.0))
        errors = unshared * np.hypot(error_plain, error_adapted) * (1 - agreement)
        error = float(np.hypot(gains.std() / np.sqrt(len(gains)), errors))
        return cls(len(pairs), agreement, float(gains.mean()), error)


def paired(plain: Floats, adapted: Floats) -> Array:
    """Pairs of logits ``[n, classes]`` as features of both, and whether they name the same class: ``[n, 7]``."""
    same = plain.argmax(axis=1) == adapted.argmax(axis=1)
    return np.column_stack([prediction_features(plain), prediction_features(adapted), same])
