"""What the monitor reports of drift."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Drift:
    """What a monitor says of drift: river's reading, and Alibi Detect's numbers."""

    drift_detected: bool = False
    warning_detected: bool = False
    distance: float = 0.0
    """Of the images judged from clean ones; 1 is as far as one clean image is from the mean of all, on average."""
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
