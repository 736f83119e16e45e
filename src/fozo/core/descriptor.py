"""Image descriptors: a few numbers that tell corruptions apart before the model has seen the image.

Noise, blur, fog or a change of contrast alter colour and the amount of detail at some scale far more than the content
of a picture does. So the descriptor of an image is the mean of each channel, and the logarithm of the energy of each
channel in every half octave of spatial frequency. A few dozen numbers; no model, no labels.

Frequencies are those of the discrete cosine transform: unlike Fourier's it takes an image as going on mirrored beyond
its border, so the border is no edge. Colours are first turned into brightness and two differences of colour, because
natural images have little fine detail in the latter and noise has as much as anywhere.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fozo.types import Array

Single = npt.NDArray[np.float32]

FLOOR = 1e-5
"""Added to energies before the logarithm: about what rounding to 8 bits leaves in a normalised image. Without it a
uniform image would be infinitely far from every other one."""

LARGEST = 1e3
"""A normalised image has a mean, and an amplitude in each band, of a few units; beyond this it is none."""

CHUNK = 8
"""Images transformed together: what is needed on the way then stays in the cache, however large the batch."""


def _cosines(size: int) -> Single:
    """Rows are the orthonormal cosines of ``size`` samples, so the inverse is the transpose."""
    order, place = np.arange(size)[:, None], np.arange(size)[None] + 0.5
    rows = np.cos(np.pi * order * place / size) * np.sqrt(2 / size)
    rows[0] /= np.sqrt(2)
    return np.asarray(rows, dtype=np.float32)


def half_octaves(height: int, width: int) -> int:
    """Count them from the finest detail down to a quarter of the image; what is coarser joins the last."""
    return max(1, int(2 * np.log2(min(height, width) / 2)))


class Spectra:
    """The cosine transform of images of one size, and its half octaves."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self.channels, self.height, self.width = channels, height, width
        self.bands = half_octaves(height, width)
        # Rows are brightness and differences of colour, orthonormal; other than three channels stay as they are.
        colours = np.array([[1, 1, 1], [1, -1, 0], [1, 1, -2]], dtype=np.float64) if channels == 3 else np.eye(channels)
        self.brightness = slice(0, 1 if channels == 3 else channels)
        """Where a descriptor has the mean brightness of the image."""
        self._colours = (colours / np.linalg.norm(colours, axis=1, keepdims=True)).astype(np.float32)
        self._down, self._across = _cosines(height), _cosines(width)
        # Spatial frequency of every coefficient, 1 being the finest along a side, and how many half octaves it lies
        # below the finest; the image's mean counts as the coarsest.
        frequency = np.hypot(np.arange(height)[:, None] / height, np.arange(width)[None] / width)
        octave = (2 * np.log2(np.sqrt(2) / np.maximum(frequency, 1 / max(height, width)))).ravel()
        band = np.minimum(octave.astype(int), self.bands - 1)
        members = (band[:, None] == np.arange(self.bands)).astype(np.float32)
        members[0] = 0  # the mean belongs to no band
        self._members = np.asarray(members / np.maximum(members.sum(axis=0), 1), dtype=np.float32)
        """Averages coefficients over bands: ``[height * width, bands]``."""
        nearness = 1 - np.abs(np.clip(octave - 0.5, 0, self.bands - 1) - np.arange(self.bands)[:, None])
        self._blend = np.asarray(np.maximum(nearness, 0), dtype=np.float32)
        """Weights of the two nearest bands for every coefficient: ``[bands, height * width]``."""

    def transform(self, images: npt.NDArray[np.floating]) -> Single:
        """Turn images ``[B, channels, height, width]`` into coefficients of the same shape."""
        coefficients = np.empty(images.shape, dtype=np.float32)
        for start in range(0, len(images), CHUNK):
            x = np.asarray(images[start : start + CHUNK], dtype=np.float32)
            mixed = (self._colours @ x.reshape(len(x), self.channels, -1)).reshape(x.shape)
            coefficients[start : start + CHUNK] = self._down @ mixed @ self._across.T
        return coefficients

    def inverse(self, coefficients: Single) -> Single:
        """Turn coefficients back into images."""
        mixed = self._down.T @ coefficients @ self._across
        return np.asarray((self._colours.T @ mixed.reshape(len(mixed), self.channels, -1)).reshape(mixed.shape))

    def describe(self, coefficients: Single) -> Array:
        """Means of the channels, then the log energies of their bands: ``[B, channels * (1 + bands)]``."""
        count = len(coefficients)
        means = coefficients[:, :, 0, 0] / np.sqrt(self.height * self.width)
        energies = np.square(coefficients).reshape(count * self.channels, -1) @ self._members
        logs = np.log(energies.astype(np.float64) + FLOOR).reshape(count, -1)
        return np.concatenate([means.astype(np.float64), logs], axis=1)

    def sound(self, descriptors: Array) -> npt.NDArray[np.bool_]:
        """Say of each of ``descriptors`` ``[n, f]`` whether it can be a normalised image's; NaN cannot: ``[n]``."""
        means, logs = descriptors[:, : self.channels], descriptors[:, self.channels :]
        within: npt.NDArray[np.bool_] = (np.abs(means) <= LARGEST).all(axis=1) & (logs <= 2 * np.log(LARGEST)).all(
            axis=1
        )
        return within

    def log_energies(self, descriptors: Array) -> Array:
        """Return the part of descriptors ``[n, f]`` that are log energies: ``[n, channels, bands]``."""
        return descriptors[:, self.channels :].reshape(len(descriptors), self.channels, self.bands)

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
