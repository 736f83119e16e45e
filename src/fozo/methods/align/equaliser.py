"""The equaliser: giving images back the detail and contrast that their domain lacks, before the model sees them.

Blur, fog, low contrast, zoom and camera shake weaken whole bands of spatial frequency. How strong each band is on clean
images is part of the source statistics (:mod:`fozo.core.descriptor`); how strong it is in the present domain is told by
the domain estimates of :mod:`~fozo.methods.align.retrieval`. So, as an audio equaliser would, every band that is too
weak is amplified:

    log gain = min(strength * deficit / 2, log 4),        deficit = max(0, clean log energy - domain's log energy)

A strength of 1 would restore the energy (which is amplitude squared), 0 leaves the image as it is. Bands that are too
*strong* are left alone: what is too much there may be noise, but the picture is in there as well.

A domain estimate is uncertain, and the more so the fewer images it rests on. Of a deviation of d standard errors, the
part 1 - 1/d^2 is believed (James and Stein's estimate), and nothing of less than one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fozo.core.descriptor import ONE, Single, Spectra
from fozo.methods.align.retrieval import DomainEstimate
from fozo.types import Array, Threads

MAX_LOG_GAIN = np.log(4.0)
"""No band is amplified more than fourfold: beyond it, it is the rounding to 8 bits that would be seen."""


def energy_deficit(spectra: Spectra, domains: DomainEstimate, descriptor_std: Array) -> Array:
    """Return how much log energy domains lack in each band: ``[n, channels, bands]``, 0 if none.

    ``descriptor_std`` are the standard deviations of clean descriptors, in whose units the estimates are.
    """
    deviation = np.maximum(-domains.mean, 0)
    believed = np.maximum(1 - domains.variance / np.maximum(deviation, 1e-9) ** 2, 0)
    return spectra.log_energies(believed * deviation * descriptor_std)


def band_gains(spectra: Spectra, deficit: Array, strength: float) -> Single:
    """Turn the ``deficit`` of one domain's bands ``[channels, bands]`` into a gain for every coefficient."""
    gain = np.exp(spectra.interpolate(np.minimum(strength * deficit / 2, MAX_LOG_GAIN)))
    gain[..., 0, 0] = 1  # the mean is no detail
    return gain


def equalise(
    spectra: Spectra, coefficients: Single, deficit: Array, strength: float, threads: Threads = ONE
) -> npt.NDArray[np.float32]:
    """Return the images of ``coefficients`` with the ``deficit`` of their bands (``[B or 1, ...]``) given back.

    The images take the place of the coefficients in memory.
    """
    if len(deficit) == 1:
        return spectra.inverse(coefficients, band_gains(spectra, deficit[0], strength), threads)

    def work(image: int) -> None:
        spectra.inverse(coefficients[image : image + 1], band_gains(spectra, deficit[image], strength))

    threads.each(work, range(len(deficit)))
    return coefficients
