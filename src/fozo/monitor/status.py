"""The status of a monitor after a batch: in fields, in one sentence for an operator, and as numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import datetime, timezone

from fozo.monitor.drift import Drift
from fozo.monitor.faults import SENTENCES
from fozo.monitor.regression import Estimate
from fozo.monitor.shadow import Comparison
from fozo.monitor.signatures import Guess


@dataclass(frozen=True)
class Status:
    """All that the monitor reports after a batch."""

    images: int = 0  # images seen
    drift: Drift = field(default_factory=Drift)
    quality: dict[str, float] = field(default_factory=dict)  # change of each image-quality statistic
    changes: tuple[str, ...] = ()  # the clearest of these changes, in words
    guess: Guess | None = None
    accuracy: Estimate | None = None  # expected of the method's predictions, where labels were known at calibration
    relative_accuracy: Estimate | None = None  # without labels: as a fraction of the accuracy on clean images
    faults: tuple[str, ...] = ()
    shadow: Comparison | None = None
    guarding: bool = False  # whether `Guarded` returns the plain model's predictions for now

    @property
    def sentence(self) -> str:
        """Faults; what drifted, since when, and which corruption it resembles; and the expected accuracy."""
        parts, drift, guess = [SENTENCES[name] for name in self.faults], self.drift, self.guess
        if drift.since is None:
            parts.append("no drift")
        else:
            time = "" if drift.since_time is None else f" ({clock(drift.since_time)})"
            kind = "" if guess is None or guess.kind == "clean" else f": {guess}"
            parts.append(f"{', '.join(self.changes) or 'the images changed'} since image {drift.since:,}{time}{kind}")
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


def clock(time: float) -> str:
    """A time of day, UTC."""
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
