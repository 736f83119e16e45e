"""A ViT quantised by PTQ4ViT, run in simulation; :func:`fozo.quant.ptq4vit` searches its steps."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fozo.errors import FozoError
from fozo.state import Measured
from fozo.types import Array, Engine

BITS = (4, 6, 8)
MAX_STEP = 1e30  # steps of float32 weights and activations lie far below it, and far above its inverse
METRICS = ("hessian", "l2", "cosine")

if TYPE_CHECKING:
    from fozo.engines.ptq4vit.engine import QuantisedEngine


@dataclass(frozen=True)
class Scales(Measured):
    """What quantisation learns, and for which model: one step (or a few) for each operand of each product. NumPy only.

    Names follow the model's modules: ``blocks.0.attn.qkv.weight``, ``blocks.0.attn.qkv.input``, and for attention's two
    products ``attn.scores.queries``, ``attn.scores.keys``, ``attn.mix.split`` (where softmax's two ranges meet) and
    ``attn.mix.values``.
    """

    fingerprint: str
    """That of the model in full precision."""
    bits: int
    steps: Mapping[str, Array]
    model: str = ""
    metric: str = ""
    """Which error the search minimised, for readers only."""
    images: int = 0
    """How many images it used, for readers only."""

    KIND: ClassVar = "quantisation scales"
    ADVICE: ClassVar = "make it again"

    def __post_init__(self) -> None:
        if self.bits not in BITS:
            raise FozoError(f"bits is {self.bits}; choose from {', '.join(map(str, BITS))}")
        for name, step in self.steps.items():
            if not ((step > 1 / MAX_STEP) & (step < MAX_STEP)).all():
                raise FozoError(f"the quantisation step {name} is not positive and finite; search the scales again")

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits that identify a set of steps."""
        text = hashlib.sha256(str(self.bits).encode())
        for name, step in sorted(self.steps.items()):
            text.update(name.encode() + np.ascontiguousarray(step, dtype="<f8").tobytes())
        return text.hexdigest()[:8]

    def check(self, fingerprint: str, model: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Refuse to quantise another model than the one these steps were searched for."""
        if self.fingerprint != fingerprint:
            raise FozoError(
                f"these scales were searched for {self.model or 'another model'} ({self.fingerprint}), not for {model} "
                f"({fingerprint}); search them for this one with: fozo quantise MODEL IMAGES"
            )
        for name, shape in shapes.items():
            if name not in self.steps or self.steps[name].shape != shape:
                stored = list(self.steps[name].shape) if name in self.steps else "missing"
                raise FozoError(f"the quantisation step {name} is {stored}, not {list(shape)}; search the scales again")


def with_scales(engine: Engine, scales: Scales | str | os.PathLike[str]) -> QuantisedEngine:
    """Quantise a torch engine's ViT with steps found before; a file of another model is refused."""
    from fozo.engines.ptq4vit.engine import QuantisedEngine, full_precision

    return QuantisedEngine(full_precision(engine), scales if isinstance(scales, Scales) else Scales.load(scales))
