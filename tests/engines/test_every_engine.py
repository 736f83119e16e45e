"""One contract for every engine, on every shape of model."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.quant import ptq4vit
from fozo.testing import check_engine
from fozo.types import NO_KNOBS, Batch, Floats, Knobs, Tap, Taps
from tests.engines.conftest import Engines
from tests.helpers import VARIANTS, EngineAround, random_images, random_vit


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["torch", "float64", "onnxruntime", "openvino", "int8", "ptq4vit"])
def test_it_keeps_every_promise(kind: str, variant: str, exported: Callable[..., Path], engines: Engines) -> None:
    architecture = VARIANTS[variant]
    if kind in ("torch", "float64"):
        check_engine(fozo.load_engine(random_vit(architecture), dtype=kind if kind == "float64" else None))
    elif kind == "ptq4vit":  # rounding makes little differences in the order of additions large ones
        plain = fozo.load_engine(random_vit(architecture))
        check_engine(ptq4vit(plain, random_images(4, architecture=architecture)), tolerance=0.5)
    elif kind == "int8":
        check_engine(fozo.load_engine(exported(variant, "dynamic")), tolerance=0.5)
    else:
        pytest.importorskip(kind)
        check_engine(engines(variant, kind))


def test_the_suite_notices_broken_promises() -> None:
    good = fozo.load_engine(random_vit())

    class Broken:
        spec, device, threads, head, check = good.spec, good.device, good.threads, good.head, good.check
        abilities = frozenset({"tokens", "prompts", "matrices"})

        def __init__(self, change: Callable[[Taps], Taps]) -> None:
            self.change = change

        def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
            return self.change(dict(good.run(batch, knobs, taps)))

    numbers = np.random.default_rng(0)
    changes: dict[str, Callable[[Taps], Taps]] = {
        "are not symmetric": lambda taps: {
            tap: np.cumsum(value, axis=-1) if tap is Tap.PATCH_MOMENTS else value for tap, value in taps.items()
        },
        "come by default": lambda taps: {**taps, Tap.CLS: np.zeros(1)},
        "give other logits": lambda taps: {tap: value + numbers.standard_normal() for tap, value in taps.items()},
        "does not give the logits": lambda taps: {
            tap: value * 2 if tap is Tap.POOLED else value for tap, value in taps.items()
        },
        "another shape": lambda taps: {
            tap: value[..., 1:] if tap is Tap.PATCH_MEAN else value for tap, value in taps.items()
        },
    }
    for sentence, change in changes.items():
        with pytest.raises(AssertionError, match=sentence):
            check_engine(Broken(change))
    check_engine(Broken(lambda taps: taps))

    class Walking(Broken):
        abilities = Broken.abilities | {"blocks"}

    with pytest.raises(AssertionError, match=r"has no walk\(\)"):
        check_engine(Walking(lambda taps: taps))


WRONG_MATRICES: dict[str, tuple[Callable[[Floats], Floats], str]] = {
    "ignored": (lambda matrices: np.broadcast_to(np.eye(24), matrices.shape), "a diagonal matrix"),
    "transposed": (lambda matrices: np.swapaxes(matrices, -1, -2), "a product of the same token"),
    "of another block": (lambda matrices: matrices[:, :, ::-1], "a diagonal matrix"),
    "of another image": (lambda matrices: np.roll(matrices, 1, axis=1), "an image's own matrices"),
    "too large": (lambda matrices: 1.1 * matrices, "multiplying by the identity"),
}


@pytest.mark.parametrize("wrong", WRONG_MATRICES)
def test_the_suite_notices_wrong_matrices(wrong: str) -> None:
    change, sentence = WRONG_MATRICES[wrong]

    class Wrong(EngineAround):
        def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
            if knobs.matrices is not None and knobs.matrices.shape[-1] == self.spec.dim:
                knobs = replace(knobs, matrices=change(knobs.matrices))
            return self.inner.run(batch, knobs, taps)

    engine = fozo.load_engine(random_vit(replace(VARIANTS["plain"], depth=6)))
    with pytest.raises(AssertionError, match=sentence):
        check_engine(Wrong(engine))
