import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fozo.core.moments import Moments, Window, log_variance, shrinkage
from fozo.errors import FozoError

NUMBERS = arrays(np.float64, st.tuples(st.integers(2, 30), st.integers(1, 4)), elements=st.floats(-1e6, 1e6))


@given(values=NUMBERS, cuts=st.lists(st.integers(1, 29), max_size=5))
def test_moments_equal_numpys_on_any_split(values: np.ndarray, cuts: list[int]) -> None:
    parts = [part for part in np.split(values, sorted({c for c in cuts if c < len(values)})) if len(part)]
    total = Moments.of(parts[0])
    for part in parts[1:]:
        total = total.merge(Moments.of(part))
    scale = np.abs(values).max() + 1
    assert total.count == len(values)
    np.testing.assert_allclose(total.mean, values.mean(axis=0), rtol=0, atol=1e-12 * scale)
    np.testing.assert_allclose(total.std, values.std(axis=0, ddof=1), rtol=1e-9, atol=1e-7 * scale)


def test_moments_are_stable_far_from_zero() -> None:
    values = 1e9 + np.random.default_rng(0).standard_normal((1000, 3))
    total = Moments.of(values[:1])
    for row in values[1:]:
        total = total.merge(Moments.of(row[None]))
    np.testing.assert_allclose(total.std, values.std(axis=0, ddof=1), rtol=1e-6)


def test_one_value_has_no_standard_deviation() -> None:
    with pytest.raises(FozoError, match="at least two"):
        _ = Moments.of(np.zeros((1, 3))).std


def test_the_logarithm_of_a_variance_is_finite_always() -> None:
    np.testing.assert_allclose(log_variance([1.0, np.e]), [0.0, 1.0], atol=1e-9)
    assert np.isfinite(log_variance(0.0))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_window_keeps_the_latest_rows(sizes: list[int]) -> None:
    window = Window.empty((1,))
    rows = np.arange(sum(sizes), dtype=np.float64)[:, None]
    seen = 0
    for size in sizes:
        batch = rows[seen : seen + size]
        before = rows[max(0, seen - max(0, 6 - size)) : seen] if size < 6 else rows[:0]
        expected = np.concatenate([before, batch])
        joined = expected if size == 1 else batch
        moments = window.moments(batch, 6)
        assert moments.count == len(joined)
        np.testing.assert_allclose(moments.mean, joined.mean(axis=0))
        window = window.push(batch, 6)
        seen += size


def test_shrinkage_keeps_what_is_beyond_the_expected_error() -> None:
    assert shrinkage([1.0, 1.0, 0.0, 1.0], [4.0, 0.5, 0.0, 0.0]).tolist() == [0.75, 0.0, 1.0, 0.0]
