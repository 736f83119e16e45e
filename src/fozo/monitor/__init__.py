"""The monitor: drift detection, diagnosis, expected accuracy without labels, and a guard against harmful adaptation."""

from fozo.monitor.accuracy import Estimate
from fozo.monitor.drift import CleanImages, DriftDetector
from fozo.monitor.guarded import Guarded
from fozo.monitor.monitor import Monitor
from fozo.monitor.reference import MonitorReference
from fozo.monitor.signatures import Guess
from fozo.monitor.status import Status
from fozo.monitor.types import Drift, Event

__all__ = [
    "CleanImages", "Drift", "DriftDetector", "Estimate", "Event", "Guarded", "Guess", "Monitor", "MonitorReference",
    "Status",
]  # fmt: skip
