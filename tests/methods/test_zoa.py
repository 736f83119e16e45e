from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import fozo
from fozo.methods.zoa import ZOA, SignedUniform
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
    method = fozo.create(
        "zoa",
        engine(),
        source(),
        preset="official",
        passes=trace.hp["steps"] * (1 + samples),
        samples=samples,
        bank=trace.hp["max_weight_nums"],
        noise=recorded,
    )
    assert isinstance(method, ZOA)
    method.bank.mixture = trace["alpha_init"].copy()
    return method


@pytest.mark.parametrize("name", ["zoa_steps1", "zoa_steps2", "zoa_bank2_rounds2"])
def test_replays_the_authors_trace(name: str) -> None:
    trace = load(name, stream="zoa")
    method = make(trace)
    assert [n.rsplit(".", 1)[0] for n in method.norms.names[::2]] == trace["layer_names"].tolist()
    for t, _ in replay(trace, method):
        count = int(trace["weight_nums"][t])
        assert len(method.bank) + 1 == count
        close(method.bank.mixture, trace["alpha_after"][t][:count], f"mixture after batch {t}")
        close(method.learning, trace["eps_after"][t], f"e after batch {t}")
        assert method.watch.average is not None and method.shift.average is not None
        close(method.watch.average[0], trace["domain_mean_after"][t], f"domain mean after batch {t}")
        close(method.watch.average[1], trace["domain_var_after"][t], f"domain variance after batch {t}")
        close(method.shift.average, trace["hist_after"][t], f"shift average after batch {t}")
        if "fused_after" in trace.arrays:
            close(method.norms.values(), trace["fused_after"][t].ravel(), f"LayerNorms after batch {t}")
    close(method.bank.offsets, trace["bank_final"].reshape(count, -1), "bank")
    table = trace["similar_matrix_final"]
    close(method.bank.likeness[: len(table), : len(table)], table, "similarity table")


def test_a_new_domain_does_not_change_the_function() -> None:
    trace = load("zoa_steps1", stream="zoa")
    method = make(trace)
    for t in range(3):
        method(trace.batch(t))
    before = method.norms.start + method.bank.mixed(method.bank.mixture) + method.learning
    assert method._observe(engine().embed(trace.batch(3)))
    after = method.norms.start + method.bank.mixed(method.bank.mixture) + method.learning
    assert len(method.bank) == 1
    np.testing.assert_allclose(after, before, atol=1e-15)


def test_the_default_shifts_a_new_domain_only_once_it_is_known() -> None:
    stream = pixels("zoa")
    outputs = {}
    for stale in (False, True):
        method = fozo.create("zoa", engine(), source(), stale_shift=stale)
        assert isinstance(method, ZOA)
        method(stream[:64])
        outputs[stale] = method(stream[168:232])
        assert len(method.bank) == 1
    assert (outputs[False] != outputs[True]).any()


def test_small_batches_do_not_look_for_a_new_domain() -> None:
    method = fozo.create("zoa", engine(), source())
    assert isinstance(method, ZOA)
    method(pixels("zoa")[:64])
    method(pixels("zoa")[168:231])
    assert len(method.bank) == 0


def test_its_draws_keep_away_from_zero() -> None:
    draws = SignedUniform(3)(7, (1000,))
    assert (np.abs(draws) >= 0.5).all() and (np.abs(draws) <= 1).all()
    assert 400 < (draws > 0).sum() < 600
    assert (draws == SignedUniform(3)(7, (1000,))).all()
    assert (draws != SignedUniform(3)(8, (1000,))).any()


@pytest.mark.parametrize("bad", [{"passes": 3}, {"passes": 0}, {"bank": 1}, {"reach": 0}, {"seed": -1}])
def test_refuses_what_makes_no_sense(bad: dict[str, object]) -> None:
    with pytest.raises(fozo.FozoError):
        fozo.create("zoa", engine(), source(), **bad)
