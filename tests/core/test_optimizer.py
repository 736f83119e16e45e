"""One contract for every optimizer: it descends, it asks the same of the same state, and refuses what are no losses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from fozo.core.cmaes import CMAES
from fozo.core.noise import PhiloxNoise, SignedUniform
from fozo.core.one_sided import OneSidedSPSA, OneSidedState
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.state import State, same
from fozo.types import Array
from tests.refusals import refuses

START = np.linspace(-1, 1, 6)


@dataclass(frozen=True)
class Search:
    """An optimizer; CMA-ES wants to be told the points too."""

    optimizer: Any
    start: State
    tell: Callable[[Any, Array, Any], Any]

    def run(self, state: State, steps: int) -> Any:
        for _ in range(steps):
            points = self.optimizer.ask(state)
            state = self.tell(state, points, sphere(points))
        return state


def spsa() -> Search:
    optimizer = SPSA(START, Schedule(rate=0.05), PhiloxNoise(3), samples=2)
    return Search(optimizer, optimizer.init(), lambda state, points, losses: optimizer.tell(state, losses))


def cmaes(population: int, keep_best: bool) -> Search:
    optimizer = CMAES(START, population=population, keep_best=keep_best, seed=3)
    return Search(optimizer, optimizer.init(), optimizer.tell)


def one_sided() -> Search:
    signs = SignedUniform(3)
    optimizer = OneSidedSPSA(
        descend=lambda point, gradient: point - 0.05 * gradient,
        moves=lambda draw, size: 0.02 * signs(draw, (size,)),
        samples=2,
    )
    return Search(optimizer, OneSidedState(START), lambda state, points, losses: optimizer.tell(state, losses))


MAKES = {
    "n-SPSA": spsa,
    "one-sided SPSA": one_sided,
    "CMA-ES": lambda: cmaes(5, True),
    "mirrored CMA-ES": lambda: cmaes(2, False),
}
every = pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)


def sphere(points: Array) -> Array:
    return np.asarray(np.square(points - 0.3).reshape(len(points), -1).sum(axis=1))


@every
def test_it_descends(make: Callable[[], Search]) -> None:
    search = make()
    after = search.run(search.start, 40)
    assert sphere(after.point[None])[0] < 0.2 * sphere(START[None])[0]


@every
def test_the_same_state_is_asked_and_told_the_same(make: Callable[[], Search]) -> None:
    search = make()
    state = search.run(search.start, 3)
    points = search.optimizer.ask(state)
    assert points.shape == (len(points), *START.shape) and len(points) > 1
    np.testing.assert_array_equal(search.optimizer.ask(state), points)
    assert same(search.run(state, 5), make().run(state, 5))
    assert not np.array_equal(search.optimizer.ask(search.run(state, 1)), points)


@every
def test_losses_that_are_not_one_finite_number_a_point_are_refused(make: Callable[[], Search]) -> None:
    search = make()
    state = search.run(search.start, 2)
    points = search.optimizer.ask(state)
    for bad in (np.nan, np.inf, -np.inf):
        refuses("not all finite", search.tell, state, points, [*sphere(points)[:-1], bad])
    count = len(points)
    for wrong in (np.zeros(count - 1), np.zeros(count + 1), np.zeros((count, 1)), 0.0):
        refuses(f"needs {count} losses", search.tell, state, points, wrong)
