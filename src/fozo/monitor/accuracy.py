"""Expected accuracy without labels: features of single predictions, and the estimate.

Average confidence is not accuracy: models stay confident where they err, or are too modest. So calibration fits how
often predictions like these are right, on clean images and on corrupted ones (:mod:`fozo.monitor.regression`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import entr, softmax

from fozo.types import Array, Floats

T95 = 2.14
"""Standard errors to each side: Student's t with 14 degrees of freedom, as 15 kinds show how far kinds differ."""


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy, with a 95 % interval."""

    value: float
    low: float
    high: float
    outside: bool = False
    """Whether the images look like nothing seen at calibration: then the interval may be too narrow."""
    relative: bool = False
    """Whether it is a fraction of the accuracy on clean images, which is unknown without labels."""

    @classmethod
    def about(cls, value: float, error: float, *, outside: bool, relative: bool) -> Estimate:
        """Make one from its standard error; an accuracy is at most 1."""
        low, high = max(0.0, value - T95 * error), value + T95 * error
        return cls(value, low, high if relative else min(1.0, high), outside, relative)

    def __str__(self) -> str:
        unit = " of that on clean images" if self.relative else ""
        hint = ", outside what was seen at calibration" if self.outside else ""
        return f"expected accuracy {self.value:.0%}{unit} ({self.low:.0%} to {self.high:.0%}{hint})"


def prediction_features(logits: Floats) -> Array:
    """Features of single predictions: log-odds of the confidence, margin, entropy: ``[n, 3]``."""
    x = np.asarray(logits, dtype=np.float64)
    p = softmax(x, axis=1)
    first = np.clip(p.max(axis=1), 1e-4, 1 - 1e-4)
    ordered = np.sort(x, axis=1)
    margin = ordered[:, -1] - ordered[:, -2] if x.shape[1] > 1 else np.full(len(x), 10.0)
    return np.stack([np.log(first / (1 - first)), np.minimum(margin, 10.0), entr(p).sum(axis=1)], axis=1)
