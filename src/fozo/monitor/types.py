"""What the monitor reports, drift and events; and state by declared attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from fozo.methods.common.state import read_attributes, write_attributes
from fozo.types import State


class Stateful:
    """Something whose state is the attributes that ``STATE`` names, as a method's is."""

    STATE: ClassVar[tuple[str, ...]]

    def state(self) -> State:
        return read_attributes(self, self.STATE, ())

    def load_state(self, state: State) -> None:
        write_attributes(self, self.STATE, (), state)


@dataclass(frozen=True)
class Drift:
    """Whether images have drifted: river's names, and Alibi Detect's numbers."""

    drift_detected: bool = False
    warning_detected: bool = False
    distance: float = 0.0
    """Of the images judged from clean ones; 1 is the mean distance of one clean image from the mean of all."""
    threshold: float = 0.0
    """Distance above which it is drift."""
    p_value: float = 1.0
    """Probability that clean images are as far as that."""
    since: int | None = None
    """Number of the image with which the drift began, the first being 1; ``None`` where there is none."""
    since_time: float | None = None
    """When that was, in seconds since 1970."""

    @property
    def is_drift(self) -> bool:
        return self.drift_detected

    def as_dict(self) -> dict[str, float | int | None]:
        """Alibi Detect's names: ``is_drift``, ``distance``, ``threshold``, ``p_val``."""
        distance, threshold, p_value = self.distance, self.threshold, self.p_value
        return {"is_drift": int(self.drift_detected), "distance": distance, "threshold": threshold, "p_val": p_value}


@dataclass(frozen=True)
class Event:
    """Something that an operator should know."""

    name: str
    """``drift``, ``drift changed``, ``guard``, a camera fault; with `` over`` where it has ended."""
    image: int
    """Number of the image it began with, the first of the stream being 1."""
    time: float
    """When it was noticed, in seconds since 1970."""
    text: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What :meth:`Monitor.metrics` returned then."""
    thumbnails: Mapping[str, str] = field(default_factory=dict)
    """If enabled, small JPEGs in base64: ``camera``, and ``equalised`` where the model read another image."""
