"""Recall: images of one domain find each other, whatever comes between them and however they are batched."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.core.recall import Keys, Memory, Rule

FEATURES = 21
RULE = Rule()


def looks(domain: float, count: int, seed: int = 0) -> np.ndarray:
    """Standardised looks of a domain: content of variance 1 that goes through four directions, around a centre."""
    rng = np.random.default_rng(seed)
    content = rng.standard_normal((count, 4))
    return np.asarray(domain + np.repeat(content, 6, axis=1)[:, :FEATURES])


def memory_of(*domains: float, size: int = 64) -> Memory:
    """A memory that has seen one batch of each domain and recalls the domain's number."""
    memory = Memory(FEATURES, 1, RULE)
    for number, domain in enumerate(domains):
        keys = RULE.keys(looks(domain, size, seed=number), memory.keys.look)
        memory.add(keys, np.full((size, 1), domain))
    return memory


def test_a_batch_of_one_domain_shares_one_sharp_key() -> None:
    keys = RULE.keys(looks(2.0, 64), np.zeros((0, FEATURES)))
    assert np.ptp(keys.centre, axis=0).max() == 0
    np.testing.assert_allclose(keys.variance, 1 / 64)
    assert abs(keys.centre.mean() - 2.0) < 0.3


def test_a_mixed_batch_has_keys_of_its_own() -> None:
    mixed = np.concatenate([looks(-3.0, 32), looks(3.0, 32, seed=1)])
    keys = RULE.keys(mixed, np.zeros((0, FEATURES)))
    assert keys.centre[:32].mean() < -2 and keys.centre[32:].mean() > 2
    assert (keys.variance > 0.5).all()


def test_small_batches_are_judged_with_those_before_them() -> None:
    before = looks(2.0, 40)
    alone = RULE.keys(looks(2.0, 1, seed=5), before[:0])
    joined = RULE.keys(looks(2.0, 1, seed=5), before)
    assert (alone.variance == 1).all() and (joined.variance <= 1 / 16 + 1e-12).all()


@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_new_domain_starts_with_a_clean_slate_and_an_old_one_is_found_again(size: int) -> None:
    memory = memory_of(0.0, 3.0)
    for domain, least, most in ((0.0, 20, 64), (3.0, 20, 64), (-6.0, 0, 1.0)):
        keys = RULE.keys(looks(domain, size, seed=9), looks(domain, 15, seed=8))
        recalled = memory.recall(keys)
        assert least <= recalled.worth.mean() <= most
        if least:
            np.testing.assert_allclose(recalled.values, domain, atol=0.1)


def test_recent_images_of_the_same_domain_count_more() -> None:
    memory = Memory(FEATURES, 1, RULE)
    for number, value in enumerate((1.0, 2.0)):
        memory.add(RULE.keys(looks(0.0, 64, seed=number), memory.keys.look), np.full((64, 1), value))
    keys = RULE.keys(looks(0.0, 64, seed=7), memory.keys.look)
    assert 1.55 < memory.recall(keys).values.item() < 1.9


def test_images_of_other_domains_do_not_push_memories_out_by_age() -> None:
    first, later = memory_of(0.0), memory_of(0.0, 6.0, -6.0)
    keys = RULE.keys(looks(0.0, 64, seed=9), np.zeros((0, FEATURES)))
    assert later.recall(keys).worth.item() == pytest.approx(first.recall(keys).worth.item(), rel=0.05)


def test_there_is_room_for_so_many_and_no_more() -> None:
    memory = Memory(FEATURES, 2, Rule(room=10))
    for number in range(4):
        keys = RULE.keys(looks(0.0, 4, seed=number), memory.keys.look)
        memory.add(keys, np.full((4, 2), number))
    assert len(memory) == 10 == len(memory.keys.look) and memory.values[:, 0].tolist() == [1] * 2 + [2] * 4 + [3] * 4


@pytest.mark.parametrize("size", [1, 64])
def test_memories_of_a_domain_sharpen_its_keys(size: int) -> None:
    """An image in a mixed batch, or one alone, is told from its domain by its content: memories average that out."""
    memory = memory_of(3.0, -3.0, 3.0)
    keys = RULE.keys(np.concatenate([looks(3.0, size, seed=9), looks(-3.0, size, seed=8)]), np.zeros((0, FEATURES)))
    informed = RULE.informed(keys, memory.recall(keys))
    truth = np.repeat([3.0, -3.0], size)[:, None]
    assert np.square(informed.centre - truth).mean() < 0.5 * np.square(keys.centre - truth).mean()
    assert (informed.variance < keys.variance).all()


def test_without_memories_keys_stay_as_they_are() -> None:
    memory, keys = Memory(FEATURES, 1, RULE), RULE.keys(looks(3.0, 8), np.zeros((0, FEATURES)))
    recalled = memory.recall(keys)
    assert recalled.worth.tolist() == [0] and recalled.values.tolist() == [[0]]
    np.testing.assert_allclose(RULE.informed(keys, recalled).centre, keys.centre)


def test_part_of_the_keys() -> None:
    keys = Keys(*(np.arange(8.0).reshape(4, 2) + i for i in range(3)))
    np.testing.assert_array_equal(keys.part(slice(1, 3)).variance, [[3, 4], [5, 6]])
