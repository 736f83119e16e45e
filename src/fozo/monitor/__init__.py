"""The monitor: drift detection, diagnosis, expected accuracy without labels, and a guard against harmful adaptation."""

from fozo.monitor.drift import CleanImages, Drift, DriftDetector
from fozo.monitor.guarded import Guarded
from fozo.monitor.monitor import Monitor, Status
from fozo.monitor.quality import describe
from fozo.monitor.reference import Guess, MonitorReference
from fozo.monitor.regression import Estimate
from fozo.monitor.state import Event

__all__ = [
    "CleanImages", "Drift", "DriftDetector", "Estimate", "Event", "Guarded", "Guess", "Monitor", "MonitorReference",
    "Status", "describe",
]  # fmt: skip
