"""An activation shift that knows what the images show: towards the head input of images of the same content.

Averages over recent images, this batch included: z of what the head reads, d of the content vectors less calibration's
(:mod:`fozo.core.content`). Clean images of that content are expected at t = mu_S + W d, with an error as large as W d:

    shift = max(0, 1 - U / D) (t - mu_S - z),  U = |W d|^2 + u / n,  D = |t - z|^2   (James and Stein, as in Align's)

in units of the variance over clean images, of which content leaves the part u unexplained. So whether there is a drift
is judged against clean images, but the shift leads to the origin, as NEO's does (arXiv:2510.05635; neural collapse puts
the mean of the classes there): on the tuning corruptions that gains 0.8 to 1.2 points more than leading to mu_S.
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
        self.head, self.images, self.calibration, self.centre = head, images, regression.mean, pooled.mean
        self.vectors = source.content.basis.vectors(head)
        self.deviation = np.maximum(pooled.std, max(1e-3 * pooled.std.mean(), 1e-9))
        # Contents are regressed on the last CLS token, which the head reads after a norm: about a factor a feature.
        factor = pooled.std[: cls.mean.shape[1]] / np.maximum(cls.std[-1], 1e-9)
        self.weights = np.pad(regression.weights["cls"][:, -1] * factor, ((0, 0), (0, len(pooled.mean) - len(factor))))
        self.unexplained = float(regression.unexplained["cls"][-1].mean())
        super().__init__(len(pooled.mean) + len(regression.mean) + 1, scale=1.0)  # sums of z, of d, and the count

    def take(self, pooled: Floats) -> None:
        """Take in what the head reads of a batch under each candidate, ``[K, B, h]``; predictions are shifted ones."""
        each, shift = pooled.mean(axis=0, dtype=np.float64), self.vector(self.centre)
        offsets = contents(self.head(each if shift is None else each + shift), self.vectors) - self.calibration
        sums = np.concatenate([each.sum(axis=0), offsets.sum(axis=0), [len(each)]])
        self.average = sums if self.average is None else np.exp(-len(each) / self.images) * self.average + sums

    def vector(self, source_mean: Array) -> Array | None:
        if self.average is None:
            return None
        count, width = self.average[-1], len(source_mean)
        correction = np.einsum("k,kh->h", self.average[width:-1] / count, self.weights)
        away: Array = self.average[:width] / count - correction  # from the origin
        error = np.square(correction / self.deviation).mean() + self.unexplained / count
        drift = float(np.square((away - source_mean) / self.deviation).mean())
        return -away * max(0.0, 1 - float(error) / max(drift, 1e-200))
