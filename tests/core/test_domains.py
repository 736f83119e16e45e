from __future__ import annotations

import numpy as np
import pytest

from fozo.core.domains import DomainWatch, KnowledgeBank
from fozo.errors import FozoError


def test_a_jump_is_a_new_domain_and_a_drift_is_not() -> None:
    watch = DomainWatch(threshold=0.1, memory=0.8)
    mean, variance = np.zeros(4), np.ones(4)
    assert not watch.observe(mean, variance)
    assert not watch.observe(mean + 0.1, variance * 1.1)
    assert watch.average is not None
    np.testing.assert_allclose(watch.average, [[0.02] * 4, [1.02] * 4])
    assert watch.observe(mean + 2, variance)
    assert (watch.average == [mean + 2, variance]).all()


def test_the_distance_is_that_of_gaussians() -> None:
    watch = DomainWatch(threshold=1, memory=0.8)
    watch.observe(np.array([1.0]), np.array([4.0]))
    mean, variance = 2.5, 9.0
    forward = np.log(2 / 3) + (9 + 1.5**2) / (2 * 4) - 0.5
    backward = np.log(3 / 2) + (4 + 1.5**2) / (2 * 9) - 0.5
    assert watch.distance(np.array([mean]), np.array([variance])) == pytest.approx(forward + backward + 0, abs=1e-6)


def bank(room: int = 3, stale: bool = False) -> KnowledgeBank:
    return KnowledgeBank(4, parts=2, room=room, sharpness=10, stale_table=stale)


def test_the_source_alone_mixes_to_nothing() -> None:
    assert (bank().mixed(np.array([1.9])) == 0).all()


def test_a_new_domain_gets_the_largest_share() -> None:
    knowledge = bank()
    knowledge.mixture = np.array([0.5])
    knowledge.store(np.array([1.0, 0, 0, 1]))
    assert knowledge.mixture.tolist() == [0.5, 0.5]
    np.testing.assert_allclose(knowledge.mixed(knowledge.mixture), [0.5, 0, 0, 0.5])


def test_a_full_bank_drops_the_older_of_the_most_alike() -> None:
    knowledge = bank()
    offsets = np.array([[1.0, 0, 0, 1], [0, 1, 1, 0], [1, 0.1, 0, 1]])  # the first and the last are alike
    for offset in offsets:
        knowledge.store(offset)
    assert knowledge.likeness[0, 2] > 0.9
    knowledge.store(np.array([-1.0, 0, 1, 0]))
    assert len(knowledge) == 3
    assert (knowledge.offsets[1:3] == offsets[1:]).all()
    alike = knowledge.likeness
    assert (alike[0, 1], alike[0, 2]) == (
        knowledge._alike(offsets[1], offsets[2]),
        knowledge._alike(offsets[1], knowledge.offsets[3]),
    )


def test_the_official_table_is_not_reindexed() -> None:
    knowledge = bank(stale=True)
    for offset in np.array([[1.0, 0, 0, 1], [0, 1, 1, 0], [1, 0.1, 0, 1], [-1, 0, 1, 0]]):
        knowledge.store(offset)
    assert knowledge.likeness[0, 1] == 0  # of the two first, of which one has left


def test_offsets_that_are_all_unlike_still_leave_the_closest_pair() -> None:
    knowledge = bank(room=2)
    knowledge.store(np.array([1.0, 0, 1, 0]))
    knowledge.store(np.array([-1.0, 0, -1, 0]))
    knowledge.store(np.array([0.0, 1, 0, 1]))
    assert knowledge.offsets[1].tolist() == [-1, 0, -1, 0]


def test_a_bank_without_room_is_refused() -> None:
    with pytest.raises(FozoError, match="room for at least 2"):
        bank(room=1)
    other = bank()
    with pytest.raises(FozoError, match="does not fit"):
        other.restore({"bank": np.zeros((1, 3)), "mixture": np.zeros(1), "likeness": np.zeros((3, 3))})
