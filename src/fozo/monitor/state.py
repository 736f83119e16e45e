"""What a monitor remembers of its stream: detectors, features of the most recent images, and events."""

from __future__ import annotations

import copy
import json
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.io import as_dataclass, parse_json
from fozo.methods.common.state import read_attributes, write_attributes
from fozo.monitor.drift import DriftDetector
from fozo.monitor.event import Event
from fozo.monitor.faults import FaultDetector
from fozo.types import Array, State

EVENTS = 200  # most recent events that are remembered


@dataclass(frozen=True)
class Log:
    """The part of a state that is text."""

    reported: tuple[str, ...] | None
    events: tuple[Event, ...]


class StreamState:
    """The detectors of one stream, and features of its most recent images."""

    STATE = ("detector", "images", "guarding", "features", "predictions", "log", "faults", "due", "pairs")
    VARIABLE_LENGTH: ClassVar = {
        "features": "recent", "predictions": "recent", "rows": "window", "times": "window", "since": "since",
        "pairs": "pairs", "previous": "previous", "scene": "scene", "log": "log",
    }  # fmt: skip

    def __init__(self, detector: DriftDetector, faults: FaultDetector) -> None:
        self.detector, self.faults = detector, faults
        self.images, self.guarding = 0, False
        self.features: Array = np.zeros((0, detector.clean.width))
        self.predictions: Array = np.zeros((0, 3))
        self.due = 0.0  # fraction of the next image that the plain model is due to predict too
        self.pairs: Array = np.zeros((0, 7))  # of its predictions and the adapted ones
        self.reported: tuple[str, ...] | None = None  # corruptions that the present drift was reported as
        self.events: deque[Event] = deque(maxlen=EVENTS)

    def copy(self) -> StreamState:
        """A copy that later images do not change: arrays are replaced, and never written into."""
        made = copy.copy(self)
        made.detector, made.faults, made.events = copy.copy(self.detector), copy.copy(self.faults), self.events.copy()
        return made

    def state(self) -> State:
        return read_attributes(self, self.STATE, ())

    def load_state(self, state: State) -> None:
        write_attributes(self, self.STATE, (), state)

    @property
    def log(self) -> npt.NDArray[np.uint8]:
        events = tuple(replace(event, thumbnails={}) for event in self.events)
        return np.frombuffer(json.dumps(asdict(Log(self.reported, events))).encode(), np.uint8)

    @log.setter
    def log(self, text: npt.NDArray[np.uint8]) -> None:
        log = as_dataclass(Log, parse_json(text.tobytes()), "the log of the monitor's state")
        self.reported = log.reported
        self.events.extend(log.events)
