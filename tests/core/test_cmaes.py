from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from fozo.core.cmaes import CMAES
from fozo.errors import FozoError

Array = npt.NDArray[np.float64]


def sphere(points: Array) -> Array:
    losses: Array = ((points - 0.3) ** 2).reshape(len(points), -1).sum(axis=1)
    return losses


def search(dimension: int = 12, population: int = 6, keep_best: bool = True, seed: int = 0) -> CMAES:
    return CMAES(np.zeros((2, dimension // 2)), population=population, keep_best=keep_best, seed=seed)


def test_finds_the_minimum_of_a_sphere() -> None:
    optimizer = search(population=12)
    first = sphere(optimizer.ask()).min()
    for _ in range(150):
        losses = sphere(optimizer.ask())
        optimizer.tell(losses)
    assert losses.min() < 1e-6 * first
    np.testing.assert_allclose(optimizer.point, 0.3, atol=1e-3)


def test_asks_for_the_population_and_the_last_best() -> None:
    optimizer = search(population=5)
    points = optimizer.ask()
    assert points.shape == (6, 2, 6)
    assert (points[-1] == 0).all()
    optimizer.tell(sphere(points))
    best = points[sphere(points).argmin()]
    assert (optimizer.point == best).all() and (optimizer.ask()[-1] == best).all()
    assert len(search(population=5, keep_best=False).ask()) == 5


def test_asking_again_gives_the_same_and_changes_nothing() -> None:
    optimizer = search()
    optimizer.tell(sphere(optimizer.ask()))
    before = optimizer.state()
    once = optimizer.ask()
    after = optimizer.state()
    assert np.array_equal(optimizer.ask(), once)
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)


def test_a_step_is_its_seed() -> None:
    assert np.array_equal(search(seed=3).ask(), search(seed=3).ask())
    assert not np.array_equal(search(seed=3).ask(), search(seed=4).ask())


@pytest.mark.parametrize(("dimension", "population", "keep_best"), [(12, 6, True), (12, 2, False), (12, 2, True)])
@pytest.mark.parametrize("at", [0, 1, 7, 30])
def test_a_restored_search_continues_bit_for_bit(dimension: int, population: int, keep_best: bool, at: int) -> None:
    unbroken = search(dimension, population, keep_best)
    for _ in range(at):
        unbroken.tell(sphere(unbroken.ask()))
    unbroken.ask()  # asked and not told, as after a batch that failed
    restored = search(dimension, population, keep_best, seed=0)
    restored.tell(sphere(restored.ask()) * np.arange(population + keep_best))
    restored.load_state(unbroken.state())
    for _ in range(40):
        points = unbroken.ask()
        assert np.array_equal(restored.ask(), points)
        losses = sphere(points)
        unbroken.tell(losses)
        restored.tell(losses)
    theirs, ours = unbroken.state(), restored.state()
    assert all(np.array_equal(theirs[name], ours[name], equal_nan=True) for name in theirs)


@pytest.mark.parametrize(
    ("size", "population", "keep_best"), [(12, 2, False), (12, 2, True), (12, 5, True), (48, 27, True), (320, 2, True)]
)
def test_it_is_pycma(size: int, population: int, keep_best: bool) -> None:
    """Ill-conditioned and rugged, so that paths stall, mirrors are tried and points are shortened."""
    cma = pytest.importorskip("cma")
    ours, theirs = (np.random.RandomState(1) for _ in range(2))
    search = CMAES(np.zeros(size), population=population, keep_best=keep_best, draws=lambda step: ours.randn)
    settings = {"popsize": population, "AdaptSigma": cma.sigma_adaptation.CMAAdaptSigmaCSA, "seed": np.nan}
    oracle = cma.CMAEvolutionStrategy(np.zeros(size), 1.0, settings | {"randn": theirs.randn, "verbose": -9})
    best = np.zeros(size)
    for _ in range(40):
        expected = np.array(oracle.ask() + [best] * keep_best)
        found = search.ask()
        np.testing.assert_allclose(found, expected, atol=1e-8)
        losses = (np.linspace(1, 30, size) * (expected - 0.3) ** 2 + np.sin(7 * expected)).sum(axis=1)
        best = expected[losses.argmin()]
        oracle.tell(list(expected), losses.tolist())
        search.tell(losses)
        np.testing.assert_allclose(search.sigma, oracle.sigma, rtol=1e-9)


def test_telling_without_having_asked_is_refused() -> None:
    with pytest.raises(FozoError, match="after ask"):
        search().tell(np.zeros(7))


def test_a_population_of_one_is_refused() -> None:
    with pytest.raises(FozoError, match="at least 2"):
        search(population=1)
