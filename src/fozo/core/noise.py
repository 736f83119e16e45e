"""Random numbers whose every draw has an address, so that a step is its seed and nothing else.

A counter-based generator (Philox) is opened again for each (seed, purpose, step). No state has to be saved, any
step can be drawn again on its own, and nothing global is touched.
"""

import hashlib
import math
from enum import IntEnum
from typing import Protocol

import numpy as np

from fozo.errors import FozoError
from fozo.types import Array

NAMED = 1 << 63  # purposes with a name of their own are numbered from here
HASH_BYTES = 8


class Purpose(IntEnum):
    """Who draws: equal seeds give different numbers for different purposes. A method may also name one of its own."""

    DIRECTIONS = 1
    PROMPTS = 2
    CMAES = 3
    SHUFFLES = 4
    SIGNED = 5
    ADAPTERS = 6
    DROPOUT = 7


class Noise(Protocol):
    """Draws the directions of one optimization step."""

    def __call__(self, step: int, shape: tuple[int, ...]) -> Array:
        """Return standard normal numbers, always the same for the same step and shape."""


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**64:
        raise FozoError(f"the seed is {seed}; give a whole number from 0 to 2**64 - 1")


def generator(seed: int, purpose: Purpose | str, step: int = 0) -> np.random.Generator:
    """Open the stream of random numbers at the address (seed, purpose, step).

    Examples:
        >>> from fozo.core.noise import generator
        >>> generator(0, "my method: dropout", step=3).random()
        0.677...

    Args:
        seed: a whole number from 0 to 2**64 - 1.
        purpose: one of :class:`Purpose`, or any text; a method names its own after itself.
        step: which step of the method draws.
    """
    check_seed(seed)
    # The key holds seed and purpose; the step sits above the 2^192 numbers that one stream could draw.
    key = seed + (_number(purpose) << 64)
    return np.random.Generator(np.random.Philox(key=key, counter=step << 192))


def _number(purpose: Purpose | str) -> int:
    """Number a purpose; the hash of a text has its highest bit set, so that it meets no :class:`Purpose`."""
    if isinstance(purpose, Purpose):
        return purpose
    digest = hashlib.sha256(purpose.encode()).digest()
    return int.from_bytes(digest[:HASH_BYTES], "big") | NAMED


class PhiloxNoise:
    """The standard :class:`Noise`: gaussian directions from a private generator."""

    def __init__(self, seed: int) -> None:
        generator(seed, Purpose.DIRECTIONS)  # refuses a bad seed now rather than at the first batch
        self.seed = seed

    def __call__(self, step: int, shape: tuple[int, ...]) -> Array:
        return generator(self.seed, Purpose.DIRECTIONS, step).standard_normal(shape)


class SignedUniform(PhiloxNoise):
    """Draws uniform in [0.5, 1] with a random sign, so that dividing by them is safe: one-sided SPSA's."""

    def __call__(self, step: int, shape: tuple[int, ...]) -> Array:
        numbers = generator(self.seed, Purpose.SIGNED, step)
        signs: Array = numbers.choice(np.array([-1.0, 1.0]), shape)
        return numbers.uniform(0.5, 1.0, shape) * signs


def starting_prompts(seed: int, count: int, dim: int, patch_area: int) -> Array:
    """Draw ``count`` prompts ``[count, dim]`` as visual prompt tuning does: a Xavier bound for the patch embedding."""
    bound = math.sqrt(6 / (3 * patch_area + dim))
    return generator(seed, Purpose.PROMPTS).uniform(-bound, bound, size=(count, dim))
