"""The monitor: drift detection, diagnosis, expected accuracy without labels, and a guard against harmful adaptation."""

from fozo.monitor.accuracy import Estimate
from fozo.monitor.drift import CleanImages, Drift, DriftDetector
from fozo.monitor.events import Event
from fozo.monitor.guarded import Guarded
from fozo.monitor.monitor import Monitor, Status
from fozo.monitor.quality import Change, describe
from fozo.monitor.reference import Guess, Reference

__all__ = [
    "Change", "CleanImages", "Drift", "DriftDetector", "Estimate", "Event", "Guarded", "Guess", "Monitor",
    "Reference", "Status", "describe",
]  # fmt: skip
