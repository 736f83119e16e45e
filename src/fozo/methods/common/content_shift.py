"""An activation shift that knows what the images show: to the origin, but for what their content explains.

Averages over recent images, this batch included: z of what the head reads, d of the content vectors less calibration's
(:mod:`fozo.core.content`). Clean images of that content are expected at t = mu_S + W d, with an error as large as W d:

    shift = max(0, 1 - U / D) (t - mu_S - z),   U = |W d|^2 + u / n,   D = |t - z|^2       (James and Stein, 1961)

in units of the variance over clean images, of which content leaves the part u unexplained. So whether there is a drift
is judged against clean images, but the shift leads to the origin, as NEO's does (arXiv:2510.05635; neural collapse puts
the mean of the classes there).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fozo.core.content import contents
from fozo.core.moments import shrinkage
from fozo.core.statistics import Statistics
from fozo.state import State
from fozo.types import Affine, Array, Floats


@dataclass(frozen=True)
class ContentSums(State):
    """Sums over recent images, which fade with the images that follow."""

    pooled: Array  # of what the head reads, [h]
    offsets: Array  # of content vectors less calibration's, [k]
    images: float

    def __post_init__(self) -> None:
        """Refuse a count that no stream has."""
        if self.images < 0:
            raise ValueError(f"the sums are of {self.images} images")


class ContentShift:
    """What follows from the clean statistics; ``images`` is how many of the latest images the averages remember."""

    def __init__(self, source: Statistics, head: Affine, images: float) -> None:
        regression = source.regression()
        pooled = source.pooled
        cls = source.cls
        self.head = head
        self.images = images
        self.calibration = regression.mean
        self.centre = pooled.mean
        self.vectors = source.content.basis.vectors(head)
        self.deviation = np.maximum(pooled.std, max(1e-3 * pooled.std.mean(), 1e-9))
        # Contents are regressed on the last CLS token, which the head reads after a norm: about a factor a feature.
        factor = pooled.std[: cls.mean.shape[1]] / np.maximum(cls.std[-1], 1e-9)
        weights = regression.weights["cls"][:, -1] * factor
        self.weights = np.pad(weights, ((0, 0), (0, len(pooled.mean) - len(factor))))
        self.unexplained = float(regression.unexplained["cls"][-1].mean())

    def init(self) -> ContentSums:
        return ContentSums(np.zeros_like(self.centre), np.zeros_like(self.calibration), 0.0)

    def take(self, sums: ContentSums, pooled: Floats) -> ContentSums:
        """Take in what the head reads of a batch, ``[B, h]``; content is that of the shifted predictions."""
        logits = self.head(pooled + self.vector(sums))
        offsets = contents(logits, self.vectors) - self.calibration
        kept = np.exp(-len(pooled) / self.images)
        return ContentSums(
            pooled=kept * sums.pooled + pooled.sum(axis=0),
            offsets=kept * sums.offsets + offsets.sum(axis=0),
            images=float(kept * sums.images + len(pooled)),
        )

    def vector(self, sums: ContentSums) -> Array:
        """The shift of what the head reads, ``[h]``; zeros before the first batch."""
        if not sums.images:
            return np.zeros_like(self.centre)
        count = sums.images
        correction = np.einsum("k,kh->h", sums.offsets / count, self.weights)  # W d
        offset: Array = sums.pooled / count - correction  # from the origin
        error = np.square(correction / self.deviation).mean() + self.unexplained / count  # U
        drift = np.square((offset - self.centre) / self.deviation).mean()  # D
        return -offset * shrinkage(error, drift)
