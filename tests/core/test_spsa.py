"""The optimizer against the paper's theory: unbiased, bias of order eps^2, variance of order r/n."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fozo.core.noise import PhiloxNoise, Purpose, SignedUniform, generator
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA, OneSidedSPSA
from fozo.errors import FozoError
from fozo.types import Array

CONSTANT = Schedule(epsilon=0.5, epsilon_min=0.5, rate=1.0)


def estimate(losses: Array, spsa: SPSA) -> Array:
    """The gradient that a step with rate 1 followed."""
    before = spsa.point
    spsa.tell(losses)
    return before - spsa.point


def quadratic(seed: int, dim: int, rank: int) -> tuple[Array, Array, Array]:
    """A start, a linear term and a positive Hessian with ``rank`` eigenvalues of 1."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
    return rng.standard_normal(dim), basis @ rng.standard_normal(rank), basis @ basis.T


@given(seed=st.integers(0, 2**32), dim=st.integers(2, 12))
@settings(max_examples=15, deadline=None)
def test_unbiased_on_a_quadratic(seed: int, dim: int) -> None:
    n = 4000
    start, linear, hessian = quadratic(seed, dim, rank=dim)
    spsa = SPSA(start, CONSTANT, PhiloxNoise(seed), samples=n)
    points = spsa.ask()
    losses = points @ linear + 0.5 * np.einsum("ki,ij,kj->k", points, hessian, points)
    gradient = linear + hessian @ start
    # Var of one coordinate of (z.g) z is |g|^2 + g_i^2 <= 2 |g|^2.
    error = float(np.sqrt(2 * (gradient @ gradient) / n))
    np.testing.assert_allclose(estimate(losses, spsa), gradient, rtol=0, atol=6 * error)


@given(seed=st.integers(0, 2**32), dim=st.integers(1, 10), epsilon=st.floats(0.05, 2))
@settings(max_examples=25, deadline=None)
def test_bias_falls_as_epsilon_squared_on_a_cubic(seed: int, dim: int, epsilon: float) -> None:
    """Theorem 1's bias term: halving eps quarters the distance to the estimate along the true derivative."""
    start = np.random.default_rng(seed).standard_normal(dim)
    noise = PhiloxNoise(seed)
    directions = noise(0, (8, dim))
    linear = np.mean([(z @ (3 * start**2)) * z for z in directions], axis=0)

    def bias(scale: float) -> float:
        spsa = SPSA(start, Schedule(epsilon=scale, epsilon_min=scale, rate=1.0), noise, samples=8)
        return float(np.linalg.norm(estimate((spsa.ask() ** 3).sum(axis=1), spsa) - linear))

    assert bias(epsilon) == pytest.approx(4 * bias(epsilon / 2), rel=1e-6)


@pytest.mark.parametrize(("rank", "n"), [(4, 1), (4, 4), (16, 1), (16, 4)])
def test_variance_term_grows_with_the_rank_and_falls_with_n_whatever_the_dimension(rank: int, n: int) -> None:
    """Theorem 1's variance term: what the estimate's scatter costs in loss is r/n, in 32 dimensions and in 256.

    With G the estimate of g, E[G^T H G] = g^T H g + (|g|^2 tr H + g^T H g) / n, and tr H = r |H|. (The plain norm
    E|G|^2 does grow with the dimension, as (d + 1)/n: it is the loss's curvature that makes most of it harmless.)
    """
    costs = {}
    for dim in (32, 256):
        start, linear, hessian = quadratic(rank, dim, rank)
        gradient = linear + hessian @ start
        squared = gradient @ gradient
        samples = []
        for trial in range(600):
            spsa = SPSA(start, CONSTANT, PhiloxNoise(trial), samples=n)
            points = spsa.ask()
            losses = points @ linear + 0.5 * np.einsum("ki,ij,kj->k", points, hessian, points)
            step = estimate(losses, spsa)
            samples.append((step @ hessian @ step - gradient @ hessian @ gradient) / squared)
        costs[dim] = np.mean(samples)
        expected = (rank + gradient @ hessian @ gradient / squared) / n
        scatter = np.std(samples) / np.sqrt(len(samples))
        assert abs(costs[dim] - expected) < 5 * scatter
        assert scatter < expected / 5  # the test can tell r/n from d/n


def test_ask_gives_plus_and_minus_pairs() -> None:
    spsa = SPSA(np.arange(3.0), CONSTANT, PhiloxNoise(1), samples=2)
    points = spsa.ask()
    assert points.shape == (4, 3)
    np.testing.assert_allclose((points[0::2] + points[1::2]) / 2, np.tile(np.arange(3.0), (2, 1)))


