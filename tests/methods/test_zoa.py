from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from fozo.methods.zoa import ZOA, DomainWatch, KnowledgeBank, ZOAConfig
from tests.methods.rival_traces import Trace, close, engine, load, pixels, replay, source

Array = npt.NDArray[np.float64]


def make(trace: Trace) -> ZOA:
    """The authors' program, with the draws that it made."""
    each = trace["perturb_eps"].shape[1]

    def recorded(step: int, shape: tuple[int, ...]) -> Array:
        draw, odd = divmod(step, 2)
        numbers: Array = trace["perturb_eps" if odd else "perturb_alpha"][draw // each, draw % each, : shape[0]]
        return numbers

    samples = trace.hp["sp_avg"]
    method = ZOA(
        engine(),
        source(),
        preset="official",
        passes=trace.hp["steps"] * (1 + samples),
        samples=samples,
        capacity=trace.hp["max_weight_nums"],
        noise=recorded,
    )
    mixture = trace["alpha_init"]  # ours begins with zero, which one number alone is as good as
    method.search.point = np.concatenate([mixture, method.search.point[len(mixture) :]])
    return method


def parts(method: ZOA) -> tuple[Array, Array]:
    """The mixture a and what is being learned, e."""
    count = len(method.bank) + 1
    return method.search.point[:count], method.search.point[count:]


@pytest.mark.parametrize("name", ["zoa_steps1", "zoa_steps2", "zoa_bank2_rounds2"])
def test_replays_the_authors_trace(name: str) -> None:
    trace = load(name, stream="zoa")
    method = make(trace)
    assert [n.rsplit(".", 1)[0] for n in method.norms.names[::2]] == trace["layer_names"].tolist()
    for t, _ in replay(trace, method):
        count = int(trace["weight_nums"][t])
        assert len(method.bank) + 1 == count
        mixture, learned = parts(method)
        close(mixture, trace["alpha_after"][t][:count], f"mixture after batch {t}")
        if (expected := trace.after("eps_after", t)) is not None:
            close(learned, expected, f"e after batch {t}")
        assert method.watch.average is not None and method.shift.average is not None
        close(method.watch.average[0], trace["domain_mean_after"][t], f"domain mean after batch {t}")
        close(method.watch.average[1], trace["domain_var_after"][t], f"domain variance after batch {t}")
        close(method.shift.average, trace["hist_after"][t], f"shift average after batch {t}")
        if (expected := trace.after("fused_after", t)) is not None:
            close(method._weights(method.search.point), expected.ravel(), f"LayerNorms after batch {t}")
    close(method.bank.offsets, trace["bank_final"].reshape(count, -1), "bank")
    table = trace["similar_matrix_final"]
    close(method.bank.similarity[: len(table), : len(table)], table, "similarity table")


def test_a_new_domain_does_not_change_the_function() -> None:
    """What was learned moves to the bank, and what is being learned keeps the weights where they were."""
    trace = load("zoa_steps1", stream="zoa")
    watching, blind = make(trace), make(trace)
    for method in (watching, blind):
        for t in range(3):
            method(trace.batch(t))
    blind.watch.threshold = float("inf")
    logits = [method(trace.batch(3)) for method in (watching, blind)]
    assert (len(watching.bank), len(blind.bank)) == (1, 0)
    close(logits[0], logits[1], "logits of the batch that reveals a new domain")


def test_the_default_shifts_a_new_domain_only_once_it_is_known() -> None:
    stream = pixels("zoa")
    outputs = {}
    for stale in (False, True):
        method = ZOA(engine(), source(), stale_shift=stale)
        method(stream[:64])
        outputs[stale] = method(stream[168:232])
        assert len(method.bank) == 1
    assert (outputs[False] != outputs[True]).any()


def test_small_batches_do_not_look_for_a_new_domain() -> None:
    method = ZOA(engine(), source())
    method(pixels("zoa")[:64])
    method(pixels("zoa")[168:231])
    assert len(method.bank) == 0


def test_a_jump_is_a_new_domain_and_a_drift_is_not() -> None:
    watch = DomainWatch(4, threshold=0.1, decay=0.8)
    mean, variance = np.zeros(4), np.ones(4)
    assert not watch.observe(mean, variance)
    assert not watch.observe(mean + 0.1, variance * 1.1)
    assert watch.average is not None
    np.testing.assert_allclose(watch.average, [[0.02] * 4, [1.02] * 4])
    assert watch.observe(mean + 2, variance)
    assert (watch.average == [mean + 2, variance]).all()


def test_the_distance_is_that_of_gaussians() -> None:
    watch = DomainWatch(1, threshold=1, decay=0.8)
    watch.observe(np.array([1.0]), np.array([4.0]))
    mean, variance = 2.5, 9.0
    forward = np.log(2 / 3) + (9 + 1.5**2) / (2 * 4) - 0.5
    backward = np.log(3 / 2) + (4 + 1.5**2) / (2 * 9) - 0.5
    assert watch.distance(np.array([mean]), np.array([variance])) == pytest.approx(forward + backward + 0, abs=1e-6)


def bank(capacity: int = 3, stale: bool = False) -> KnowledgeBank:
    return KnowledgeBank(4, 2, ZOAConfig(capacity=capacity, inverse_temperature=10, stale_table=stale))


def store(knowledge: KnowledgeBank, offsets: Sequence[Sequence[float]]) -> Array:
    """Store offsets one after another; returns the mixture."""
    mixture: Array = np.zeros(1)
    for offset in offsets:
        mixture = knowledge.store(np.array(offset), mixture)
    return mixture


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """The mean over the two halves."""
    a, b = np.reshape(one, (2, 2)), np.reshape(other, (2, 2))
    return float(((a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)).mean())


def test_a_new_domain_gets_the_largest_share() -> None:
    knowledge = bank()
    assert (knowledge.mixed(np.array([1.9])) == 0).all()  # the source alone mixes to nothing
    mixture = knowledge.store(np.array([1.0, 0, 0, 1]), np.array([0.5]))
    assert mixture.tolist() == [0.5, 0.5]
    np.testing.assert_allclose(knowledge.mixed(mixture), [0.5, 0, 0, 0.5])
    np.testing.assert_allclose(knowledge.mixed(np.array([0.0, 0.1])), np.array([1, 0, 0, 1]) / (1 + np.exp(-1)))


OFFSETS = [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0], [1.0, 0.1, 0.0, 1.0]]  # the first and the last are similar


