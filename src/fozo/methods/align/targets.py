"""Targets: where the tokens of clean images of *this content* are, and how much of a deviation from there is drift.

Calibration knows the average clean image y*, and how clean images of other content differ from it
(:mod:`fozo.core.content`): with d the average content of the domain's images less that of calibration, their tokens are
expected at

    target = y* + W d

The regression is not exact for narrow content: in each layer, a squared error of ``content_error`` times the squared
correction W d itself is expected. And n images differ from their average by chance, by a squared error of u / n, where
u is the part of one image's variance that its content does not explain. So of a mean squared deviation D in a layer,
in units of the variance over clean images, with an expected squared error of

    U = content_error |W d|^2 + u / n

the part max(0, 1 - U / D) is believed: James and Stein's estimate. Few images make U large by chance alone, so nothing
else has to hold back the first moves of a domain; clean images of narrow content deviate by U, and are left alone.

Statistics are arrays ``[n, layers, d]`` as in :mod:`~fozo.methods.align.moves`.
"""

import numpy as np
import numpy.typing as npt

from fozo.core.statistics import SourceStatistics
from fozo.methods.align.moves import layer_counts, unmoved
from fozo.types import Affine, Array

Single = npt.NDArray[np.float32]
NAMES = ("patch_mean", "patch_log_variance", "cls")
PLAUSIBLE = 1e4
"""Clean standard deviations that block updates may be away from their average: a black, white or checkered image, or
pure noise, is below a hundred."""


class Targets:
    """Targets of one model, and how far deviations from them are believed."""

    def __init__(
        self, source: SourceStatistics, head: Affine, depth: int, content: float, content_error: float
    ) -> None:
        """``content``: part of the correction for content that is made; ``content_error``: error expected of it."""
        self.depth, self.content, self.content_error = depth, content, content_error
        regression, counts = source.regression(), layer_counts(depth)
        self.offsets = source.content.basis.vectors(head) - regression.mean
        """Content vector of each class less that of calibration, ``[classes, k]``."""
        average, scale, weights, chance, centre = ([] for _ in range(5))
        for name, count in zip(NAMES, counts, strict=True):
            part = getattr(source, name)
            average.append(part.mean[:count])
            centre.append(np.diff(part.mean[:count], axis=0, prepend=0.0))
            # A feature that is constant on clean images must not make every deviation infinite, nor must all of them.
            scale.append(np.maximum(part.std, max(1e-3 * part.std.mean(), 1e-9))[:count])
            weights.append(regression.weights[name][:, :count])
            chance.append(regression.unexplained[name][:count].mean(axis=1, keepdims=True))
        self.average, self.scale, self.chance = (np.concatenate(each)[None] for each in (average, scale, chance))
        """Of clean images, ``[1, layers, d]``, and u, ``[1, layers, 1]``."""
        self.weights = np.concatenate(weights, axis=1)
        """W, ``[k, layers, d]``."""
        self.centre: Single = np.concatenate(centre)[None].astype(np.float32)
        """Average block updates of clean images, ``[1, layers, d]``."""
        self.unit: Single = self.scale.astype(np.float32)
        self._balance = (1 / np.repeat(np.maximum(counts, 1), counts)).astype(np.float32)

    def plausible(self, vectors: Single) -> npt.NDArray[np.bool_]:
        """Say of each image whether its standardised block updates can be those of a picture: ``[B]``."""
        if vectors.min() >= -PLAUSIBLE / 2 and vectors.max() <= PLAUSIBLE / 2:  # then their mean square is as well
            return np.ones(len(vectors), dtype=np.bool_)
        with np.errstate(over="ignore", invalid="ignore"):
            layers = np.einsum("nld,nld->nl", vectors, vectors) / np.float32(vectors.shape[2])
            squares = np.einsum("nl,l->n", layers, self._balance)
        within: npt.NDArray[np.bool_] = squares <= PLAUSIBLE**2  # False for NaN
        return within

    def find(self, vectors: Single, contents: Single, images: Array) -> tuple[Single, Array, Array]:
        """Return expected block updates and targets ``[n, layers, d]`` for domains, and how far each layer's deviation
        is believed ``[n, layers, 1]``.

        Args:
            vectors: what blocks add to images of the domains on average, standardised, ``[n, layers, d]``.
            contents: average content of these images less that of calibration, ``[n, k]``.
            images: how many images these averages rest on, ``[n]``.
        """
        updates = vectors[:, :, : self.unit.shape[2]] * self.unit + self.centre
        offsets = self.content * contents.astype(np.float64)
        target = np.einsum("nk,kld->nld", offsets, self.weights)  # on this thread, as BLAS is not
        chance = self.chance / np.maximum(images, 1e-50)[:, None, None]
        error = self.content_error * self._mean_square(target) + chance  # U
        target += self.average
        deviation = self._mean_square(unmoved(updates, self.depth) - target)  # D
        return updates, target, np.maximum(1 - error / np.maximum(deviation, 1e-200), 0)

    def _mean_square(self, values: Array) -> Array:
        """Of each layer, in units of the variance over clean images: ``[n, layers, 1]``."""
        ratio = values / self.scale
        squares: Array = np.einsum("nld,nld->nl", ratio, ratio)[:, :, None] / values.shape[2]
        return squares
