"""Noise of the sensor. These four work on any number of channels, each with its own draws."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from fozo.data.corruptions.common import quantise
from fozo.data.images import Pixels


def gaussian_noise(image: Pixels, rng: Generator, scale: float) -> Pixels:
    """Low light: normal noise of one strength everywhere."""
    return quantise(image / 255 + rng.normal(scale=scale, size=image.shape))


def shot_noise(image: Pixels, rng: Generator, photons: float) -> Pixels:
    """Few photons: each value is a Poisson count."""
    return quantise(rng.poisson(image / 255 * photons) / photons)


def impulse_noise(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Bit errors: a share of the values becomes black or white, with equal chances."""
    broken = rng.random(image.shape) <= share
    white = rng.random(image.shape) <= 0.5
    return np.where(broken, np.where(white, 255, 0), quantise(image / 255)).astype(np.uint8)


def speckle_noise(image: Pixels, rng: Generator, scale: float) -> Pixels:
    """Normal noise proportional to the value."""
    clean = image / 255
    return quantise(clean + clean * rng.normal(scale=scale, size=image.shape))
