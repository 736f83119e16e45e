import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fozo.core.moments import Moments, MovingAverage
from fozo.core.objective import Objective, entropies
from fozo.methods.common.matching import shifted
from tests.refusals import refuses

RNG = np.random.default_rng(0)
SOURCE = Moments.of(RNG.standard_normal((50, 4, 3)))
FEATURES = RNG.standard_normal((8, 4, 3)) + 0.3
LOGITS = RNG.standard_normal((8, 5))


@given(st.lists(st.floats(-1e4, 1e4), min_size=2, max_size=6))
def test_entropy_lies_between_zero_and_log_classes(row: list[float]) -> None:
    value = float(entropies([row])[0])
    assert -1e-9 <= value <= np.log(len(row)) + 1e-9


def test_entropy_of_known_distributions() -> None:
    np.testing.assert_allclose(entropies([[0.0, 0.0, 0.0], [1000.0, 0.0, 0.0]]), [np.log(3), 0.0], atol=1e-12)


def test_squares_are_the_authors_formula() -> None:
    mean, std = FEATURES.mean(axis=0), FEATURES.std(axis=0, ddof=1)
    stats = ((mean - SOURCE.mean) ** 2).sum() + ((std - SOURCE.std) ** 2).sum()
    expected = 0.4 * stats * 8 / 64 + entropies(LOGITS).sum()
    assert Objective()(SOURCE, Moments.of(FEATURES), LOGITS) == pytest.approx(expected, rel=1e-12)


def test_norms_are_the_papers_formula() -> None:
    """Eq. 13: shallow and deep halves apart, unsquared."""
    mean, std = FEATURES.mean(axis=0) - SOURCE.mean, FEATURES.std(axis=0, ddof=1) - SOURCE.std
    stats = sum(np.linalg.norm(part[half]) for part in (mean, std) for half in (slice(0, 2), slice(2, 4)))
    objective = Objective(distance="norms", weight=0.7)
    expected = 0.7 * stats + entropies(LOGITS).sum()
    assert objective(SOURCE, Moments.of(FEATURES), LOGITS) == pytest.approx(expected, rel=1e-12)


def test_a_single_image_counts_by_its_mean_alone() -> None:
    one = Moments.of(FEATURES[:1])
    expected = 0.4 * ((one.mean - SOURCE.mean) ** 2).sum() / 64 + entropies(LOGITS[:1]).sum()
    assert Objective()(SOURCE, one, LOGITS[:1]) == pytest.approx(expected)


def test_refuses_unknown_switches() -> None:
    refuses("distance", Objective, distance="cosine")
    refuses("weight", Objective, weight=-1)


def test_the_shift_leads_from_the_average_to_the_source() -> None:
    average = MovingAverage.empty((2,))
    pooled = np.zeros((3, 2), np.float32)
    assert shifted(pooled, np.ones(2), average) is pooled  # no batch has been seen
    average = average.update(np.array([1.0, 2.0]), 0.9).update(np.array([2.0, 2.0]), 0.9)
    np.testing.assert_allclose(shifted(pooled, np.ones(2), average), [[-0.1, -1.0]] * 3, rtol=1e-6)
