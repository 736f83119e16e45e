"""Slots: groups find the slot of their domain, and room is made for new ones."""

from dataclasses import replace

import numpy as np
import pytest

import fozo
from fozo.core.statistics import Statistics
from fozo.methods.align.memory import DomainEstimate
from fozo.methods.align.slots import Slot, nearest, owners, visits, with_heavy_room, with_room
from fozo.methods.align.tokens import CleanTokens

FEATURES = 21


def domain(centre: float) -> DomainEstimate:
    mean = np.full((1, FEATURES), centre)
    return DomainEstimate(mean, np.full_like(mean, 0.1), mean)


@pytest.fixture
def slot(engine: fozo.Engine, source: Statistics) -> Slot:
    """A slot of clean images, as Align makes it."""
    new = fozo.Align(engine, source)._new_slot(domain(0.0))
    return replace(new, images=32.0, descriptor=np.zeros(FEATURES, np.float32))


def at(slot: Slot, centre: float, images: float = 32.0) -> Slot:
    return replace(slot, domain_mean=np.full(FEATURES, centre, np.float32), images=images)


def test_a_group_belongs_to_the_nearest_slot_or_to_none(slot: Slot) -> None:
    slots = (at(slot, 0.0), at(slot, 5.0))
    for centre, expected in ((0.1, 0), (4.8, 1), (2.5, None), (-3.0, None)):
        assert nearest(slots, domain(centre)) == expected
    assert nearest((), domain(0.0)) is None


def test_strays_make_room_first_and_then_the_least_recently_used(slot: Slot) -> None:
    old, stray, last = at(slot, 0.0), at(slot, 5.0, images=3.0), at(slot, 9.0)
    assert with_room((old, stray, last), 3) == (old, stray, last)
    assert with_room((old, stray, last), 2) == (old, last)
    assert with_room((old, stray, last), 1) == (last,)
    assert with_room((old, last), 0) == ()


def test_a_mixed_group_is_sorted_by_slots(slot: Slot) -> None:
    slots = (at(slot, -6.0), at(slot, 50.0), at(slot, 6.0))
    centres = np.array([-6.0, 6.0, -6.0, 20.0, 6.0, 40.0, 20.1])
    mean = np.repeat(centres[:, None], FEATURES, axis=1)
    domains = DomainEstimate(mean, np.full_like(mean, 0.1), mean)

    def new_slot(estimate: DomainEstimate) -> Slot:
        return replace(at(slot, float(estimate.mean[0, 0])), images=0.0)

    (visited, others) = visits(slots, domains, new_slot)
    assert [visit.rows.tolist() for visit in visited] == [[0, 2], [1, 4], [3, 6], [5]]
    assert [visit.slot.images for visit in visited] == [32, 32, 0, 0]
    np.testing.assert_allclose(visited[2].domain.mean, 20.05)
    assert others == slots[1:2]
    assert owners(visited).tolist() == [0, 1, 0, 2, 1, 3, 2]
    same = DomainEstimate(mean[:1].repeat(4, axis=0), np.full((4, FEATURES), 0.1), mean[:4])
    (visited, others) = visits(slots, same, new_slot)
    assert [visit.rows.tolist() for visit in visited] == [[0, 1, 2, 3]]
    assert others == slots[1:] and owners(visited).tolist() == [0]


def test_a_domain_is_known_the_better_the_more_groups_have_come(slot: Slot) -> None:
    first = replace(slot, images=0.0).joined(domain(1.0))
    np.testing.assert_allclose(first.domain_mean, 1)
    second = replace(first, images=8.0).joined(domain(3.0))
    np.testing.assert_allclose(second.domain_mean, 2, rtol=1e-6)
    np.testing.assert_allclose(second.domain_variance, 0.05, rtol=1e-6)
    for _ in range(20):
        second = second.joined(domain(3.0))
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
    assert with_heavy_room(heavy[:3], [], 100) == heavy[:3]
    assert with_heavy_room(heavy, [], 70) is None
    assert with_heavy_room(heavy[1:], heavy[:1], 100) is None
    lightened = with_heavy_room(heavy, [], 74)
    assert lightened is not None and [one.covariances is None for one in lightened] == [True, False, False, False]
