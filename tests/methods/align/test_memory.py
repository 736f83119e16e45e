"""Memory: images of one domain find each other, whatever comes between them and however they are batched."""

import copy
import inspect

import numpy as np
import pytest

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.align.memory import REPLAN, SLACK, DomainEstimate, Memory, RetrievalConfig, Retrieved, Rows
from fozo.monitor import DriftDetector
from fozo.testing import same

FEATURES = 21

CONFIG = RetrievalConfig()
NONE = np.zeros((0, FEATURES))


def descriptors(domain: float, count: int, seed: int = 0) -> np.ndarray:
    """Standardised descriptors of a domain: content of variance 1 in four directions, around a centre."""
    rng = np.random.default_rng(seed)
    content = rng.standard_normal((count, 4))
    return np.asarray(domain + np.repeat(content, 6, axis=1)[:, :FEATURES])


def rows(domains: DomainEstimate, value: float) -> Rows:
    """Images of which one number is remembered."""
    count = len(domains.mean)
    return Rows.pack(domains, np.full((count, 1, 1), value, dtype=np.float32), np.full((count, 1), value))


def retrieve(memory: Memory, domains: DomainEstimate, newest: int = 0) -> Retrieved:
    return memory.retrieve(domains.same_domain(), newest)


def averages(memory: Memory, domains: DomainEstimate, newest: int = 0) -> np.ndarray:
    retrieved = retrieve(memory, domains, newest)
    vectors, contents = retrieved.rows.average(retrieved.shares)
    np.testing.assert_allclose(vectors[:, :, 0], contents, atol=1e-6)
    return contents


def memory_of(*domains: float, size: int = 64) -> Memory:
    """A memory that has seen one batch of each domain and keeps the domain's number."""
    memory = Memory(FEATURES, (1, 1, 1), CONFIG)
    for number, domain in enumerate(domains):
        estimate = DomainEstimate.of(descriptors(domain, size, seed=number), memory.latest(16).descriptor)
        memory.add(rows(estimate, domain))
    return memory


def test_a_batch_of_one_domain_shares_one_sharp_estimate() -> None:
    domains = DomainEstimate.of(descriptors(2.0, 64), NONE)
    assert np.ptp(domains.mean, axis=0).max() == 0
    np.testing.assert_allclose(domains.variance, 1 / 64)
    assert abs(domains.mean.mean() - 2.0) < 0.3


def test_a_mixed_batch_has_estimates_of_its_own() -> None:
    mixed = np.concatenate([descriptors(-3.0, 32), descriptors(3.0, 32, seed=1)])
    domains = DomainEstimate.of(mixed, NONE)
    assert domains.mean[:32].mean() < -2 and domains.mean[32:].mean() > 2
    assert (domains.variance > 0.5).all()


@pytest.mark.parametrize(
    "wrong", [{"capacity": 0}, {"half_life": 0.0}, {"half_life": float("nan")}, {"context": 0}, {"dimensions": -1.0}]
)
def test_a_config_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(FozoError, match=f"align: {name} must"):
        RetrievalConfig(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 8, 64])
def test_a_new_domain_starts_with_a_clean_slate_and_an_old_one_is_found_again(size: int) -> None:
    memory = memory_of(0.0, 3.0)
    for domain, least, most in ((0.0, 20, 64), (3.0, 20, 64), (-6.0, 0, 1.0)):
        domains = DomainEstimate.of(descriptors(domain, size, seed=9), descriptors(domain, 15, seed=8))
        retrieved = retrieve(memory, domains)
        assert least <= retrieved.samples.mean() <= most
        if least:
            np.testing.assert_allclose(averages(memory, domains), domain, atol=0.1)


