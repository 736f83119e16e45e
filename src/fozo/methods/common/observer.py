"""What a method shows to an observer of its batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fozo.types import Array, Batch, Floats


class DriftReading(Protocol):
    """What every detector of drift can answer, in river's words."""

    @property
    def drift_detected(self) -> bool:
        """Whether the images have drifted."""

    @property
    def warning_detected(self) -> bool:
        """Whether they may have."""


@dataclass(frozen=True)
class Observation:
    """What a method saw in a batch, for those who watch it."""

    batch: Batch
    """The images as they came in, checked; not to be written into."""
    logits: Floats
    """``[B, classes]``: what was predicted."""
    descriptors: Array | None
    """``[B, f]`` of :mod:`fozo.core.descriptor`, where the method has measured them."""
    equalised: Floats | None = None
    """The last image as the model read it, where an equaliser has changed it; not to be kept without a copy."""


class Observer(Protocol):
    """Watches a method: :class:`fozo.Monitor`, or anything of one's own."""

    @property
    def drift(self) -> DriftReading:
        """What it says of drift."""

    def observe(self, observation: Observation) -> Floats | None:
        """Look at a batch that was predicted; give other logits to be returned instead, or ``None``."""

    def metrics(self) -> dict[str, float]:
        """Numbers to be told beside the method's own."""
