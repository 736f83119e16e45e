"""Targets: where the tokens of clean images of *this content* are, how certain that is, and what this camera has shown.

Three sources, each of which knows something that the one before does not:

* **Calibration**: the average clean image.
* **Content** (:mod:`fozo.core.content`): with d the average content of the domain's images less that of calibration,
  clean images of that content differ from the average one by W d. The regression is not exact for narrow content: in
  each layer, a squared error of ``content_error`` times the squared correction W d itself is expected.
* **The camera's own clean images**: while the images of a stream look clean by their descriptors, the difference of
  their tokens from the two above is not drift. Its average is this camera's baseline, and counts in proportion to how
  well its content agrees with that of the images at hand.

What is left of the deviation from the target is drift *or* error. Of a mean squared deviation D in a layer (in units of
the variance over clean images) with an expected squared error of U, the part max(0, 1 - U / D) is believed: James and
Stein's estimate. Few images make U large by chance alone, so nothing else has to hold back the first moves of a domain.

Statistics are arrays ``[n, layers, d]`` as in :mod:`~fozo.methods.align.alignment`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.methods.align.alignment import layer_counts, unmoved
from fozo.types import Affine, Array, Floats, State

Single = npt.NDArray[np.float32]
NAMES = ("patch_mean", "patch_log_variance", "cls")
BASELINE_IMAGES = 512.0
"""The camera's baseline is an average over about this many of its latest clean-looking images."""
PLAUSIBLE = 1e4
"""Clean standard deviations that block updates may be away from their average: a black, white or checkered image, or
pure noise, is below a hundred."""


@dataclass(frozen=True)
class CameraBaseline:
    """The camera's own clean images: how many, their content, and how their tokens differ from the targets."""

    images: float
    offset: Array
    """Average content less that of calibration, ``[k]``."""
    residual: Array
    """Average difference, ``[layers, d]``."""

    def learn(self, weight: float, offset: Array, residual: Floats) -> CameraBaseline:
        """Take in images of this total weight above 0, given their average content offset and residual."""
        images = min(self.images, max(BASELINE_IMAGES - weight, 0.0)) + weight
        part = weight / images
        offset = self.offset + part * (offset - self.offset)
        residual = self.residual + part * (residual - self.residual)
        return CameraBaseline(min(images, BASELINE_IMAGES), offset, residual)

    def state(self) -> State:
        return {f"baseline_{name}": np.array(value) for name, value in vars(self).items()}

    @classmethod
    def of_state(cls, state: State) -> CameraBaseline:
        """Read what :meth:`state` wrote."""
        images, offset, residual = (state[f"baseline_{name}"].astype(np.float64) for name in cls.__annotations__)
        if not 0 <= images <= BASELINE_IMAGES:
            raise FozoError(
                f"the state's camera baseline rests on {float(images):g} images, of {BASELINE_IMAGES:g} at most; save "
                f"the state again"
            )
        return cls(float(images), offset, residual)


