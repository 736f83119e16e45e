"""Targets: where the tokens of clean images of *this content* are, how sure that is, and what this camera has shown.

Three sources, each of which knows something that the one before does not:

* **Calibration**: the average clean image.
* **Content** (:mod:`fozo.core.content`): with d the average content of the domain's images less that of calibration,
  clean images of that content differ from the average one by W d. The regression cannot know everything about narrow
  content: a squared error of ``content_error`` times that of its own correction is expected, in each layer.
* **The camera's own clean images**: while the images of a stream look clean by their descriptors, what their tokens
  differ by from the two above is no drift. It is averaged as this camera's baseline, and counts as far as it agrees in
  content with the images at hand.

What is left of the deviation from the target is drift *or* error. Of a mean squared deviation D in a layer (in units of
the variance over clean images) with an expected squared error of U, the part max(0, 1 - U / D) is believed: James and
Stein's estimate. Few images make U large by chance alone, so nothing else has to hold back the first moves of a domain.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from fozo.core.content import contents
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.methods.align.alignment import BlockUpdates, TokenStatistics, moved_cls
from fozo.types import Affine, Array, Floats, Knobs, State, Taps

Single = npt.NDArray[np.float32]
NAMES = ("patch_mean", "patch_log_variance", "cls")
BASELINE_IMAGES = 512.0
"""The camera's baseline is an average over about this many of its latest clean-looking images."""
PLAUSIBLE = 1e4
"""Clean standard deviations that block updates may be away from their average: a black, white or checkered image, or
pure noise, is below a hundred."""
SURELY = PLAUSIBLE / 2
"""Where no single one is farther away than this, their mean square over the three kinds is not either."""


@dataclass(frozen=True)
class CameraBaseline:
    """The camera's own clean images: how many, their content, and how their tokens differ from the targets."""

    images: float
    offset: Array
    """Average content less that of calibration, ``[k]``."""
    residual: Array
    """Average difference, flat: ``[width]``."""

    def learn(self, offsets: Array, residuals: Floats, weights: Array) -> CameraBaseline:
        """Take in images by weight: content offsets ``[B, k]``, residuals ``[B, width]``, weights ``[B]``."""
        added = float(weights.sum())
        if added <= 0:
            return self
        images = min(self.images, max(BASELINE_IMAGES - added, 0.0)) + added
        part, shares = added / images, weights / added
        offset = self.offset + part * (np.einsum("n,nk->k", shares, offsets) - self.offset)
        residual = self.residual + part * (np.einsum("n,nw->w", shares, residuals) - self.residual)
        return CameraBaseline(min(images, BASELINE_IMAGES), offset, residual)

    def state(self) -> State:
        """Write it as named arrays."""
        return {
            "baseline_images": np.array(self.images),
            "baseline_offset": self.offset,
            "baseline_residual": self.residual,
        }

    @classmethod
    def of_state(cls, state: State) -> CameraBaseline:
        """Read what :meth:`state` wrote."""
        images, offset, residual = (state[f"baseline_{name}"].astype(np.float64) for name in cls.__annotations__)
        if not 0 <= images <= BASELINE_IMAGES:
            raise FozoError(
                f"the state's baseline rests on {float(images):g} images, of {BASELINE_IMAGES:g} at most; save the "
                f"state again"
            )
        return cls(float(images), offset, residual)


