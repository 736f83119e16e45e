from typing import Any

import numpy as np
import pytest

import fozo
from fozo.methods.tent import Tent
from tests.methods.rival_traces import check_norms, close, engine, load, pixels, replay


@pytest.mark.parametrize("name", ["tent_reset", "tent_hot_continual"])
def test_replays_the_authors_trace(name: str) -> None:
    trace = load(name)
    method = Tent(engine(), rate=trace.hp["lr"])
    for t, _ in replay(trace, method):
        check_norms(method.norms, trace, t)


def test_the_rate_follows_the_stated_batch_size() -> None:
    by_size = fozo.create("tent", engine(), rate=0.004, batch_size=16)
    direct = fozo.create("tent", engine(), rate=0.001)
    for _ in range(2):
        close(by_size(pixels("stream")[:16]), direct(pixels("stream")[:16]), "logits")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("eata", {"fisher_weight": 0, "e_margin": 1e-6}),
        ("sar", {"e_margin": 1e-6}),
        ("deyo", {"e_margin": 1e-6}),
        ("deyo", {"plpd_threshold": 1.0}),
    ],
)
def test_without_a_selected_image_nothing_is_learned(name: str, options: dict[str, Any]) -> None:
    images = pixels("stream")[:16]
    method = fozo.create(name, engine(), None, **options)
    before = method.state()
    close(method(images), fozo.create("noadapt", engine())(images), "logits")
    after = method.state()
    assert all(np.array_equal(before[key], after[key]) for key in before if key != "index")
