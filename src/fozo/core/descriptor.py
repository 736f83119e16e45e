"""Image descriptors: a few numbers that distinguish corruptions before the model has seen the image.

Noise, blur, fog or a change of contrast alter colour and the amount of detail at some scale far more than the content
of a picture does. So the descriptor of an image is the mean of each channel, and the logarithm of the energy of each
channel in every half octave of spatial frequency. A few dozen numbers; no model, no labels.

Frequencies are those of the discrete cosine transform: unlike Fourier's it takes an image as mirrored beyond its
border, so the border is not an edge. Colours are first turned into brightness and two differences of colour, because
natural images have little fine detail in the latter and noise has as much as anywhere.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.fft import dctn, idctn

from fozo.types import Array, Threads

Single = npt.NDArray[np.float32]

FLOOR = 1e-5
"""Added to energies before the logarithm: about what rounding to 8 bits leaves in a normalised image. Without it a
uniform image would be infinitely far from every other one."""

NOISE_FLOOR = 3e-3
"""Added to the deviation of noise before the logarithm: less is rounding to 8 bits."""

MAX_DEVIATION = 1e3
"""Largest mean and band energy of a normalised image, which usually has a few units."""

AT_ONCE = 1 << 17
"""Pixels that are transformed together: one image of 224 px, many small ones. They then stay in the processor's nearest
cache, however large the batch."""

ONE = Threads(1)


def half_octaves(height: int, width: int) -> int:
    """Count them from the finest detail down to a quarter of the image; what is coarser joins the last."""
    return max(1, int(2 * np.log2(min(height, width) / 2)))


class Spectra:
    """The cosine transform of images of one size, and its half octaves.

    Everything here runs on the calling thread, or on those it is given: products by BLAS would wake its threads, which
    then spin for longer than they have worked.
    """

    def __init__(self, channels: int, height: int, width: int) -> None:
        self.channels = channels
        self.height = height
        self.width = width
        self.bands = half_octaves(height, width)
        self._together = max(1, AT_ONCE // (channels * height * width))  # images that are worked through together
        self.brightness = slice(0, 1 if channels == 3 else channels)  # where descriptors have the mean brightness
        lengths = np.array([3.0, 2.0, 6.0] if channels == 3 else [1.0] * channels)
        self._roots = np.sqrt(height * width * lengths)  # mean coefficients over means of orthonormal channels
        self._per_length = (1 / lengths).astype(np.float32)[:, None, None]
        # Size of a normalised image's features, at most: no log energy is farther below zero than FLOOR's.
        self.limits = np.repeat([MAX_DEVIATION, 2 * np.log(MAX_DEVIATION)], [channels, channels * self.bands])
        # Spatial frequency of every coefficient, 1 being the finest along a side, and how many half octaves it lies
        # below the finest; the image's mean counts as the coarsest.
        frequency = np.hypot(np.arange(height)[:, None] / height, np.arange(width)[None] / width)
        octave = (2 * np.log2(np.sqrt(2) / np.maximum(frequency, 1 / max(height, width)))).ravel()
        band = np.minimum(octave.astype(int), self.bands - 1)
        band[0] = -1  # the mean belongs to no band
        # Along a row a band is one run of neighbours, so energies are summed over runs first and over bands then.
        self._runs = np.flatnonzero(np.diff(band, prepend=-2) | (np.arange(band.size) % width == 0))
        members = band[self._runs][:, None] == np.arange(self.bands)
        sizes = np.maximum(np.bincount(band[1:], minlength=self.bands), 1)
        self._members = np.asarray(members / sizes, dtype=np.float32)  # averages runs over bands: [runs, bands]
        # Where every coefficient lies between the centres of two bands: the lower one, and how far beyond it.
        position = np.clip(octave - 0.5, 0, self.bands - 1)
        self._lower = np.minimum(position.astype(np.intp), max(self.bands - 2, 0))
        self._beyond = (position - self._lower).astype(np.float32)

    def transform(
        self, images: npt.NDArray[np.floating], out: Single | None = None, threads: Threads = ONE
    ) -> tuple[Single, Array]:
        """Turn images ``[B, channels, height, width]`` into coefficients of the same shape, and describe them.

        Three colours are first mixed to r + g + b, r - g and r + g - 2 b, of squared length 3, 2 and 6. Coefficients
        are in ``out`` if given. Descriptors are the means of the channels, then the log energies of their bands:
        ``[B, channels * (1 + bands)]``.
        """
        coefficients = np.empty(images.shape, dtype=np.float32) if out is None else out
        runs = np.empty((len(images), self.channels, len(self._runs)), dtype=np.float32)

        def work(first: int) -> None:
            chosen = slice(first, first + self._together)
            targets = coefficients[chosen]
            with np.errstate(over="ignore", invalid="ignore"):  # for this thread; such descriptors are beyond `limits`
                if self.channels == 3:
                    red, green, blue = images[chosen].swapaxes(0, 1)
                    brightness, one, other = targets.swapaxes(0, 1)
                    np.subtract(red, green, out=one, casting="same_kind")
                    np.add(red, green, out=brightness, casting="same_kind")
                    np.multiply(blue, -2, out=other, casting="same_kind")
                    other += brightness
                    np.add(brightness, blue, out=brightness, casting="same_kind")
                else:
                    targets[...] = images[chosen]
                transformed = dctn(targets, type=2, norm="ortho", axes=(2, 3), overwrite_x=True)
                if not np.may_share_memory(transformed, targets):  # SciPy may overwrite it, and need not
                    targets[...] = transformed
                squares = np.square(targets).reshape(*targets.shape[:2], -1)
                np.add.reduceat(squares, self._runs, axis=2, out=runs[chosen])

        threads.each(work, range(0, len(images), self._together))
        descriptors = np.empty((len(images), self.limits.size))
        with np.errstate(over="ignore", invalid="ignore"):
            np.divide(coefficients[:, :, 0, 0], self._roots, out=descriptors[:, : self.channels])
            energies = np.einsum("ncr,rb->ncb", runs, self._members)
            energies *= self._per_length[:, :, 0]
            logs = np.add(energies.reshape(len(images), -1), FLOOR, out=descriptors[:, self.channels :])
            np.log(logs, out=logs)
        return coefficients, descriptors

    def inverse(self, coefficients: Single, gains: Single, threads: Threads = ONE) -> Single:
        """Turn coefficients times ``gains`` (``[channels, height, width]``) back into images, in the same memory."""
        gains = gains * self._per_length

        def work(first: int) -> None:
            block = coefficients[first : first + self._together]
            np.multiply(block, gains, out=block)
            mixed = idctn(block, type=2, norm="ortho", axes=(2, 3), overwrite_x=True)
            if self.channels == 3:  # the inverse is the transpose, as all are divided by their squared lengths
                brightness, one, other = mixed.swapaxes(0, 1)
                blue = -2 * other
                blue += brightness
                brightness += other
                np.subtract(brightness, one, out=other)
                np.add(brightness, one, out=block[:, 0])
                block[:, 1] = other
                block[:, 2] = blue
            elif not np.may_share_memory(mixed, block):
                block[...] = mixed

        threads.each(work, range(0, len(coefficients), self._together))
        return coefficients

    def log_energies(self, descriptors: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
        """Return the part of descriptors ``[n, f]`` that are log energies: ``[n, channels, bands]``."""
        return descriptors[:, self.channels :].reshape(len(descriptors), self.channels, self.bands)

    def gains(self, log_gains: Array) -> Single:
        """Turn log gains of bands ``[..., bands]`` into gains of coefficients ``[..., height, width]``.

        They are interpolated between the centres of the bands; the mean of the image keeps a gain of 1.
        """
        values = log_gains.astype(np.float32)
        steps = np.diff(values, axis=-1, append=values[..., -1:])
        smooth = np.take(steps, self._lower, axis=-1)
        smooth *= self._beyond
        smooth += np.take(values, self._lower, axis=-1)
        gains: Single = np.exp(smooth.reshape(*log_gains.shape[:-1], self.height, self.width))
        gains[..., 0, 0] = 1
        return gains


@lru_cache(maxsize=8)
def spectra(channels: int, height: int, width: int) -> Spectra:
    """Return the transform of images of one size; its tables are made once."""
    return Spectra(channels, height, width)


def describe(images: npt.NDArray[np.floating]) -> Array:
    """Describe normalised images ``[B, channels, height, width]`` by ``[B, features]``.

    The number of features depends on channels and size only; compare descriptors of one model's images.
    """
    return spectra(*images.shape[1:]).transform(images)[1]


def haar_noise(images: npt.NDArray[np.floating]) -> Array:
    """The noise of images ``[B, channels, height, width]``: ``[B]``.

    It is log(deviation^2), with the deviation of the mean colour's finest diagonal Haar coefficients as Donoho and
    Johnstone (1994) estimate it: the median of their sizes over 0.6745. Lines and blocks hardly change a median.
    """
    gray = images[:, :, : images.shape[2] // 2 * 2, : images.shape[3] // 2 * 2].mean(axis=1)
    columns = gray[:, :, 0::2] - gray[:, :, 1::2]
    diagonal = (columns[:, 0::2] - columns[:, 1::2]) / 2
    deviation = np.median(np.abs(diagonal).reshape(len(images), -1), axis=1) / 0.6745
    noise: Array = 2 * np.log(deviation.astype(np.float64) + NOISE_FLOOR)
    return noise