class Targets:
    """Targets of one model, and how far deviations from them are believed."""

    def __init__(
        self, source: SourceStatistics, head: Affine, depth: int, content: float, content_error: float
    ) -> None:
        """``content``: part of the correction for content that is made; ``content_error``: error expected of it."""
        self.depth, self.content, self.content_error = depth, content, content_error
        self.regression = source.regression()
        self.vectors = source.content.basis.vectors(head)
        self._centred = self.vectors - self.regression.mean
        half = moved_cls(depth)
        parts = [source.patch_mean, source.patch_log_variance, source.cls]
        cut = [depth, depth, half]
        self.average = TokenStatistics(*(part.mean[None, :n] for part, n in zip(parts, cut, strict=True)))
        # A feature that is the same on all clean images must not make every deviation infinite, nor must all of them.
        floors = [max(1e-3 * part.std.mean(), 1e-9) for part in parts]
        self.scale = TokenStatistics(
            *(np.maximum(part.std, least)[None, :n] for part, least, n in zip(parts, floors, cut, strict=True))
        )
        self.weights = TokenStatistics(
            *(self.regression.weights[name][:, :n] for name, n in zip(NAMES, cut, strict=True))
        )
        unexplained = [self.regression.unexplained[name][:n] for name, n in zip(NAMES, cut, strict=True)]
        self.chance = TokenStatistics(*(part.mean(axis=1)[None, :, None] for part in unexplained))
        """Squared error of one image, for each layer: what its content does not explain."""
        # The same with all layers one after the other, which is a third of the calls.
        self._average, self._scale, self._weights, self._chance = (
            part.layers() for part in (self.average, self.scale, self.weights, self.chance)
        )
        updates = self.average.each(lambda part: np.diff(part, axis=1, prepend=0.0))
        self._centre, self._unit = updates.layers().astype(np.float32), self._scale.astype(np.float32)
        self._balance = (1 / np.repeat(np.maximum(cut, 1), cut)).astype(np.float32)
        self._reader: tuple[Knobs, BlockUpdates] | None = None
        self._known: tuple[CameraBaseline | None, Array, Array] = (None, np.zeros(0), np.zeros(0))

    def offsets(self, logits: Floats) -> Array:
        """Content of images less that of calibration, ``[B, k]``."""
        return contents(logits, self._centred)

    def no_baseline(self, dim: int) -> CameraBaseline:
        """Nothing is known of the camera yet."""
        return CameraBaseline(0.0, np.zeros(self.vectors.shape[1]), np.zeros(TokenStatistics.width(self.depth, dim)))

    def shift(self, offsets: Array) -> TokenStatistics:
        """How clean images of content ``offsets`` differ from the average clean image: ``[n, ...]``."""
        return TokenStatistics.of_layers(self._shift(offsets), self.depth)

    def _shift(self, offsets: Array) -> Array:
        return cast("Array", np.einsum("nk,kld->nld", offsets, self._weights))  # on this thread, as BLAS is not

    def read(self, taps: Taps, knobs: Knobs) -> Single:
        """Read block updates ``[n, layers, d]`` from a pass, in units of clean images, so that all are of one size."""
        if self._reader is None or self._reader[0] is not knobs:  # those of a correction that is kept stay the same
            self._reader = knobs, BlockUpdates(knobs, self._centre, self._unit, self.depth)
        return self._reader[1](taps)

    def decode(self, vectors: Single) -> TokenStatistics:
        """Turn what :meth:`read` returned, or averages of it, into block updates in their own units."""
        return TokenStatistics.of_layers(vectors * self._unit + self._centre, self.depth)

    def residuals(self, updates: TokenStatistics, offsets: Array) -> Floats:
        """How the unmoved tokens of images differ from those of clean images of their content, flat ``[B, width]``."""
        differ = TokenStatistics.unmoved(updates).each(
            lambda tokens, average, shift: tokens - average - shift, self.average, self.shift(offsets)
        )
        return differ.flat()

    def ordinary(self, vectors: Single) -> bool:
        """Whether no image is anywhere near to being implausible, which is quickly told; NaN is."""
        return bool(vectors.min() >= -SURELY and vectors.max() <= SURELY)

    def plausible(self, vectors: Single) -> npt.NDArray[np.bool_]:
        """Say of each image whether what the blocks added to it (:meth:`read`) can be a picture's: ``[B]``."""
        with np.errstate(over="ignore", invalid="ignore"):
            layers = np.einsum("nld,nld->nl", vectors, vectors) / np.float32(vectors.shape[2])
            far = np.einsum("nl,l->n", layers, self._balance)
        within: npt.NDArray[np.bool_] = far <= PLAUSIBLE**2  # NaN is not
        return within

    def find(
        self, updates: TokenStatistics, offsets: Array, images: Array, baseline: CameraBaseline
    ) -> tuple[TokenStatistics, TokenStatistics]:
        """Return targets ``[n, ...]`` for domains, and how far deviations from them are believed ``[n, layers, 1]``.

        Args:
            updates: what the blocks add to images of the domains on average, ``[n, ...]``.
            offsets: their average content, ``[n, k]``.
            images: how many images these averages rest on, ``[n]``.
            baseline: of the camera.
        """
        count = np.maximum(images, 1e-50)[:, None, None]
        trusted, residual = self._trusted(baseline)
        along, alike = _agreement(offsets, baseline.offset)
        target = self._shift(self.content * offsets)
        error = self.content_error * self._squared(target) * (1 - alike * trusted) + self._chance / count
        target += self._average
        target += along * residual
        deviation = self._squared(TokenStatistics.unmoved(updates).layers() - target)
        believed = np.maximum(1 - error / np.maximum(deviation, 1e-200), 0)
        return TokenStatistics.of_layers(target, self.depth), TokenStatistics.of_layers(believed, self.depth)

    def _squared(self, values: Array) -> Array:
        """Mean square of each layer in units of clean images: ``[n, layers, 1]``."""
        ratio = values / self._scale
        return cast("Array", np.einsum("nld,nld->nl", ratio, ratio)[:, :, None] / values.shape[2])

    def _trusted(self, baseline: CameraBaseline) -> tuple[Array, Array]:
        """How far the baseline is trusted in each layer ``[1, layers, 1]``, and that part of its residual."""
        if self._known[0] is not baseline:
            # The baseline is a measurement of an error whose variance is expected to be that of `content_error`.
            wide = self.content_error * self._squared(self._shift(baseline.offset[None]))
            trusted = wide / (wide + self._chance / max(baseline.images, 1e-9))
            self._known = baseline, trusted, trusted * baseline.residual.reshape(self._average.shape)
        return self._known[1:]


def _agreement(offsets: Array, baseline: Array) -> tuple[Array, Array]:
    """How far along the baseline's content others are (0 to 1), and the squared cosine: ``[n, 1, 1]`` each."""
    dot = np.maximum(np.einsum("nk,k->n", offsets, baseline), 0)
    length, own = np.square(offsets).sum(axis=1), np.square(baseline).sum()
    along = np.minimum(dot / max(own, 1e-300), 1)
    cosine = dot**2 / np.maximum(length * own, 1e-300)
    return along[:, None, None], cosine[:, None, None]
