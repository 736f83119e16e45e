"""An activation shift that knows what the images show: towards the head input of clean images of the same content.

Averages over recent images, this batch included: z of what the head reads, d of the content vectors less calibration's
(:mod:`fozo.core.content`). Clean images of that content are expected at t = mu_S + W d, with an error as large as W d:

    shift = max(0, 1 - U / D) (t - z),  U = |W d|^2 + u / n,  D = |t - z|^2   (James and Stein, as in Align's targets)

in units of the variance over clean images, of which content leaves the part u unexplained.
"""

import numpy as np

from fozo.core.content import contents
from fozo.core.statistics import SourceStatistics
from fozo.methods.common.matching import ActivationShift
from fozo.types import Affine, Array, Floats


class ContentShift(ActivationShift):
    """The shift for the images of late; ``images`` is how many of them the averages remember."""

    def __init__(self, source: SourceStatistics, head: Affine, images: float) -> None:
        regression, pooled, cls = source.regression(), source.pooled, source.cls
        self.head, self.images, self.calibration = head, images, regression.mean
        self.vectors = source.content.basis.vectors(head)
        self.deviation = np.maximum(pooled.std, max(1e-3 * pooled.std.mean(), 1e-9))
        # Contents are regressed on the last CLS token, which the head reads after a norm: about a factor a feature.
        factor = pooled.std[: cls.mean.shape[1]] / np.maximum(cls.std[-1], 1e-9)
        self.weights = np.pad(regression.weights["cls"][:, -1] * factor, ((0, 0), (0, len(pooled.mean) - len(factor))))
        self.unexplained = float(regression.unexplained["cls"][-1].mean())
        super().__init__(len(pooled.mean) + len(regression.mean) + 1, scale=1.0)  # sums of z, of d, and the count

    def take(self, pooled: Floats) -> None:
        """Take in what the head reads of a batch under each candidate, ``[K, B, h]``."""
        each = pooled.mean(axis=0, dtype=np.float64)
        offsets = contents(self.head(each), self.vectors) - self.calibration
        sums = np.concatenate([each.sum(axis=0), offsets.sum(axis=0), [len(each)]])
        self.average = sums if self.average is None else np.exp(-len(each) / self.images) * self.average + sums

    def vector(self, source_mean: Array) -> Array | None:
        if self.average is None:
            return None
        count, width = self.average[-1], len(source_mean)
        correction = np.einsum("k,kh->h", self.average[width:-1] / count, self.weights)
        shift: Array = source_mean + correction - self.average[:width] / count
        error = np.square(correction / self.deviation).mean() + self.unexplained / count
        return shift * max(0.0, 1 - error / max(np.square(shift / self.deviation).mean(), 1e-200))
