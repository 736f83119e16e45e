import math

import numpy as np
import pytest

import fozo
from fozo.methods.sar import SAR
from tests.methods.rival_traces import Trace, check_norms, close, engine, load, pixels, replay


def make(trace: Trace, preset: str) -> SAR:
    margin = trace.hp["margin"] / math.log(10)
    return SAR(engine(), preset=preset, rate=trace.hp["lr"], e_margin=margin)


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("sar_official_reset", "official"),
        ("sar_official_hot_continual", "official"),
        ("sar_official_edge_continual", "official"),
        ("sar_foavariant_reset", "foa"),
    ],
)
def test_replays_the_authors_trace(name: str, preset: str) -> None:
    trace = load(name)
    # SAR's program makes a new net for each domain, FOA's calls reset(), which lets the momentum survive.
    renew = (lambda _: make(trace, preset)) if preset == "official" else None
    for t, method in replay(trace, make(trace, preset), renew):
        check_norms(method.norms, trace, t)
        close(math.nan if method.average is None else method.average, trace["ema_after"][t], f"average after {t}")
        if "reset_flag" in trace.arrays and trace["reset_flag"][t]:
            assert (method.norms.values() == method.norms.start).all()


def test_the_default_does_not_step_without_a_sure_prediction() -> None:
    trace = load("sar_official_edge_continual")
    options = {"rate": trace.hp["lr"], "e_margin": 0.3}
    default = fozo.create("sar", engine(), **options)
    empty = 10  # a batch of this trace in which no prediction is reliable
    for t in range(empty):
        default(trace.batch(t))
    before = default.state()["norms"]
    default(trace.batch(empty))
    assert (default.state()["norms"] == before).all()
    theirs = [trace.after("ln_after", t) for t in (empty - 1, empty)]
    assert theirs[0] is not None and theirs[1] is not None
    assert (theirs[0] != theirs[1]).any()  # whereas the authors' program moved


def test_a_recovery_forgets_momentum_and_average_too() -> None:
    method = fozo.create("sar", engine(), reset_threshold=100.0, e_margin=1.0)  # every loss is a collapse
    new = method.state()
    method(pixels("stream")[:16])
    after = method.state()
    assert all(np.array_equal(new[name], after[name]) for name in new)


def test_the_rate_doubles_for_single_images() -> None:
    method = SAR(engine(), batch_size=1)
    assert method.config.step_size == 2 * 0.001 / 64
