"""One contract for every optimizer: ask, tell, and a state that goes on bit for bit."""

from collections.abc import Callable

import numpy as np
import pytest

from fozo.core.cmaes import CMAES
from fozo.core.noise import PhiloxNoise, SignedUniform
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA, OneSidedSPSA
from fozo.errors import FozoError
from fozo.testing import same
from fozo.types import Array

START, SIGNED = np.linspace(-1, 1, 6), SignedUniform(3)
Optimizer = SPSA | OneSidedSPSA | CMAES
Make = Callable[[], Optimizer]
MAKES: dict[str, Make] = {
    "n-SPSA": lambda: SPSA(START, Schedule(rate=0.05), PhiloxNoise(3), samples=2),
    "one-sided SPSA": lambda: OneSidedSPSA(
        START, lambda point, gradient: point - 0.05 * gradient, lambda draw, n: 0.02 * SIGNED(draw, (n,)), samples=2
    ),
    "CMA-ES": lambda: CMAES(START, population=5, keep_best=True, seed=3),
    "mirrored CMA-ES": lambda: CMAES(START, population=2, keep_best=False, seed=3),
}
every = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


def sphere(points: Array) -> Array:
    return np.asarray(np.square(points - 0.3).sum(axis=1))


def run(optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.tell(sphere(optimizer.ask()))


@every
def test_it_descends(make: Make) -> None:
    optimizer = make()
    before = sphere(optimizer.point[None])[0]
    run(optimizer, 40)
    assert sphere(optimizer.point[None])[0] < 0.2 * before


@every
def test_asking_is_repeatable_until_losses_come_and_changes_nothing(make: Make) -> None:
    optimizer = make()
    run(optimizer, 3)
    before, point = optimizer.state(), optimizer.point.copy()
    asked = optimizer.ask()
    assert asked.shape == (len(asked), *START.shape) and len(asked) > 1
    np.testing.assert_array_equal(optimizer.ask(), asked)
    assert same(optimizer.state(), before)
    np.testing.assert_array_equal(optimizer.point, point)
    optimizer.tell(sphere(asked))
    assert not np.array_equal(optimizer.ask(), asked)


@every
def test_losses_that_are_not_one_finite_number_a_point_change_nothing(make: Make) -> None:
    optimizer, twin = make(), make()
    for each in (optimizer, twin):
        run(each, 2)
    points, before = optimizer.ask(), optimizer.state()
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(FozoError, match="not all finite"):
            optimizer.tell([*sphere(points)[:-1], bad])
    count = len(points)
    for wrong in (np.zeros(count - 1), np.zeros(count + 1), np.zeros((count, 1)), 0.0):
        with pytest.raises(FozoError, match=f"needs {count} losses"):
            optimizer.tell(wrong)
    assert same(optimizer.state(), before)
    np.testing.assert_array_equal(optimizer.ask(), points)
    for each in (optimizer, twin):
        run(each, 3)
    np.testing.assert_array_equal(optimizer.point, twin.point)


@every
@pytest.mark.parametrize("at", [0, 1, 5])
@pytest.mark.parametrize("asked", [False, True])
def test_a_state_taken_anywhere_goes_on_bit_for_bit(make: Make, at: int, asked: bool) -> None:
    unbroken, resumed = make(), make()
    run(unbroken, at)
    if asked:  # without losses, as after a batch that failed
        unbroken.ask()
    saved = {name: value.copy() for name, value in unbroken.state().items()}
    run(resumed, 2)  # whatever it learned before must not shine through
    resumed.ask()
    resumed.load_state(saved)
    assert same(resumed.state(), saved)
    for _ in range(10):
        points = unbroken.ask()
        np.testing.assert_array_equal(resumed.ask(), points)
        for each in (unbroken, resumed):
            each.tell(sphere(points))
    assert same(resumed.state(), unbroken.state())


@every
def test_a_state_is_a_copy(make: Make) -> None:
    optimizer = make()
    run(optimizer, 2)
    saved = optimizer.state()
    copied = {name: value.copy() for name, value in saved.items()}
    run(optimizer, 2)
    assert same(saved, copied)
    optimizer.load_state(saved)
    run(optimizer, 2)
    assert same(saved, copied)