def test_recent_images_of_the_same_domain_count_more() -> None:
    memory = Memory(FEATURES, (1, 1, 1), CONFIG)
    for number, value in enumerate((1.0, 2.0)):
        estimate = DomainEstimate.of(descriptors(0.0, 64, seed=number), memory.latest(16).descriptor)
        memory.add(rows(estimate, value))
    domains = DomainEstimate.of(descriptors(0.0, 64, seed=7), memory.latest(16).descriptor)
    assert 1.55 < averages(memory, domains).item() < 1.9


def test_images_of_other_domains_do_not_push_memories_out_by_age() -> None:
    first, later = memory_of(0.0), memory_of(0.0, 6.0, -6.0)
    domains = DomainEstimate.of(descriptors(0.0, 64, seed=9), NONE)
    samples = [retrieve(memory, domains).samples.item() for memory in (first, later)]
    assert samples[1] == pytest.approx(samples[0], rel=0.05)


def test_it_retrieves_from_the_latest_images_up_to_its_capacity() -> None:
    memory = Memory(FEATURES, (1, 1, 1), RetrievalConfig(capacity=10))
    for number in range(4):
        domains = DomainEstimate.of(descriptors(0.0, 4, seed=number), memory.latest(16).descriptor)
        memory.add(rows(domains, number))
        np.testing.assert_array_equal(memory.latest(3).descriptor, domains.descriptor[1:].astype(np.float32))
    for newest, kept in ((0, [1] * 2 + [2] * 4 + [3] * 4), (3, [0] * 1 + [1] * 4 + [2] * 4 + [3])):
        assert retrieve(memory, domains, newest).rows.contents[:, 0].tolist() == kept
    many = DomainEstimate.of(descriptors(0.0, 225), NONE)
    memory.add(Rows.pack(many, np.zeros((225, 1, 1), np.float32), np.arange(225.0)[:, None]))
    assert retrieve(memory, many).rows.contents[:, 0].tolist() == list(range(215, 225))
    assert len(memory) == 10 + REPLAN and memory.seen == 241


@pytest.mark.parametrize("images", [5, 30, 10 + REPLAN + SLACK + 7, 500])
def test_a_state_holds_what_retrieval_needs_and_few_rows_of_it_change_with_an_image(images: int) -> None:
    config = RetrievalConfig(capacity=10, half_life=3.0)
    memory, shown = Memory(FEATURES, (1, 1, 1), config), descriptors(0.0, images + 1)
    estimates = DomainEstimate(shown, np.ones_like(shown), shown)
    for i in range(images):
        memory.add(rows(estimates.part(slice(i, i + 1)), i))
    before, domains = memory.state(), DomainEstimate.of(descriptors(0.0, 20, seed=5), NONE)
    again = Memory(FEATURES, (1, 1, 1), config)
    again.load_state(before)
    assert same(again.state(), before)
    for newest in (0, 4):
        np.testing.assert_array_equal(averages(again, domains, newest), averages(memory, domains, newest))
    memory.add(rows(estimates.part(slice(images, images + 1)), images))
    after, count = memory.state(), len(before["mean"])
    assert (after["contents"][:count] != before["contents"]).sum() + len(after["mean"]) - count == 1


def test_a_shallow_copy_is_a_checkpoint() -> None:
    memory = Memory(FEATURES, (1, 1, 1), RetrievalConfig(capacity=10))
    for number, size in enumerate((4, 7, 25, 140)):
        before, checkpoint = memory.state(), copy.copy(memory)
        update = rows(DomainEstimate.of(descriptors(0.0, size, seed=number), NONE), number)
        for _ in range(2):
            memory.add(update)
        assert not same(memory.state(), before)
        memory = checkpoint
        assert same(memory.state(), before)
        memory.add(update)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [("seen", 7, "remembers 3 of 7 images"), ("variance", 0.0, "not positive"), ("scales", -1.0, "not positive")],
)
def test_an_impossible_state_is_refused(name: str, value: float, sentence: str) -> None:
    memory = memory_of(0.0, size=3)
    state = memory.state()
    with pytest.raises(FozoError, match=sentence):
        memory.load_state({**state, name: np.full_like(state[name], value)})
    assert same(memory.state(), state)


