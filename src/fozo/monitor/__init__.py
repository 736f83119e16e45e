"""The monitor: is it drift, since when, in which respect, how good are we still, does adaptation help."""

from fozo.monitor.accuracy import Estimate
from fozo.monitor.drift import CleanImages, DriftDetector
from fozo.monitor.event import Event
from fozo.monitor.monitor import Monitor, Status
from fozo.monitor.reference import MonitorReference
from fozo.monitor.signatures import Guess

__all__ = ["CleanImages", "DriftDetector", "Estimate", "Event", "Guess", "Monitor", "MonitorReference", "Status"]
