"""Activation shifting (from FOA): moving the head's input back to where it was on the source domain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fozo.types import Array


class ActivationShift:
    """A moving average of the stream's mean head input, and the vector from it to the source mean.

    ``scale`` multiplies what enters the average. FOA uses 1. FOZO's program adds up the means of its + and -
    passes instead of averaging them, which is a ``scale`` of 2 and shifts by about mu_S - 2 mu_T.
    """

    EMA_DECAY = 0.9

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.average: Array | None = None

    def vector(self, source_mean: Array) -> Array | None:
        """Return the shift to add to this batch, or ``None`` before the first batch has been seen."""
        return None if self.average is None else source_mean - self.average

    def observe(self, mean: npt.ArrayLike) -> None:
        """Take in a batch's mean head input ``[h]``, averaged over the candidates."""
        new = self.scale * np.asarray(mean, dtype=np.float64)
        old = self.average
        self.average = new if old is None else self.EMA_DECAY * old + (1 - self.EMA_DECAY) * new
