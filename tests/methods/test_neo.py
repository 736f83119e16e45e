from collections.abc import Sequence

import numpy as np
import pytest

import fozo
from fozo.methods.neo import NEO
from fozo.testing import check_method
from fozo.types import NO_KNOBS, Affine, Batch, Knobs, Tap, Taps
from tests.helpers import random_images
from tests.methods.rival_traces import close, engine, load, replay
from tests.methods.test_every_method import TokensOnly


@pytest.mark.parametrize(
    ("name", "preset"),
    [
        ("neo_reset", "official"),
        ("neo_continual", "official"),
        ("neo_cont_reset", "continual"),
        ("neo_cont_continual", "continual"),
    ],
)
def test_replays_the_authors_trace(name: str, preset: str) -> None:
    trace = load(name)
    weight = engine().head().weight
    frozen = iter(trace["logits_frozen"])
    first = 0
    for t, method in replay(trace, NEO(engine(), preset=preset)):
        close(method.mean, trace["center_after"][t] @ weight, f"what is subtracted after batch {t}")
        if "count_after" in trace.arrays:
            assert method.count == trace["count_after"][t]
        if t + 1 == len(trace) or trace["domain"][t + 1] != trace["domain"][t]:
            # The program then predicts the domain's first batch again, without learning from it.
            plain = fozo.create("noadapt", engine())(trace.batch(first))
            close(plain - method.mean, next(frozen), f"the frozen model after batch {t}")
            first = t + 1


def test_the_mean_by_hand() -> None:
    """Two batches, of two images and of one: by images the second has a third of the weight, by batches a half."""
    used = engine()
    images = random_images(3, architecture=used.vit.architecture).astype(np.float64)
    plain = fozo.NoAdapt(used)(images) - used.head().bias
    first, second = plain[:2].mean(axis=0), plain[2]
    for options, weight in (({}, 1 / 3), ({"average": "batches"}, 1 / 2), ({"preset": "continual"}, None)):
        method = NEO(used, **options)  # type: ignore[arg-type]
        method(images[:2])
        logits = method(images[2:])
        mean = 0.9 * 0.1 * first + 0.1 * second if weight is None else (1 - weight) * first + weight * second
        close(logits[0], second - mean + used.head().bias, f"logits with {options}")


class LogitsOnly(TokensOnly):
    """An engine that gives logits and nothing else."""

    shown = frozenset[str]()

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        assert knobs is NO_KNOBS and tuple(taps) == (Tap.LOGITS,)
        return super().run(batch)

    def head(self) -> Affine:
        raise fozo.FozoError("a black box does not show its head")


def test_runs_on_a_black_box(engine: fozo.Engine) -> None:
    bias = engine.head().bias
    check_method(lambda: NEO(LogitsOnly()))
    knowing, blind, given = NEO(engine), NEO(LogitsOnly()), NEO(LogitsOnly(), bias=bias)
    for seed in range(3):
        images = random_images(5, seed=seed)
        expected = knowing(images)
        np.testing.assert_array_equal(given(images), expected)
        np.testing.assert_allclose(blind(images), expected - bias, atol=1e-5)