@pytest.mark.parametrize("width", [40, 41])
def test_four_bits_round_by_half_of_the_largest_number_in_seven(width: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 3, width)).astype(np.float32)
    vectors[0, 1] = 0
    nothing = np.ones((5, FEATURES))
    kept = Rows.pack(DomainEstimate(nothing, nothing, nothing), vectors, np.ones((5, 2)))
    again, contents = kept.average(np.eye(5))
    again = again[:, :, :width]
    assert (np.abs(again - vectors) <= np.abs(vectors).max(axis=2, keepdims=True) / 14 * 1.001).all()
    assert not again[0, 1].any() and kept.codes.nbytes == 5 * 3 * ((width + 1) // 2)
    np.testing.assert_array_equal(contents, 1)
    for row, expected in enumerate(again):  # one row at a time is averaged in another way
        alone, _ = kept.average(np.eye(5)[row : row + 1])
        np.testing.assert_allclose(alone[0, :, :width], expected, rtol=1e-6)


@pytest.mark.parametrize("size", [1, 64])
def test_memories_of_a_domain_sharpen_its_estimates(size: int) -> None:
    """An image in a mixed batch, or one alone, is told from its domain by its content: memories average that out."""
    memory = memory_of(3.0, -3.0, 3.0)
    domains = DomainEstimate.of(np.concatenate([descriptors(3.0, size, seed=9), descriptors(-3.0, size, seed=8)]), NONE)
    posterior = retrieve(memory, domains).posterior(domains.same_domain())
    truth = np.repeat([3.0, -3.0], size)[:, None]
    assert np.square(posterior.mean - truth).mean() < 0.5 * np.square(domains.mean - truth).mean()
    assert (posterior.variance < domains.variance).all()


def test_without_memories_estimates_stay_as_they_are() -> None:
    memory, domains = Memory(FEATURES, (1, 1, 1), CONFIG), DomainEstimate.of(descriptors(3.0, 8), NONE)
    retrieved = retrieve(memory, domains)
    assert retrieved.samples.tolist() == [0] and averages(memory, domains).tolist() == [[0]]
    np.testing.assert_allclose(retrieved.posterior(domains.same_domain()).mean, domains.mean[:1])


@pytest.mark.parametrize("size", [1, 8, 64])
def test_clean_images_look_clean_and_those_of_far_domains_do_not(size: int) -> None:
    for domain, least, most in ((0.0, 0, 1e-3), (4.0, 0.999, 1), (-4.0, 0.999, 1)):
        domains = DomainEstimate.of(descriptors(domain, size, seed=3), descriptors(domain, 15, seed=4))
        found = CONFIG.drifted(domains, slice(0, 1))
        assert found.shape == (size,) and (least <= found).all() and (found <= most).all()


def test_narrow_content_may_look_a_little_different_and_still_clean() -> None:
    """However sharp the estimate: half a standard deviation is chance, and the monitor allows for as much."""
    assert inspect.signature(DriftDetector).parameters["content"].default == CONTENT_VARIANCE == 0.25
    centre = 0.5
    found = [
        CONFIG.drifted(
            DomainEstimate(*(np.full((1, FEATURES), value) for value in (off * centre, 1e-6, 0.0))), slice(0, 1)
        )
        for off in (0.0, 1.5, 1.6, 3.0)
    ]
    assert found[0] == found[1] == 0 < found[2] < found[3] and found[3] > 0.999


def test_an_exposure_that_is_off_is_seen_although_all_else_looks_clean() -> None:
    mean = np.zeros((2, FEATURES))
    mean[0, 0] = mean[1, 1] = 2.0
    exposed, other = CONFIG.drifted(DomainEstimate(mean, np.full_like(mean, 0.02), mean), slice(0, 1))
    assert exposed > 0.99 and other == 0
