"""The order of a stream: domains by scenario, images by seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fozo.data.corruptions import KINDS
from fozo.data.scenarios import (
    SCENARIOS,
    Continual,
    Correlated,
    Day,
    Episodic,
    Gradual,
    Mixed,
    Recurring,
    Scenario,
    Sorted,
)
from tests.refusals import refuses

FIFTEEN, TWO = [f"{kind}/5" for kind in KINDS], ("fog", "snow")


@pytest.mark.parametrize(
    ("scenario", "segments"),
    [
        (Continual(), FIFTEEN),  # the paper's
        (Continual(kinds=("fog", "clean"), severity=3), ["fog/3", "clean"]),
        (Episodic(), FIFTEEN),
        (Mixed(severity=4), ["mixed"]),
        (Gradual(kinds=TWO), [f"{kind}/{severity}" for kind in TWO for severity in "123454321"]),
        (Recurring(kinds=TWO, rounds=3), ["fog/5", "snow/5"] * 3),
        (Day(kinds=TWO, rounds=3), ["clean", "mixed"] * 3),
    ],
)
def test_domains_come_in_the_order_of_the_scenario(scenario: Scenario, segments: list[str]) -> None:
    assert [segment.name for segment in scenario.segments()] == segments
    assert {segment.reset for segment in scenario.segments()} == {isinstance(scenario, Episodic)}
    if isinstance(scenario, Mixed):
        (segment,) = scenario.segments()
        assert [domain.name for domain in segment.domains] == [f"{kind}/4" for kind in KINDS]


def test_images_may_come_sorted_by_class() -> None:
    labels = np.random.default_rng(0).integers(0, 9, 200)
    order = Sorted().order(labels, 1, 0)
    assert (np.diff(labels[order]) >= 0).all() and not np.array_equal(order, Sorted().order(labels, 2, 0))


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        (Gradual(kinds=("clean",)), "leave out 'clean'"),
        (Recurring(rounds=0), "rounds=0"),
        (Correlated(delta=0.0), "delta=0"),
    ],
)
def test_options_without_a_meaning_are_refused(scenario: Scenario, words: str) -> None:
    refuses(words, scenario.segments)


@pytest.mark.parametrize("kinds", [(), "fog"])
def test_kinds_must_be_a_tuple_of_some(kinds: tuple[str, ...]) -> None:
    refuses("give a tuple of at least one name", Continual, kinds=kinds)


@given(
    name=st.sampled_from(sorted(SCENARIOS)),
    labels=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    seed=st.integers(0, 2**63),
    number=st.integers(0, 1000),
)
def test_every_order_is_a_permutation_that_depends_on_its_arguments_alone(
    name: str, labels: list[int], seed: int, number: int
) -> None:
    given_labels = np.array(labels, dtype=np.int64)
    first = SCENARIOS[name]().order(given_labels, seed, number)
    assert sorted(first.tolist()) == list(range(len(labels)))
    np.random.default_rng(0).random()  # unrelated draws change nothing
    np.testing.assert_array_equal(first, SCENARIOS[name]().order(given_labels, seed, number))


def test_orders_differ_by_seed_and_by_segment() -> None:
    labels = np.zeros(100, np.int64)
    orders = [Continual().order(labels, seed, number).tolist() for seed in range(3) for number in range(3)]
    assert len({tuple(order) for order in orders}) == 9
    assert Continual(shuffle=False).order(labels, 1, 1).tolist() == list(range(100))


def test_a_small_delta_keeps_classes_together() -> None:
    labels = np.repeat(np.arange(20), 50)
    orders = [each.order(labels, 0, 0) for each in (Continual(), Correlated(delta=10.0), Correlated(delta=0.01))]
    iid, loose, tight = (np.count_nonzero(np.diff(labels[order])) for order in orders)
    # 1000 images of 20 classes change class 950 times at random, and 19 times at the least.
    assert tight < 60 < loose < iid and iid > 900


def test_the_correlated_order_never_changes() -> None:
    """Pinned: it depends on NumPy's Dirichlet sampler, which NumPy does not promise to keep as it is."""
    order = Correlated(delta=0.5).order(np.repeat(np.arange(3), 4), 0, 0)
    assert order.tolist() == [0, 11, 9, 8, 10, 5, 4, 6, 7, 2, 1, 3]