def test_a_full_bank_drops_the_older_of_the_most_alike() -> None:
    knowledge = bank()
    mixture = store(knowledge, OFFSETS)
    assert knowledge.similarity[0, 2] == pytest.approx(cosine(OFFSETS[0], OFFSETS[2])) and len(mixture) == 4
    new = [-1.0, 0.5, 1, 0]
    mixture = knowledge.store(np.array(new), np.array([0.1, 0.2, 0.3, 0.4]))
    assert len(knowledge) == 3 and mixture.tolist() == [0.1, 0.3, 0.4, 0.4]
    assert knowledge.offsets[1:].tolist() == [*OFFSETS[1:], new]
    found = knowledge.similarity[0, 1], knowledge.similarity[0, 2]
    assert found == pytest.approx((cosine(OFFSETS[1], OFFSETS[2]), cosine(OFFSETS[1], new)))


def test_the_official_table_is_not_reindexed() -> None:
    knowledge = bank(stale=True)
    store(knowledge, [*OFFSETS, [-1, 0, 1, 0]])
    assert knowledge.similarity[0, 1] == 0  # of the two first, of which one has left


def test_offsets_that_are_all_unlike_still_leave_the_closest_pair() -> None:
    knowledge = bank(capacity=2)
    store(knowledge, [[1.0, 0, 1, 0], [-1.0, 0, -1, 0], [0.0, 1, 0, 1]])
    assert knowledge.offsets[1].tolist() == [-1, 0, -1, 0]
