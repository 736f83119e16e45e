"""Slots: groups find the slot of their domain, and room is made for new ones."""

from dataclasses import replace

import numpy as np
import pytest

import fozo
from fozo.core.statistics import Statistics
from fozo.methods.align.memory import DomainEstimate
from fozo.methods.align.slots import Slot, by_domain, nearest, with_heavy_room, with_room
from fozo.methods.align.tokens import CleanTokens

FEATURES = 21


@pytest.fixture
def slot(engine: fozo.Engine, source: Statistics) -> Slot:
    """A slot of clean images, as Align makes it."""
    new = fozo.Align(engine, source)._new_slot(np.zeros(FEATURES), np.full(FEATURES, 0.1))
    return replace(new, images=32.0, descriptor=np.zeros(FEATURES, np.float32))


def at(slot: Slot, centre: float, images: float = 32.0) -> Slot:
    return replace(slot, domain_mean=np.full(FEATURES, centre, np.float32), images=images)


def test_a_group_belongs_to_the_nearest_slot_or_to_none(slot: Slot) -> None:
    slots = (at(slot, 0.0), at(slot, 5.0))
    variance = np.full(FEATURES, 0.1)
    for centre, expected in ((0.1, 0), (4.8, 1), (2.5, None), (-3.0, None)):
        assert nearest(slots, np.full(FEATURES, centre), variance) == expected
    assert nearest((), np.zeros(FEATURES), variance) is None


def test_strays_make_room_first_and_then_the_least_recently_used(slot: Slot) -> None:
    old, stray, last = at(slot, 0.0), at(slot, 5.0, images=3.0), at(slot, 9.0)
    assert with_room((old, stray, last), 4) == (old, stray, last)
    assert with_room((old, stray, last), 3) == (old, last)
    assert with_room((old, last), 2) == (last,)
    assert with_room((old, stray, last), 2) == (last,)  # of a state that was saved with room for more


def test_a_mixed_group_is_split_by_slots(slot: Slot) -> None:
    slots = (at(slot, -6.0), at(slot, 6.0))
    centres = np.array([-6.0, 6.0, -6.0, 20.0, 6.0, 40.0])
    mean = np.repeat(centres[:, None], FEATURES, axis=1)
    domains = DomainEstimate(mean, np.full_like(mean, 0.1), mean)
    assert sorted(by_domain(slots, domains)) == [[0, 2], [1, 4], [3], [5]]
    same = DomainEstimate(mean[:1].repeat(4, axis=0), np.full((4, FEATURES), 0.1), mean[:4])
    assert by_domain(slots, same) == [[0, 1, 2, 3]]


def test_a_domain_is_known_the_better_the_more_groups_have_come(slot: Slot) -> None:
    mean = np.ones(FEATURES)
    variance = np.full(FEATURES, 0.1)
    first = replace(slot, images=0.0).joined(mean, variance)
    np.testing.assert_allclose(first.domain_mean, 1)
    second = replace(first, images=8.0).joined(3 * mean, variance)
    np.testing.assert_allclose(second.domain_mean, 2, rtol=1e-6)
    np.testing.assert_allclose(second.domain_variance, 0.05, rtol=1e-6)
    for _ in range(20):
        second = second.joined(3 * mean, variance)
    np.testing.assert_allclose(second.domain_variance, 1 / 64)


def test_images_of_a_slot_sharpen_an_estimate() -> None:
    group = DomainEstimate(*(np.ones((1, FEATURES)) for _ in range(3)))
    sharpened = group.sharpened(np.zeros(FEATURES), 9.0)
    np.testing.assert_allclose(sharpened.mean, 0.1)
    np.testing.assert_allclose(sharpened.variance, 0.1)


def test_covariances_go_to_four_slots_and_move_on_once_one_is_idle(
    slot: Slot, engine: fozo.Engine, source: Statistics
) -> None:
    known = CleanTokens(source, engine.head(), engine.spec).no_covariances()
    heavy = tuple(replace(slot, last=last, covariances=known) for last in (10, 40, 60, 80))
    assert with_heavy_room(heavy[:3], 100) == heavy[:3]
    assert with_heavy_room(heavy, 70) is None
    lightened = with_heavy_room(heavy, 74)
    assert lightened is not None and [one.covariances is None for one in lightened] == [True, False, False, False]
