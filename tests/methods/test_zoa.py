from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from fozo.core.moments import MovingAverage
from fozo.methods.zoa import ZOA, DomainDetector, Knowledge, KnowledgeBank, ZOAConfig
from tests.methods.rival_traces import close, engine, load, pixels, source
from tests.methods.test_golden import zoa_of

Array = npt.NDArray[np.float64]
NOTHING_SEEN = MovingAverage.empty((2, 4))


def test_a_new_domain_does_not_change_the_function() -> None:
    """What was learned moves to the bank, and what is being learned keeps the weights where they were."""
    trace = load("zoa_steps1", stream="zoa")
    method = zoa_of(trace)
    for t in range(3):
        method(trace.batch(t))
    batch = engine().check(trace.batch(3))
    state = method.state()
    blind = replace(state, domain=MovingAverage.empty(state.domain.average.shape))
    watching = method.step(state, batch)
    unaware = method.step(blind, batch)
    assert (watching.state.knowledge.domains, unaware.state.knowledge.domains) == (1, 0)
    close(watching.logits, unaware.logits, "logits of the batch that reveals a new domain")  # type: ignore[arg-type]


def test_the_default_shifts_a_new_domain_only_once_it_is_known() -> None:
    stream = pixels("zoa")
    outputs = {}
    for stale in (False, True):
        method = ZOA(engine(), source(), stale_shift=stale)
        method(stream[:64])
        outputs[stale] = method(stream[168:232])
        assert method.state().knowledge.domains == 1
    assert (outputs[False] != outputs[True]).any()


def test_small_batches_do_not_look_for_a_new_domain() -> None:
    method = ZOA(engine(), source())
    method(pixels("zoa")[:64])
    method(pixels("zoa")[168:231])
    assert method.state().knowledge.domains == 0


def test_a_jump_is_a_new_domain_and_a_drift_is_not() -> None:
    detector = DomainDetector(threshold=0.1, decay=0.8)
    mean = np.zeros(4)
    variance = np.ones(4)
    first, first_is_new = detector.update(NOTHING_SEEN, mean, variance)
    drifted, drift_is_new = detector.update(first, mean + 0.1, variance * 1.1)
    assert not first_is_new and not drift_is_new
    np.testing.assert_allclose(drifted.average, [[0.02] * 4, [1.02] * 4])
    jumped, jump_is_new = detector.update(drifted, mean + 2, variance)
    assert jump_is_new
    assert (jumped.average == [mean + 2, variance]).all()


def test_the_distance_is_that_of_gaussians() -> None:
    detector = DomainDetector(threshold=1, decay=0.8)
    domain = MovingAverage(np.array([[1.0], [4.0]]), 1)
    forward = np.log(2 / 3) + (9 + 1.5**2) / (2 * 4) - 0.5
    backward = np.log(3 / 2) + (4 + 1.5**2) / (2 * 9) - 0.5
    distance = detector.distance(domain, np.array([2.5]), np.array([9.0]))
    assert distance == pytest.approx(forward + backward, abs=1e-6)


def bank(capacity: int = 3, stale: bool = False) -> KnowledgeBank:
    return KnowledgeBank(4, 2, ZOAConfig(capacity=capacity, inverse_temperature=10, stale_table=stale))


def stored(settings: KnowledgeBank, offsets: Sequence[Sequence[float]]) -> tuple[Knowledge, Array]:
    """Store offsets one after another; returns the mixture, too."""
    knowledge = settings.init()
    mixture: Array = np.zeros(1)
    for offset in offsets:
        knowledge, mixture = settings.store(knowledge, np.array(offset), mixture)
    return knowledge, mixture


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean over the two halves."""
    a = np.reshape(one, (2, 2))
    b = np.reshape(other, (2, 2))
    return float(((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean())


def test_a_new_domain_gets_the_largest_share() -> None:
    settings = bank()
    empty = settings.init()
    assert (settings.mixed(empty, np.array([1.9])) == 0).all()  # the source alone mixes to nothing
    knowledge, mixture = settings.store(empty, np.array([1.0, 0, 0, 1]), np.array([0.5]))
    assert mixture.tolist() == [0.5, 0.5]
    np.testing.assert_allclose(settings.mixed(knowledge, mixture), [0.5, 0, 0, 0.5])
    expected = np.array([1, 0, 0, 1]) / (1 + np.exp(-1))
    np.testing.assert_allclose(settings.mixed(knowledge, np.array([0.0, 0.1])), expected)


OFFSETS = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.1, 0.0, 1.0]]  # the first and the last are similar


def test_a_full_bank_drops_the_older_of_the_most_alike() -> None:
    settings = bank()
    full, mixture = stored(settings, OFFSETS)
    assert full.similarity[0, 2] == pytest.approx(cosine(OFFSETS[0], OFFSETS[2])) and len(mixture) == 4
    new = [-1.0, 0.5, 1, 0]
    knowledge, mixture = settings.store(full, np.array(new), np.array([0.1, 0.2, 0.3, 0.4]))
    assert knowledge.domains == 3 and mixture.tolist() == [0.1, 0.3, 0.4, 0.4]
    assert knowledge.offsets[1:].tolist() == [*OFFSETS[1:], new]
    similarities = (knowledge.similarity[0, 1], knowledge.similarity[0, 2])
    assert similarities == pytest.approx((cosine(OFFSETS[1], OFFSETS[2]), cosine(OFFSETS[1], new)))


def test_the_official_table_is_not_reindexed() -> None:
    knowledge, _ = stored(bank(stale=True), [*OFFSETS, [-1, 0, 1, 0]])
    assert knowledge.similarity[0, 1] == 0  # of the two first, of which one has left


def test_a_state_of_another_bank_is_refused() -> None:
    state = ZOA(engine(), source()).state()
    with pytest.raises(ValueError, match="its point is not of 1 offsets"):
        replace(state, search=replace(state.search, point=state.search.point[1:]))
    with pytest.raises(ValueError, match="4 domains, but capacity is 3"):
        replace(bank().init(), offsets=np.zeros((5, 4)))
