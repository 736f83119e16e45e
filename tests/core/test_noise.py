"""Addresses of random numbers: what a purpose draws stays what it was, and a method may name its own."""

import numpy as np
import pytest

from fozo.core.noise import Purpose, generator

DRAWN = {
    Purpose.DIRECTIONS: 326627163,
    Purpose.PROMPTS: 122506083,
    Purpose.CMAES: 980096240,
    Purpose.SHUFFLES: 439425197,
    Purpose.SIGNED: 616873952,
    Purpose.ADAPTERS: 245356518,
    Purpose.DROPOUT: 24633248,
}
"""The first whole number below 10^9 of seed 7, step 3, as version 0.2 drew it."""


@pytest.mark.parametrize("purpose", Purpose)
def test_a_purpose_draws_what_it_drew(purpose: Purpose) -> None:
    assert generator(7, purpose, 3).integers(0, 10**9) == DRAWN[purpose]


def test_a_text_is_a_purpose_of_its_own() -> None:
    def draw(seed: int, purpose: Purpose | str, step: int) -> tuple[float, ...]:
        return tuple(generator(seed, purpose, step).random(4))

    others = [draw(7, purpose, 3) for purpose in Purpose]
    others += [draw(7, "mine", 4), draw(8, "mine", 3), draw(7, "mine: dropout", 3), draw(7, "1", 3), draw(7, "", 3)]
    assert draw(7, "mine", 3) == draw(7, "mine", 3) and draw(7, "mine", 3) not in others
    assert len(set(others)) == len(others)


def test_the_largest_seed_and_any_text_make_a_key() -> None:
    assert np.isfinite(generator(2**64 - 1, "é" * 1000).random())
