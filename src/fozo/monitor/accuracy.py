"""Expected accuracy without labels: what single predictions show, and how an estimate is told.

Average confidence is no accuracy: models stay confident where they err, or are modest where they do not. So it is
learnt at calibration, on clean images and on corrupted ones, how often predictions like these are right
(:mod:`fozo.monitor.regression`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fozo.types import Array, Floats

T95 = 2.14
"""Standard errors to each side: Student's t with 14 degrees of freedom, as 15 kinds tell how far kinds differ."""


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy, with an interval that should hold the truth in 95 of 100 cases."""

    value: float
    low: float
    high: float
    outside: bool = False
    """Whether the images look like nothing seen at calibration: then the interval may promise too much."""
    relative: bool = False
    """Whether it is a part of the accuracy on clean images, as nobody knows that one: there were no labels."""

    @classmethod
    def about(cls, value: float, error: float, *, outside: bool, relative: bool) -> Estimate:
        """Make one from its standard error; an accuracy is at most 1."""
        half = T95 * error
        return cls(
            value, max(0.0, value - half), value + half if relative else min(1.0, value + half), outside, relative
        )

    def __str__(self) -> str:
        """Put it in words."""
        unit = " of that on clean images" if self.relative else ""
        hint = ", outside what was seen at calibration" if self.outside else ""
        return f"expected accuracy {self.value:.0%}{unit} ({self.low:.0%} to {self.high:.0%}{hint})"


def probabilities(logits: Floats) -> Array:
    """Softmax, in double precision."""
    x = np.asarray(logits, dtype=np.float64)
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return np.asarray(p / p.sum(axis=1, keepdims=True))


def prediction_features(logits: Floats) -> Array:
    """Features of single predictions: log-odds of the confidence, margin, entropy: ``[n, 3]``."""
    x = np.asarray(logits, dtype=np.float64)
    x = x - x.max(axis=1, keepdims=True)
    p = probabilities(x)
    first = np.clip(p.max(axis=1), 1e-4, 1 - 1e-4)
    second = np.sort(x, axis=1)[:, -2] if x.shape[1] > 1 else np.full(len(x), -10.0)
    entropy = -(p * np.log(p + 1e-12)).sum(axis=1)
    return np.stack([np.log(first / (1 - first)), np.minimum(-second, 10.0), entropy], axis=1)
