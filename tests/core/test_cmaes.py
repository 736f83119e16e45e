from dataclasses import replace

import numpy as np
import pytest

from fozo.core.cmaes import CMAES, decomposed
from fozo.types import Array


def sphere(points: Array) -> Array:
    return np.asarray(np.square(points - 0.3).reshape(len(points), -1).sum(axis=1))


def search(population: int = 6, keep_best: bool = True, seed: int = 0) -> CMAES:
    return CMAES(np.zeros((2, 6)), population=population, keep_best=keep_best, seed=seed)


def test_asks_for_the_population_and_the_last_best_drawn_by_its_seed() -> None:
    optimizer = search(population=5)
    state = optimizer.init()
    points = optimizer.ask(state)
    assert points.shape == (6, 2, 6)
    assert (points[-1] == 0).all()
    state = optimizer.tell(state, points, sphere(points))
    best = points[sphere(points).argmin()]
    assert (state.point == best).all() and (optimizer.ask(state)[-1] == best).all()
    assert len(search(population=5, keep_best=False).ask(search(keep_best=False).init())) == 5
    assert np.array_equal(search(seed=3).ask(search().init()), search(seed=3).ask(search().init()))
    assert not np.array_equal(search(seed=3).ask(search().init()), search(seed=4).ask(search().init()))


@pytest.mark.parametrize(
    ("size", "population", "keep_best"), [(12, 2, False), (12, 2, True), (12, 5, True), (48, 27, True), (320, 9, False)]
)
def test_it_is_pycma(size: int, population: int, keep_best: bool) -> None:
    """Ill-conditioned and rugged, so that paths stall, mirrors are tried and points are shortened."""
    cma = pytest.importorskip("cma")
    ours, theirs = (np.random.RandomState(1) for _ in range(2))
    search = CMAES(np.zeros(size), population=population, keep_best=keep_best, draws=lambda step: ours.randn)
    settings = {"popsize": population, "AdaptSigma": cma.sigma_adaptation.CMAAdaptSigmaCSA, "seed": np.nan}
    oracle = cma.CMAEvolutionStrategy(np.zeros(size), 1.0, settings | {"randn": theirs.randn, "verbose": -9})
    best = np.zeros(size)
    state = search.init()
    for _ in range(40):
        expected = np.array(oracle.ask() + [best] * keep_best)
        asked = search.ask(state)
        np.testing.assert_allclose(asked, expected, atol=1e-8)
        losses = (np.linspace(1, 30, size) * (expected - 0.3) ** 2 + np.sin(7 * expected)).sum(axis=1)
        best = expected[losses.argmin()]
        oracle.tell(list(expected), losses.tolist())
        state = search.tell(state, asked, losses)
        np.testing.assert_allclose(state.sigma, oracle.sigma, rtol=1e-9)


def test_small_eigenvalues_are_raised_to_the_largest_condition() -> None:
    singular = replace(search().init(), covariance=np.diag([1e20, *np.ones(10), -1.0]))  # but for rounding
    state = decomposed(singular)
    condition = (state.lengths.max() / state.lengths.min()) ** 2
    assert condition == pytest.approx(1e14) and np.isfinite(search().ask(state)).all()
