"""The optimizer against the paper's theory: unbiased, bias of order eps^2, variance of order r/n."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fozo.core.noise import PhiloxNoise, Purpose, SignedUniform, generator
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA
from fozo.types import Array
from tests.refusals import refuses

CONSTANT = Schedule(epsilon=0.5, epsilon_min=0.5, rate=1.0)


def estimate(losses: Array, spsa: SPSA) -> Array:
    """The gradient that a step with rate 1 followed."""
    before = spsa.init()
    return before.point - spsa.tell(before, losses).point


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
    points = spsa.ask(spsa.init())
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
        return float(np.linalg.norm(estimate((spsa.ask(spsa.init()) ** 3).sum(axis=1), spsa) - linear))

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
            points = spsa.ask(spsa.init())
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
    points = spsa.ask(spsa.init())
    assert points.shape == (4, 3)
    np.testing.assert_allclose((points[0::2] + points[1::2]) / 2, np.tile(np.arange(3.0), (2, 1)))


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
    refuses("seed", PhiloxNoise, -1)


def test_the_schedule_sees_the_best_or_the_mean_loss() -> None:
    for scheduled_loss, loss in (("best", 1.0), ("mean", 3.0)):
        spsa = SPSA(np.zeros(2), CONSTANT, PhiloxNoise(0), samples=2, scheduled_loss=scheduled_loss)
        state = spsa.tell(spsa.init(), [1.0, 2.0, 4.0, 5.0])
        assert state.last is not None and state.last.loss == state.schedule.average == loss


def test_the_next_state_has_seen_one_step_more() -> None:
    spsa = SPSA(np.zeros(2), CONSTANT, PhiloxNoise(0))
    first = spsa.init()
    second = spsa.tell(first, [1.0, 2.0])
    third = spsa.tell(second, [2.0, 1.0])
    assert [state.index for state in (first, second, third)] == [0, 1, 2]
    assert third.last is not None and third.last.index == 1
