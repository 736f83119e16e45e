from collections.abc import Sequence

import numpy as np

import fozo
from fozo.methods.neo import NEO
from fozo.testing import check_method
from fozo.types import NO_KNOBS, Affine, Batch, Knobs, Tap, Taps
from tests.helpers import random_images
from tests.methods.rival_traces import close, engine
from tests.methods.test_every_method import TokensOnly


def test_the_mean_by_hand() -> None:
    """Two batches, of two images and of one: by images the second has a third of the weight, by batches a half."""
    used = engine()
    images = random_images(3, architecture=used.vit.architecture).astype(np.float64)
    plain = fozo.NoAdapt(used)(images) - used.head().bias
    first = plain[:2].mean(axis=0)
    second = plain[2]
    for options, weights in (
        ({}, (2 / 3, 1 / 3)),
        ({"average": "batches"}, (1 / 2, 1 / 2)),
        ({"preset": "continual"}, (0.9 * 0.1, 0.1)),
    ):
        method = NEO(used, **options)  # type: ignore[arg-type]
        method(images[:2])
        logits = method(images[2:])
        mean = weights[0] * first + weights[1] * second
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
    knowing = NEO(engine)
    blind = NEO(LogitsOnly())
    given = NEO(LogitsOnly(), bias=bias)
    for seed in range(3):
        images = random_images(5, seed=seed)
        expected = knowing(images)
        np.testing.assert_array_equal(given(images), expected)
        np.testing.assert_allclose(blind(images), expected - bias, atol=1e-5)
