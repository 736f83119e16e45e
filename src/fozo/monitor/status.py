"""The status of a monitor after a batch: in fields, in one sentence, and as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fozo.monitor.accuracy import Estimate
from fozo.monitor.faults import SENTENCES
from fozo.monitor.sentences import sentence
from fozo.monitor.shadow import Comparison
from fozo.monitor.signatures import Guess
from fozo.monitor.types import Drift


@dataclass(frozen=True)
class Status:
    """All that the monitor reports after a batch."""

    images: int = 0
    """Images seen."""
    drift: Drift = field(default_factory=Drift)
    quality: dict[str, float] = field(default_factory=dict)
    """Change of each image-quality statistic against clean images (:data:`fozo.monitor.quality.STATISTICS`)."""
    changes: tuple[str, ...] = ()
    """The clearest of these changes, in words."""
    guess: Guess | None = None
    accuracy: Estimate | None = None
    """Expected accuracy of the method's predictions, where labels were known at calibration."""
    relative_accuracy: Estimate | None = None
    """Without labels: the expected accuracy as a fraction of that on clean images."""
    faults: tuple[str, ...] = ()
    shadow: Comparison | None = None
    guarding: bool = False
    """Whether :class:`fozo.Guarded` returns the plain model's predictions for now."""

    @property
    def sentence(self) -> str:
        parts = [SENTENCES[name] for name in self.faults]
        parts.append(sentence(self.drift, self.changes, self.guess))
        parts += [str(expected) for expected in (self.accuracy, self.relative_accuracy) if expected is not None]
        if self.guarding:
            parts.append("adaptation hurts, so the plain model predicts")
        return "; ".join(parts)

    def metrics(self) -> dict[str, float]:
        drift = self.drift
        numbers = {
            "drift": float(drift.drift_detected), "drift_warning": float(drift.warning_detected),
            "drift_distance": drift.distance, "drift_threshold": drift.threshold, "drift_p_value": drift.p_value,
            "camera_faults": float(len(self.faults)),
        }  # fmt: skip
        for name, expected in (("expected_accuracy", self.accuracy), ("relative_accuracy", self.relative_accuracy)):
            if expected is not None:
                numbers |= {name: expected.value, f"{name}_low": expected.low, f"{name}_high": expected.high}
                numbers |= {"outside_calibration": float(expected.outside)}
        if self.shadow is not None:
            numbers |= {"shadow_pairs": float(self.shadow.pairs), "shadow_agreement": self.shadow.agreement}
            if self.shadow.gain is not None and math.isfinite(self.shadow.gain):
                numbers |= {"shadow_gain": self.shadow.gain, "guarding": float(self.guarding)}
        return numbers
