"""Giving images back the detail and contrast that their domain lacks, before the model sees them.

Blur, fog, low contrast, zoom and camera shake weaken whole bands of spatial frequency. How strong each band is on clean
images is part of the source statistics (:mod:`fozo.core.look`); how strong it is in the present domain is told by the
keys of :mod:`fozo.core.recall`. So, as an audio equaliser would, every band that is too weak is amplified:

    log gain = min(part * missing / 2, log 4),        missing = max(0, clean log energy - domain's log energy)

``part`` = 1 would restore the energy (which is amplitude squared), 0 leaves the image as it is. Bands that are too
*strong* are left alone: what is too much there may be noise, but the picture is in there as well.

A key is uncertain, and the more so the fewer images it rests on. Of a deviation of d standard errors, the part
1 - 1/d^2 is believed (James and Stein's estimate), and nothing of less than one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fozo.core.look import Array, Single, Spectra
from fozo.core.recall import Keys

MOST = np.log(4.0)
"""No band is amplified more than fourfold: beyond it, it is the rounding to 8 bits that would be seen."""


def missing(spectra: Spectra, keys: Keys, spread: Array) -> Array:
    """Return how much log energy the domains of ``keys`` lack in each band: ``[n, channels, bands]``, 0 if none.

    ``spread`` are the standard deviations of clean looks, in whose units keys are.
    """
    deviation = np.maximum(-keys.centre, 0)
    believed = np.maximum(1 - keys.variance / np.maximum(deviation, 1e-9) ** 2, 0)
    return spectra.energies(believed * deviation * spread)


def equalise(spectra: Spectra, coefficients: Single, lacking: Array, part: float) -> npt.NDArray[np.float32]:
    """Return the images of ``coefficients`` with what their bands are ``lacking`` (``[B or 1, ...]``) given back."""
    gain = np.exp(spectra.spread_out(np.minimum(part * lacking / 2, MOST)))
    gain[..., 0, 0] = 1  # the mean is no detail
    return spectra.inverse(coefficients * gain)
