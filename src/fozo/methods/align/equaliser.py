"""The equaliser: restoring detail and contrast that an image's domain lacks, before the model sees the image.

Blur, fog, low contrast, zoom and camera shake weaken whole bands of spatial frequency. How strong each band is on clean
images is part of the source statistics (:mod:`fozo.core.descriptor`); how strong it is in the present domain follows
from the domain estimates of :mod:`~fozo.methods.align.retrieval`. As an audio equaliser would, every band that is too
weak is amplified:

    log gain = min(strength * deficit / 2, log 4),        deficit = max(0, clean log energy - domain's log energy)

A strength of 1 would restore the energy (which is amplitude squared), 0 leaves the image as it is. Bands that are too
*strong* are left alone: the excess may be noise, but the picture is in the same band.

A domain estimate is uncertain, the more so the fewer images it rests on. Of a deviation of d standard errors, the part
1 - 1/d^2 is believed (James and Stein's estimate), and nothing of less than one.
"""

from __future__ import annotations

import numpy as np

from fozo.core.descriptor import ONE, Single, Spectra
from fozo.methods.align.retrieval import DomainEstimate
from fozo.types import Array, Threads

MAX_LOG_GAIN = np.log(4.0)
"""No band is amplified more than fourfold: beyond it, the rounding to 8 bits would show."""


def log_gains(
    spectra: Spectra, domains: DomainEstimate, drifted: Array, descriptor_std: Array, strength: float
) -> Array:
    """Return the log gain of each band that domains lack energy in: ``[n, channels, bands]``, 0 for the others.

    Args:
        spectra: of the images.
        domains: estimates in units of ``descriptor_std``, the standard deviations of clean descriptors.
        drifted: how far domains are from clean, 0 to 1, ``[n]``.
        descriptor_std: ``[features]``.
        strength: 0 to 1.
    """
    energies = slice(spectra.channels, None)  # behind the means of the channels
    deviation = np.maximum(-domains.mean[:, energies], 0)
    believed = np.maximum(1 - domains.variance[:, energies] / np.maximum(deviation, 1e-9) ** 2, 0)
    deficit = drifted[:, None] * (believed * deviation * descriptor_std[energies])
    gains: Array = np.minimum(strength * deficit / 2, MAX_LOG_GAIN)
    return gains.reshape(-1, spectra.channels, spectra.bands)


def equalise(spectra: Spectra, coefficients: Single, gains: Array, threads: Threads = ONE) -> Single:
    """Return the images of ``coefficients``, each amplified by its row of log ``gains``, or by the one they share.

    The images take the place of the coefficients in memory.
    """
    if len(gains) == 1:
        return spectra.inverse(coefficients, spectra.gains(gains[0]), threads)

    def work(image: int) -> None:
        spectra.inverse(coefficients[image : image + 1], spectra.gains(gains[image]))

    threads.each(work, range(len(gains)))
    return coefficients