@given(seed=st.integers(0, 2**32), dim=st.integers(2, 8))
@settings(max_examples=10, deadline=None)
def test_one_sided_spsa_is_unbiased_on_a_linear_loss(seed: int, dim: int) -> None:
    """E[(l(x + c z) - l(x)) / (c z_i)] = g_i: signs are independent, so the other coordinates average out."""
    n, gradient = 1000, np.random.default_rng(seed).standard_normal(dim)
    noise, found = SignedUniform(seed), []

    def collect(point: Array, estimate: Array) -> Array:
        found.append(estimate)
        return point - estimate

    start = np.ones(dim)
    spsa = OneSidedSPSA(start, collect, lambda draw, size: 0.1 * noise(draw, (size,)), samples=n)
    points = spsa.ask()
    np.testing.assert_array_equal(points[0], start)
    spsa.tell(points @ gradient)
    # Ratios of two draws from [0.5, 1] are 2 at most, so a coordinate varies by less than (2 |g|)^2.
    np.testing.assert_allclose(found[0], gradient, atol=6 * 2 * float(np.linalg.norm(gradient)) / np.sqrt(n))
    np.testing.assert_array_equal(spsa.point, start - found[0])
    assert spsa.index == n


def test_signed_draws_keep_away_from_zero() -> None:
    draws = SignedUniform(3)(7, (1000,))
    assert (np.abs(draws) >= 0.5).all() and (np.abs(draws) <= 1).all()
    assert 400 < (draws > 0).sum() < 600
    assert (draws == SignedUniform(3)(7, (1000,))).all()
    assert (draws != SignedUniform(3)(8, (1000,))).any()


def test_noise_has_an_address() -> None:
    noise = PhiloxNoise(7)
    np.testing.assert_array_equal(noise(3, (2, 5)), PhiloxNoise(7)(3, (2, 5)))
    assert not np.array_equal(noise(3, (5,)), noise(4, (5,)))
    assert not np.array_equal(noise(3, (5,)), PhiloxNoise(8)(3, (5,)))
    assert not np.array_equal(generator(7, Purpose.PROMPTS).random(5), generator(7, Purpose.CMAES).random(5))
    with pytest.raises(FozoError, match="seed"):
        PhiloxNoise(-1)


def test_the_schedule_sees_the_best_or_the_mean_loss() -> None:
    for watch, loss in (("best", 1.0), ("mean", 3.0)):
        spsa = SPSA(np.zeros(2), CONSTANT, PhiloxNoise(0), samples=2, watch=watch)
        spsa.ask()
        spsa.tell([1.0, 2.0, 4.0, 5.0])
        assert spsa.last is not None and spsa.last.loss == spsa.pace.average == loss


def test_a_one_sided_state_may_have_grown() -> None:
    spsa = OneSidedSPSA(np.zeros(3), np.subtract, lambda draw, size: np.ones(size))
    spsa.load_state({"point": np.array([1.0, 2.0]), "index": np.array(7)})
    assert spsa.point.tolist() == [1.0, 2.0] and spsa.index == 7


@pytest.mark.parametrize("loss_unit", [1e-3, 1.0, 1e4])
def test_with_a_radius_steps_do_not_depend_on_the_unit_of_the_loss_and_stay_within_it(loss_unit: float) -> None:
    runs = []
    for unit in (1.0, loss_unit):
        spsa = SPSA(np.zeros(6), Schedule(epsilon=0.1, epsilon_min=0.1, rate=0.3), PhiloxNoise(1), radius=0.5)
        for _ in range(40):
            spsa.tell(unit * (1 + np.square(spsa.ask() - 3.0).sum(axis=1)))
            assert np.sqrt(np.square(spsa.point).mean()) <= 0.5 + 1e-9
        runs.append(spsa)
    np.testing.assert_allclose(runs[0].point, runs[1].point, rtol=1e-6)
    assert runs[0].point.mean() > 0.3  # towards the optimum at 3, as far as it may
    other = SPSA(np.zeros(6), runs[0].schedule, PhiloxNoise(1), radius=0.5)
    other.load_state(runs[0].state())
    for spsa in (runs[0], other):
        spsa.tell(np.square(spsa.ask()).sum(axis=1))
    np.testing.assert_array_equal(other.point, runs[0].point)


def test_with_a_radius_rounding_is_not_scaled_up_to_steps() -> None:
    spsa = SPSA(np.zeros(6), Schedule(rate=0.3), PhiloxNoise(1), radius=1.0)
    spsa.tell([1.0, 1.0 + 1e-15])
    assert np.abs(spsa.point).max() < 1e-6
