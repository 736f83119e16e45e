import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fozo.core.moments import Moments
from fozo.core.objective import Objective, entropies
from fozo.errors import FozoError
from fozo.methods.common.matching import ActivationShift

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
    with pytest.raises(FozoError, match="distance"):
        Objective(distance="cosine")
    with pytest.raises(FozoError, match="weight"):
        Objective(weight=-1)


@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_the_shift_leads_from_the_average_to_the_source(scale: float) -> None:
    """A scale of 2 sums the sides, as published."""
    shift = ActivationShift(2, scale)
    assert shift.vector(np.ones(2)) is None
    shift.observe([1.0, 2.0])
    shift.observe([2.0, 2.0])
    vector = shift.vector(np.ones(2))
    assert vector is not None
    np.testing.assert_allclose(vector, 1 - scale * np.array([1.1, 2.0]))


def test_standardised_counts_images_in_clean_deviations_and_does_not_grow_with_the_batch() -> None:
    deep, std = slice(len(SOURCE.std) // 2, None), FEATURES.std(axis=0, ddof=1)
    stats = ((std - SOURCE.std)[deep] ** 2 / SOURCE.std[deep] ** 2).mean()  # means are the shift's
    average = np.exp(LOGITS) / np.exp(LOGITS).sum(axis=1, keepdims=True)
    balance = np.log(5) + (average.mean(axis=0) * np.log(average.mean(axis=0))).sum()
    expected = entropies(LOGITS).mean() + balance + 0.4 * stats
    objective = Objective(distance="standardised")
    assert objective(SOURCE, Moments.of(FEATURES), LOGITS) == pytest.approx(expected, rel=1e-12)
    assert objective.misalignment(SOURCE, Moments.of(FEATURES[:1])) == 0.0  # one image has no standard deviation
    alone = Objective(weight=0.0, distance="standardised")
    twice = [alone(SOURCE, Moments.of(FEATURES), logits) for logits in (LOGITS, np.tile(LOGITS, (2, 1)))]
    assert twice[0] == pytest.approx(twice[1], rel=1e-12)
