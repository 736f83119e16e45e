"""Image descriptors: a few numbers that tell corruptions apart before the model has seen the image.

Noise, blur, fog or a change of contrast alter colour and the amount of detail at some scale far more than the content
of a picture does. So the descriptor of an image is the mean of each channel, and the logarithm of the energy of each
channel in every half octave of spatial frequency. A few dozen numbers; no model, no labels.

Frequencies are those of the discrete cosine transform: unlike Fourier's it takes an image as going on mirrored beyond
its border, so the border is no edge. Colours are first turned into brightness and two differences of colour, because
natural images have little fine detail in the latter and noise has as much as anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from fozo.types import Array

Single = npt.NDArray[np.float32]

FLOOR = 1e-5
"""Added to energies before the logarithm: about what rounding to 8 bits leaves in a normalised image. Without it a
uniform image would be infinitely far from every other one."""

CHUNK = 8
"""Images transformed together: what is needed on the way then stays in the cache, however large the batch."""


def _cosines(size: int) -> Single:
    """Rows are the orthonormal cosines of ``size`` samples, so the inverse is the transpose."""
    order, place = np.arange(size)[:, None], np.arange(size)[None] + 0.5
    rows = np.cos(np.pi * order * place / size) * np.sqrt(2 / size)
    rows[0] /= np.sqrt(2)
    return np.asarray(rows, dtype=np.float32)


def _colours(channels: int) -> Single:
    """Rows are brightness and differences of colour, orthonormal; other than three channels stay as they are."""
    if channels != 3:
        return np.eye(channels, dtype=np.float32)
    rows = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]], dtype=np.float64)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype=np.float32)


@dataclass(frozen=True)
class Spectra:
    """The cosine transform of images of one size, and its half octaves."""

    channels: int
    height: int
    width: int

    @cached_property
    def bands(self) -> int:
        """Half octaves from the finest detail down to a quarter of the image; what is coarser joins the last."""
        return max(1, int(2 * np.log2(min(self.height, self.width) / 2)))

    @cached_property
    def _octave(self) -> Array:
        """How many half octaves every coefficient lies below the finest; the mean itself counts as the coarsest."""
        # Spatial frequency of every coefficient, 1 being the finest along a side: [height, width].
        frequency = np.hypot(np.arange(self.height)[:, None] / self.height, np.arange(self.width)[None] / self.width)
        frequency = np.maximum(frequency, 1 / max(self.height, self.width))
        return np.asarray(2 * np.log2(np.sqrt(2) / frequency))

    @cached_property
    def _members(self) -> Single:
        """Averages coefficients over bands: ``[height * width, bands]``. The image's mean belongs to none."""
        band = np.minimum(self._octave.astype(int), self.bands - 1).ravel()
        members = (band[:, None] == np.arange(self.bands)).astype(np.float32)
        members[0] = 0
        return np.asarray(members / np.maximum(members.sum(axis=0), 1), dtype=np.float32)

    @cached_property
    def _turns(self) -> tuple[Single, Single, Single]:
        return _colours(self.channels), _cosines(self.height), _cosines(self.width)

    def transform(self, images: npt.NDArray[np.floating]) -> Single:
        """Turn images ``[B, channels, height, width]`` into coefficients of the same shape."""
        colours, down, across = self._turns
        coefficients = np.empty(images.shape, dtype=np.float32)
        for start in range(0, len(images), CHUNK):
            x = np.asarray(images[start : start + CHUNK], dtype=np.float32)
            mixed = (colours @ x.reshape(len(x), self.channels, -1)).reshape(x.shape)
            coefficients[start : start + CHUNK] = down @ mixed @ across.T
        return coefficients

    def inverse(self, coefficients: Single) -> Single:
        """Turn coefficients back into images."""
        colours, down, across = self._turns
        mixed = down.T @ coefficients @ across
        return np.asarray((colours.T @ mixed.reshape(len(mixed), self.channels, -1)).reshape(mixed.shape))

    def describe(self, coefficients: Single) -> Array:
        """Means of the channels, then the log energies of their bands: ``[B, channels * (1 + bands)]``."""
        count = len(coefficients)
        means = coefficients[:, :, 0, 0] / np.sqrt(self.height * self.width)
        energies = np.square(coefficients).reshape(count * self.channels, -1) @ self._members
        logs = np.log(energies.astype(np.float64) + FLOOR).reshape(count, -1)
        return np.concatenate([means.astype(np.float64), logs], axis=1)

    def log_energies(self, descriptors: Array) -> Array:
        """Return the part of descriptors ``[n, f]`` that are log energies: ``[n, channels, bands]``."""
        return descriptors[:, self.channels :].reshape(len(descriptors), self.channels, self.bands)

    @cached_property
    def _blend(self) -> Single:
        """Weights of the two nearest bands for every coefficient: ``[bands, height * width]``."""
        place = np.clip(self._octave.ravel() - 0.5, 0, self.bands - 1)
        nearness = 1 - np.abs(place - np.arange(self.bands)[:, None])
        return np.asarray(np.maximum(nearness, 0), dtype=np.float32)

    def interpolate(self, bands: Array) -> Single:
        """Give every coefficient the value of its band, going over smoothly: ``[..., bands]`` to ``[..., h, w]``."""
        values = bands.astype(np.float32) @ self._blend
        return np.asarray(values.reshape(*bands.shape[:-1], self.height, self.width))


@lru_cache(maxsize=8)
def spectra(channels: int, height: int, width: int) -> Spectra:
    """Return the transform of images of one size; its tables are made once."""
    return Spectra(channels, height, width)


def describe(images: npt.NDArray[np.floating]) -> Array:
    """Describe normalised images ``[B, channels, height, width]`` by ``[B, features]``.

    The number of features depends on channels and size only; compare descriptors of one model's images.
    """
    transform = spectra(*images.shape[1:])
    return transform.describe(transform.transform(images))
