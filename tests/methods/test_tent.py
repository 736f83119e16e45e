from __future__ import annotations

from typing import Any

import pytest

import fozo
from fozo.methods.tent import Tent
from tests.methods.rival_traces import check_norms, close, engine, load, pixels, replay


@pytest.mark.parametrize("name", ["tent_reset", "tent_hot_continual"])
def test_replays_the_authors_trace(name: str) -> None:
    trace = load(name)
    method = fozo.create("tent", engine(), rate=trace.hp["lr"])
    assert isinstance(method, Tent)
    for t, _ in replay(trace, method):
        check_norms(method.norms, trace, t)


def test_the_rate_follows_the_stated_batch_size() -> None:
    by_size = fozo.create("tent", engine(), rate=0.004, batch_size=16)
    direct = fozo.create("tent", engine(), rate=0.001)
    for _ in range(2):
        close(by_size(pixels("stream")[:16]), direct(pixels("stream")[:16]), "logits")


@pytest.mark.parametrize("bad", [{"rate": 0}, {"rate": float("nan")}, {"momentum": 1.0}, {"batch_size": 0}, {"lr": 1}])
def test_refuses_options_that_cannot_descend(bad: dict[str, Any]) -> None:
    with pytest.raises(fozo.FozoError):
        fozo.create("tent", engine(), None, **bad)
