"""The equaliser: restoring detail and contrast that an image's domain lacks, before the model sees the image.

Blur, fog, low contrast, zoom and camera shake weaken whole bands of spatial frequency. How strong each band is on clean
images is part of the source statistics (:mod:`fozo.core.descriptor`); how strong it is in the present domain follows
from the estimates of :mod:`~fozo.methods.align.memory`. As an audio equaliser would, every band that is too weak is
amplified:

    log gain = min(strength * deficit / 2, log 4),        deficit = max(0, clean log energy - domain's log energy)

A strength of 1 would restore the energy (which is amplitude squared), 0 leaves the image as it is. Bands that are too
*strong* are left alone: the excess may be noise, but the picture is in the same band.

A domain estimate is uncertain, the more so the fewer images it rests on. Of a deviation of d standard errors, the part
1 - 1/d^2 is believed (James and Stein's estimate), and nothing of less than one.
"""

import numpy as np
import numpy.typing as npt

from fozo.core.descriptor import Single, spectra
from fozo.core.statistics import SourceStatistics
from fozo.methods.align.memory import DomainEstimate, Memory, RetrievalConfig, Retrieved
from fozo.types import Array, Engine, Floats

MAX_LOG_GAIN = np.log(4.0)
"""No band is amplified more than fourfold: beyond it, the rounding to 8 bits would show."""


class Equaliser:
    """Describes images, estimates how far their domains have drifted, and amplifies the bands that these lack."""

    def __init__(self, source: SourceStatistics, engine: Engine, strength: float, retrieval: RetrievalConfig) -> None:
        self.spectra, self.threads = spectra(*engine.spec.image_shape), engine.threads
        self.mean, self.std = source.descriptor.mean, np.maximum(source.descriptor.std, 1e-6)
        self.strength, self.retrieval = strength, retrieval

    def memory(self, shape: tuple[int, int, int] = (0, 0, 0)) -> Memory:
        """An empty memory; ``shape`` is what it holds of an image beside the descriptor."""
        return Memory(self.std.size, shape, self.retrieval)

    def describe(self, images: Floats) -> tuple[Single, Array, npt.NDArray[np.bool_]]:
        """Return the coefficients of images, their descriptors, and which of them can be pictures."""
        coefficients, descriptors = self.spectra.transform(images, threads=self.threads)
        return coefficients, descriptors, np.all(np.abs(descriptors) <= self.spectra.limits, axis=1)  # False for NaN

    def domains(self, descriptors: Array, memory: Memory) -> DomainEstimate:
        """Estimate the domains of images; few are judged together with those before them."""
        context = self.retrieval.context - len(descriptors)
        before = memory.latest(context).descriptor if context > 0 else descriptors[:0]
        return DomainEstimate.of((descriptors - self.mean) / self.std, before)

    def shift(self, descriptors: Array) -> float:
        """How far images are from clean ones: about 1 for these, however many."""
        if not len(descriptors):
            return 0.0
        mean = np.add.reduce((descriptors - self.mean) / self.std) / len(descriptors)
        return len(descriptors) * float(np.square(mean).mean())

    def log_gains(self, domains: DomainEstimate, retrieved: Retrieved) -> Array:
        """Return the log gain of each band that domains lack energy in: ``[n, channels, bands]``, 0 for the others."""
        posterior = retrieved.posterior(domains)
        drifted = self.retrieval.drifted(posterior, self.spectra.brightness)
        energies = slice(self.spectra.channels, None)  # behind the means of the channels
        deviation = np.maximum(-posterior.mean[:, energies], 0)
        believed = np.maximum(1 - posterior.variance[:, energies] / np.maximum(deviation, 1e-9) ** 2, 0)
        deficit = drifted[:, None] * (believed * deviation * self.std[energies])
        gains: Array = np.minimum(self.strength * deficit / 2, MAX_LOG_GAIN)
        return gains.reshape(-1, self.spectra.channels, self.spectra.bands)

    def equalise(self, coefficients: Single, log_gains: Array, shared: Single | None = None) -> Single:
        """Turn coefficients into images, each amplified by its row of ``log_gains``, or by the one they share.

        The images take the place of the coefficients in memory. ``shared`` are the gains of the one row, if known.
        """
        if len(log_gains) == 1:
            shared = self.spectra.gains(log_gains[0]) if shared is None else shared
            return self.spectra.inverse(coefficients, shared, self.threads)

        def work(image: int) -> None:
            self.spectra.inverse(coefficients[image : image + 1], self.spectra.gains(log_gains[image]))

        self.threads.each(work, range(len(log_gains)))
        return coefficients
