"""Align and garbage: nothing implausible is remembered, and what breaks predictions is forgotten."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fozo
from fozo.core.statistics import Statistics
from fozo.errors import FozoError
from fozo.state import leaves, same
from fozo.types import NO_KNOBS, Batch, Images, Knobs, Tap, Taps
from tests.helpers import EngineAround, random_images

Single = npt.NDArray[np.float32]
CLEAN = [random_images(20, seed=i) for i in range(3)]
DRIFTED = [0.3 * batch + 1.0 for batch in CLEAN]


class Lenient(EngineAround):
    """An engine that takes any numbers for an image, as one of somebody else's might; it may be made to break."""

    broken = moves_break = False

    def check(self, images: Images) -> Batch:
        assert isinstance(images, np.ndarray)
        return self.inner.check(np.zeros_like(images)).with_images(images)

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        found = super().run(batch, knobs, taps)
        broken = self.broken or (self.moves_break and knobs.patches is not None)
        return {tap: value * np.nan for tap, value in found.items()} if broken else found


GARBAGE: dict[str, Callable[[Single], Single]] = {
    "NaN": lambda x: np.full_like(x, np.nan),
    "huge": lambda x: np.full_like(x, 1e20),
    "huge and negative": lambda x: np.full_like(x, -3e38),
    "large": lambda x: 1e8 * x,
    "tiny": lambda x: 1e-20 * x,
    "denormal": lambda x: np.full_like(x, 1e-45),
    "constant": lambda x: np.full_like(x, 0.5),
    "one hot pixel": lambda x: np.where(np.arange(x.size).reshape(x.shape) == 77, np.float32(1e20), x),
    "checkered": lambda x: np.where(np.arange(x.size).reshape(x.shape) % 2, np.float32(9), np.float32(-9)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_one_huge_pixel_in_a_batch_does_not_brick_it(engine: fozo.Engine, source: Statistics) -> None:
    method, alone = fozo.Align(Lenient(engine), source), fozo.Align(engine, source)
    batch = CLEAN[0].copy()
    batch[0, 0, 5, 5] = 1e20
    np.testing.assert_allclose(method(batch)[1:], alone(CLEAN[0][1:]), atol=1e-4)
    assert method.metrics()["skipped"] == 1
    for clean in CLEAN:
        np.testing.assert_allclose(method(clean), alone(clean), atol=1e-4)
    assert method.metrics()["skipped"] == method.metrics()["fallbacks"] == 0


def test_images_too_large_to_describe_are_predicted_and_not_learnt(engine: fozo.Engine, source: Statistics) -> None:
    """Their energies overflow: the others of the batch are adapted to as if they had come alone."""
    method, alone = fozo.Align(Lenient(engine), source), fozo.Align(engine, source)
    batch = DRIFTED[0].copy()
    batch[[3, 11], 0, 5, 5] = 1e20
    logits = method(batch)
    rest = np.delete(np.arange(20), [3, 11])
    np.testing.assert_allclose(logits[rest], alone(DRIFTED[0][rest]), atol=1e-4)
    assert method.metrics() == pytest.approx({**alone.metrics(), "skipped": 2}, rel=1e-4)
    np.testing.assert_allclose(method.state().recent, alone.state().recent, atol=1e-4)
    learnt = method.state()
    nothing = {"shift": 0, "effective_sample_size": 0, "skipped": 1, "fallbacks": 0}
    assert np.isfinite(method(batch[[3]])).all() and method.metrics() == nothing
    assert same(method.state(), learnt)


def test_a_memory_that_breaks_predictions_is_forgotten(engine: fozo.Engine, source: Statistics) -> None:
    lenient = Lenient(engine)
    method = fozo.Align(lenient, source)
    method(DRIFTED[0])
    lenient.moves_break = True
    np.testing.assert_allclose(method(DRIFTED[1])[:8], fozo.NoAdapt(engine)(DRIFTED[1])[:8], atol=1e-5)
    # Of three groups the first breaks, the second finds nothing to move by, and the third breaks again.
    assert method.metrics()["fallbacks"] == 2 and method.metrics()["skipped"] == 12
    assert not method.state().slots
    lenient.moves_break = False
    method(DRIFTED[2])
    assert method.metrics()["fallbacks"] == method.metrics()["skipped"] == 0 and method.state().slots


def test_a_model_that_is_broken_itself_is_refused_and_nothing_is_forgotten(
    engine: fozo.Engine, source: Statistics
) -> None:
    lenient = Lenient(engine)
    method = fozo.Align(lenient, source)
    method(DRIFTED[0])
    state = method.state()
    lenient.broken = True
    with pytest.raises(FozoError, match="not all finite; nothing was changed"):
        method(DRIFTED[1])
    lenient.broken = False
    assert same(method.state(), state)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@settings(max_examples=40, deadline=None)
@given(
    stretches=st.lists(
        st.tuples(st.sampled_from(sorted(GARBAGE)), st.integers(1, 20), st.integers(0, 2)), min_size=1, max_size=4
    )
)
def test_after_any_garbage_it_is_as_good_as_new(
    engine: fozo.Engine, source: Statistics, stretches: list[tuple[str, int, int]]
) -> None:
    """Garbage frames among genuine ones, then clean images: answered at once, and as by a new adapter."""
    method = fozo.Align(Lenient(engine), source)
    for kind, frames, which in stretches:
        batch = DRIFTED[which].copy()
        batch[:frames] = GARBAGE[kind](batch[:frames])
        try:
            assert np.isfinite(method(batch)).all()
        except FozoError as error:
            assert "not all finite" in str(error)  # the plain model's neither
    fresh = fozo.Align(engine, source)
    for clean in CLEAN:
        np.testing.assert_allclose(method(clean), fresh(clean), atol=0.2)
    assert all(np.isfinite(leaf).all() for _, leaf in leaves(method.state()) if isinstance(leaf, np.ndarray))
    # And it still adapts: on a drifted stream it is where a new one is.
    for drifted in DRIFTED:
        adapted, wanted = method(drifted), fresh(drifted)
    plain = fozo.NoAdapt(engine)(DRIFTED[-1])
    assert np.square(adapted - wanted).sum() < 0.25 * np.square(plain - wanted).sum()
