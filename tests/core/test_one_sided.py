from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fozo.core.noise import SignedUniform
from fozo.core.one_sided import OneSidedSPSA, OneSidedState


@given(seed=st.integers(0, 2**32), dim=st.integers(1, 8))
@settings(max_examples=10, deadline=None)
def test_it_is_unbiased_on_a_linear_loss(seed: int, dim: int) -> None:
    """E[(l(x + c z) - l(x)) / (c z_i)] = g_i: signs are independent, so the other coordinates average out."""
    samples = 1000
    gradient = np.random.default_rng(seed).standard_normal(dim)
    noise = SignedUniform(seed)
    start = OneSidedState(np.ones(dim))
    search = OneSidedSPSA(np.subtract, lambda draw, size: 0.1 * noise(draw, (size,)), samples)
    points = search.ask(start)
    np.testing.assert_array_equal(points[0], start.point)
    state = search.tell(start, points @ gradient)
    # Ratios of two draws from [0.5, 1] are 2 at most, so a coordinate varies by less than (2 |g|)^2.
    tolerance = 6 * 2 * float(np.linalg.norm(gradient)) / np.sqrt(samples)
    np.testing.assert_allclose(start.point - state.point, gradient, atol=tolerance)
    assert state.draws == samples


def test_a_step_by_hand() -> None:
    moves = (0.5, -0.25)
    search = OneSidedSPSA(np.subtract, lambda draw, size: np.full(size, moves[draw]), samples=2)
    start = OneSidedState(np.array([10.0]))
    assert search.ask(start).tolist() == [[10.0], [10.5], [9.75]]
    state = search.tell(start, [1.0, 2.0, 3.0])
    gradient = ((2.0 - 1.0) / 0.5 + (3.0 - 1.0) / -0.25) / 2
    assert state.point.tolist() == [10.0 - gradient]
    assert OneSidedSPSA(np.subtract, search.moves).ask(start).shape == (2, 1)


def test_a_point_may_grow_between_steps() -> None:
    search = OneSidedSPSA(np.subtract, lambda draw, size: np.full(size, 0.5))
    state = search.tell(OneSidedState(np.zeros(2)), [1.0, 2.0])
    longer = replace(state, point=np.append(state.point, 0.5))
    assert search.tell(longer, [1.0, 2.0]).point.shape == (3,)
