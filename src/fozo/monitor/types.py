"""What the monitor reports: drift and events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


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
        """The same as ``drift_detected``."""
        return self.drift_detected

    def as_dict(self) -> dict[str, float | int | None]:
        """Alibi Detect's names: ``is_drift``, ``distance``, ``threshold``, ``p_val``."""
        return {
            "is_drift": int(self.drift_detected),
            "distance": self.distance,
            "threshold": self.threshold,
            "p_val": self.p_value,
        }


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