class Targets:
    """Targets of one model, and how far deviations from them are believed."""

    def __init__(
        self, source: SourceStatistics, head: Affine, depth: int, content: float, content_error: float
    ) -> None:
        """``content``: part of the correction for content that is made; ``content_error``: error expected of it."""
        self.depth, self.content, self.content_error = depth, content, content_error
        regression, counts = source.regression(), layer_counts(depth)
        self.vectors = source.content.basis.vectors(head)
        self.offsets = self.vectors - regression.mean
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
        """Of clean images, ``[1, layers, d]``, and the squared error of one image, which its content does not explain,
        ``[1, layers, 1]``."""
        self.weights = np.concatenate(weights, axis=1)
        """W, ``[k, layers, d]``."""
        self.centre: Single = np.concatenate(centre)[None].astype(np.float32)
        """Average block updates of clean images, ``[1, layers, d]``."""
        self.unit: Single = self.scale.astype(np.float32)
        self._balance = (1 / np.repeat(np.maximum(counts, 1), counts)).astype(np.float32)
        self._trusted: tuple[CameraBaseline | None, Array, Array] = (None, np.zeros(0), np.zeros(0))

    def no_baseline(self) -> CameraBaseline:
        """Nothing is known of the camera yet."""
        return CameraBaseline(0.0, np.zeros(self.vectors.shape[1]), np.zeros(self.average.shape[1:]))

    def shift(self, offsets: Array) -> Array:
        """How clean images of content ``offsets`` (``[n, k]``) differ from the average one: W d, ``[n, layers, d]``."""
        found: Array = np.einsum("nk,kld->nld", offsets, self.weights)  # on this thread, as BLAS is not
        return found

    def decode(self, vectors: Single) -> Single:
        """Turn standardised block updates, or averages of them, into their own units."""
        return vectors * self.unit + self.centre

    def residuals(self, updates: Floats, offsets: Array) -> Array:
        """How the unmoved tokens of images differ from those of clean images of their content."""
        found: Array = unmoved(updates, self.depth) - self.average - self.shift(offsets)
        return found

    def plausible(self, vectors: Single) -> npt.NDArray[np.bool_]:
        """Say of each image whether its standardised block updates can be those of a picture: ``[B]``."""
        if vectors.min() >= -PLAUSIBLE / 2 and vectors.max() <= PLAUSIBLE / 2:  # then their mean square is as well
            return np.ones(len(vectors), dtype=np.bool_)
        with np.errstate(over="ignore", invalid="ignore"):
            layers = np.einsum("nld,nld->nl", vectors, vectors) / np.float32(vectors.shape[2])
            squares = np.einsum("nl,l->n", layers, self._balance)
        within: npt.NDArray[np.bool_] = squares <= PLAUSIBLE**2  # False for NaN
        return within

    def find(self, updates: Floats, offsets: Array, images: Array, baseline: CameraBaseline) -> tuple[Array, Array]:
        """Return targets ``[n, layers, d]`` for domains, and how far deviations are believed ``[n, layers, 1]``.

        Args:
            updates: what the blocks add to images of the domains on average, ``[n, layers, d]``.
            offsets: their average content less that of calibration, ``[n, k]``.
            images: how many images these averages rest on, ``[n]``.
            baseline: of the camera.
        """
        # How far along the baseline's content these are (0 to 1), and the squared cosine between the two.
        dot = np.maximum(np.einsum("nk,k->n", offsets, baseline.offset), 0)
        length, baseline_length = np.square(offsets).sum(axis=1), np.square(baseline.offset).sum()
        along = np.minimum(dot / max(baseline_length, 1e-300), 1)[:, None, None]
        cosine = (dot**2 / np.maximum(length * baseline_length, 1e-300))[:, None, None]
        trusted, residual = self._trust(baseline)
        # U = content_error |W d|^2 (1 - cosine^2 trusted) + chance / images
        target = self.shift(self.content * offsets)
        chance = self.chance / np.maximum(images, 1e-50)[:, None, None]
        error = self.content_error * self._mean_square(target) * (1 - cosine * trusted) + chance
        target += self.average
        target += along * residual
        deviation = self._mean_square(unmoved(updates, self.depth) - target)
        return target, np.maximum(1 - error / np.maximum(deviation, 1e-200), 0)

    def _mean_square(self, values: Array) -> Array:
        """Of each layer, in units of the variance over clean images: ``[n, layers, 1]``."""
        ratio = values / self.scale
        squares: Array = np.einsum("nld,nld->nl", ratio, ratio)[:, :, None] / values.shape[2]
        return squares

    def _trust(self, baseline: CameraBaseline) -> tuple[Array, Array]:
        """How far the baseline is trusted in each layer ``[1, layers, 1]``, and that part of its residual.

        It measures an error of the regression of which ``content_error`` is the prior variance, with a variance of
        chance / images: the weight of such a measurement is prior / (prior + variance).
        """
        if self._trusted[0] is not baseline:
            prior = self.content_error * self._mean_square(self.shift(baseline.offset[None]))
            trusted = prior / (prior + self.chance / max(baseline.images, 1e-9))
            self._trusted = baseline, trusted, trusted * baseline.residual
        return self._trusted[1:]
