from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from fozo.methods.zoa import ZOA
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
