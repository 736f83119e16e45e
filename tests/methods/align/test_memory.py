"""Memory: images of one domain find each other, whatever comes between them and however they are batched."""

import inspect

import numpy as np
import pytest

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.align.memory import DomainEstimate, RetrievalConfig
from fozo.methods.equalise import Memory, retrieve
from fozo.monitor import DriftDetector

FEATURES = 21

CONFIG = RetrievalConfig()
NONE = np.zeros((0, FEATURES))


def descriptors(domain: float, count: int, seed: int = 0) -> np.ndarray:
    """Standardised descriptors of a domain: content of variance 1 in four directions, around a centre."""
    rng = np.random.default_rng(seed)
    content = rng.standard_normal((count, 4))
    return np.asarray(domain + np.repeat(content, 6, axis=1)[:, :FEATURES])


def memory_of(*domains: float, size: int = 64) -> Memory:
    """A memory that has seen one batch of each domain."""
    memory = Memory.empty(FEATURES)
    for number, domain in enumerate(domains):
        estimate = DomainEstimate.of(descriptors(domain, size, seed=number), memory.descriptor[-16:])
        memory = memory.add(estimate, CONFIG.capacity)
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
        retrieved = retrieve(memory, domains.same_domain(), CONFIG)
        assert least <= retrieved.samples.mean() <= most


def test_recent_images_of_the_same_domain_count_more() -> None:
    memory = memory_of(0.0, 0.0)
    domains = DomainEstimate.of(descriptors(0.0, 64, seed=7), memory.descriptor[-16:])
    shares = retrieve(memory, domains.same_domain(), CONFIG).shares[0]
    assert 1.2 < shares[64:].sum() / shares[:64].sum() < 9


def test_images_of_other_domains_do_not_push_memories_out_by_age() -> None:
    domains = DomainEstimate.of(descriptors(0.0, 64, seed=9), NONE).same_domain()
    samples = [
        retrieve(memory, domains, CONFIG).samples.item() for memory in (memory_of(0.0), memory_of(0.0, 6.0, -6.0))
    ]
    assert samples[1] == pytest.approx(samples[0], rel=0.05)


def test_it_keeps_the_latest_images_up_to_its_capacity() -> None:
    memory = Memory.empty(FEATURES)
    for number in range(4):
        before = memory
        domains = DomainEstimate.of(descriptors(0.0, 4, seed=number), memory.descriptor[-16:])
        memory = memory.add(domains, 10)
        assert len(memory.mean) == min(10, 4 * (number + 1)) and len(before.mean) == min(10, 4 * number)
        np.testing.assert_array_equal(memory.descriptor[-4:], domains.descriptor.astype(np.float32))


@pytest.mark.parametrize("size", [1, 64])
def test_memories_of_a_domain_sharpen_its_estimates(size: int) -> None:
    """An image in a mixed batch, or one alone, is told from its domain by its content: memories average that out."""
    memory = memory_of(3.0, -3.0, 3.0)
    domains = DomainEstimate.of(np.concatenate([descriptors(3.0, size, seed=9), descriptors(-3.0, size, seed=8)]), NONE)
    merged = domains.same_domain()
    posterior = retrieve(memory, merged, CONFIG).posterior(merged)
    truth = np.repeat([3.0, -3.0], size)[:, None]
    assert np.square(posterior.mean - truth).mean() < 0.5 * np.square(domains.mean - truth).mean()
    assert (posterior.variance < domains.variance).all()


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
