"""Random numbers whose every draw has an address, so that a step is its seed and nothing else.

A counter-based generator (Philox) is opened anew for each (seed, purpose, step). No state has to be saved, any
step can be drawn again on its own, and nothing global is touched.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError

Array = npt.NDArray[np.float64]


class Noise(Protocol):
    """Draws the directions of one optimization step."""

    def __call__(self, step: int, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers, always the same for the same step and shape."""


def generator(seed: int, purpose: int, step: int = 0) -> np.random.Generator:
    """Open the stream of random numbers at the address (seed, purpose, step)."""
    if not 0 <= seed < 2**64:
        raise FozoError(f"seed must lie in [0, 2^64), not {seed}")
    # The key holds seed and purpose; the step sits above the 2^192 numbers that one stream could draw.
    return np.random.Generator(np.random.Philox(key=seed + (purpose << 64), counter=step << 192))


class PhiloxNoise:
    """The standard :class:`Noise`: gaussian directions from a private generator."""

    PURPOSE = 1

    def __init__(self, seed: int) -> None:
        generator(seed, self.PURPOSE)  # refuses a bad seed now rather than at the first batch
        self.seed = seed

    def __call__(self, step: int, shape: tuple[int, ...]) -> Array:
        """Return the directions of ``step``."""
        return generator(self.seed, self.PURPOSE, step).standard_normal(shape)


def uniform_prompts(seed: int, count: int, dim: int, bound: float) -> Array:
    """Draw the initial prompts from U(-bound, bound)."""
    return generator(seed, purpose=2).uniform(-bound, bound, size=(count, dim))
