"""What a monitor remembers of its stream: detectors, features of the most recent images, and events."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.io import as_dataclass, parse_json
from fozo.methods.common.state import AnyArray, check_arrays, read_attributes, write_attributes
from fozo.monitor.drift import RECENT, CleanImages, DriftDetector
from fozo.monitor.event import Event
from fozo.monitor.faults import FaultDetector
from fozo.monitor.shadow import Shadow
from fozo.types import Array, State

WINDOW = 64  # most recent images that quality statistics, diagnosis and expected accuracy refer to
EVENTS = 200  # most recent events that are remembered


@dataclass(frozen=True)
class Log:
    """The part of a state that is text."""

    reported: tuple[str, ...] | None
    events: tuple[Event, ...]


class StreamState:
    """The detectors of one stream, and features of its most recent images."""

    STATE = ("images", "guarding", "features", "predictions", "log")  # beside those of the detectors
    VARIABLE_LENGTH: ClassVar = {
        "features": "recent", "predictions": "recent", "rows": "window", "times": "window", "since": "since",
        "pairs": "pairs", "previous": "previous", "scene": "scene", "log": "log",
    }  # fmt: skip

    def __init__(
        self, clean: CleanImages, image_size: tuple[int, int], false_alarms: float, content: float, shadow: float
    ) -> None:
        self.images, self.guarding = 0, False
        self.detector = DriftDetector(clean, false_alarms, content)
        self.faults = FaultDetector(image_size)
        self.shadow = Shadow(shadow)
        self.features: Array = np.zeros((0, clean.width))
        self.predictions: Array = np.zeros((0, 3))
        self.reported: tuple[str, ...] | None = None  # corruptions that the present drift was reported as
        self.events: deque[Event] = deque(maxlen=EVENTS)

    def update(self, features: Array, predictions: Array, now: float) -> None:
        """Detect drift, and remember the most recent images; where a drift has begun or ended, only those since."""
        before, drift = self.detector.drift, self.detector.update(features, now)
        self.features = np.concatenate([self.features, features])
        self.predictions = np.concatenate([self.predictions, predictions])
        keep = max(WINDOW, len(features))
        if drift.since is not None and not before.drift_detected:
            keep = min(keep, self.detector.seen - drift.since + 1)
        elif before.drift_detected and not drift.drift_detected:
            keep = min(keep, max(RECENT, len(features)))
        if drift.drift_detected != before.drift_detected:
            self.shadow.pairs = self.shadow.pairs[:0]  # those are of another domain
        self.features, self.predictions = self.features[-keep:], self.predictions[-keep:]

    def state(self) -> State:
        found = self.detector.state()
        for part in (self, self.faults, self.shadow):
            found |= read_attributes(part, part.STATE, ())
        return found

    def load_state(self, state: State) -> None:
        self.detector.load_state(state)
        for part in (self, self.faults, self.shadow):
            write_attributes(part, part.STATE, (), state)

    def check_arrays(self, arrays: Mapping[str, AnyArray]) -> None:
        check_arrays("this monitor", self.state(), self.VARIABLE_LENGTH, arrays)

    @property
    def log(self) -> npt.NDArray[np.uint8]:
        """What was reported, without thumbnails, as JSON."""
        events = tuple(replace(event, thumbnails={}) for event in self.events)
        return np.frombuffer(json.dumps(asdict(Log(self.reported, events))).encode(), np.uint8)

    @log.setter
    def log(self, text: npt.NDArray[np.uint8]) -> None:
        log = as_dataclass(Log, parse_json(text.tobytes()), "the log of the monitor's state")
        self.reported = log.reported
        self.events.extend(log.events)
