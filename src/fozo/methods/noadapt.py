"""No adaptation: the frozen model as it is, the line that every method has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from fozo.methods.base import Stateless
from fozo.methods.registry import register
from fozo.types import Batch, Floats, Tap


@dataclass(frozen=True)
class NoAdaptConfig:
    """There is nothing to choose."""


@register("noadapt", passes="1", adapts="nothing", paper="-")
class NoAdapt(Stateless[NoAdaptConfig]):
    """The frozen model as it is."""

    PRESETS: ClassVar = {"plain": NoAdaptConfig()}

    def step(self, batch: Batch) -> Floats:
        logits: Floats = self.engine.run(batch)[Tap.LOGITS][0]
        return logits
