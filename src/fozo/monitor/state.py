"""What a monitor remembers of its stream, and how it is written to a file.

The file holds features and scores of the last images, counts, events and the last frame in gray. The monitor's status
follows from these, so it is not stored.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np

from fozo.monitor.drift import RECENT, CleanImages, DriftDetector
from fozo.monitor.faults import FaultDetector, thumbnail_shape
from fozo.monitor.shadow import PAIRS, Shadow
from fozo.monitor.types import Drift, Event
from fozo.types import Array, State

KIND, VERSION = "monitor state", 2
WINDOW = 64
"""Most recent images that quality statistics, diagnosis and expected accuracy refer to."""
MAX_ROWS = 1 << 16
"""Limit of the images that a file may hold: as many as a batch may have."""
MAX_VALUE = 1e12
EVENTS = 200
"""Most recent events that a monitor keeps, in memory and in its file."""


class HasShape(Protocol):
    """An array, or what a file's header says of one."""

    @property
    def dtype(self) -> np.dtype[np.generic]: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class MonitorState(NamedTuple):
    """What :meth:`fozo.Monitor.state` returns: counts and events as JSON, the rest as arrays."""

    header: Mapping[str, object]
    arrays: State


class StreamState:
    """The detectors of one stream, and features of its most recent images."""

    def __init__(self, clean: CleanImages, false_alarms: float, content: float, shadow: float) -> None:
        self.images = 0
        self.guarding = False
        self.detector = DriftDetector(clean, false_alarms, content)
        self.faults = FaultDetector()
        self.shadow = Shadow(shadow)
        self.features: Array = np.zeros((0, len(clean.whitening.mean)))
        self.predictions: Array = np.zeros((0, 3))
        self.reported: tuple[str, ...] | None = None
        """Corruptions that the present drift was reported as."""
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
            self.shadow.forget()
        self.features, self.predictions = self.features[-keep:], self.predictions[-keep:]

    @property
    def drift(self) -> Drift:
        return self.detector.drift

    # The names in the header and of the arrays are those of version 2 files.
    def state(self) -> MonitorState:
        drift, drift_arrays = self.detector.state()
        faults, fault_arrays = self.faults.state()
        due, pairs = self.shadow.state()
        header = {
            "images": self.images, "guarding": self.guarding, "told": self.reported, "drift": drift, "faults": faults,
            "due": due, "events": [_entry(event) for event in self.events],
        }  # fmt: skip
        arrays: State = {"features": self.features, "shown": self.predictions, "pairs": pairs}
        return MonitorState(header, arrays | drift_arrays | fault_arrays)

    def load_state(self, header: Mapping[str, Any], arrays: State) -> None:
        """Continue from a state; a damaged one raises a ``ValueError`` or the like, and leaves this one undefined."""
        rows: dict[str, Array] = {name: array.astype(np.float64) for name, array in arrays.items()}
        for name, array in rows.items():
            # Without a clock, times are NaN.
            if not (np.abs(array) <= MAX_VALUE).all() and not (name == "times" and np.isnan(array).all()):
                raise ValueError(f"{name} has values that are not finite")
        due, self.images, self.guarding = float(header["due"]), header["images"], header["guarding"]
        if not 0 <= due < 1 or type(self.images) is not int or self.images < 0 or type(self.guarding) is not bool:
            raise ValueError("its counts are not valid")
        self.detector.load_state(header["drift"], rows)
        self.faults.load_state(header["faults"], rows)
        self.shadow.load_state(due, rows["pairs"])
        self.features, self.predictions = rows["features"], rows["shown"]
        self.reported = None if header["told"] is None else tuple(map(str, header["told"]))
        self.events.extend(_event(entry) for entry in header["events"])


def _entry(event: Event) -> dict[str, object]:
    """An event without its thumbnails."""
    return {
        "name": event.name, "image": event.image, "time": event.time, "text": event.text, "facts": dict(event.metrics)
    }  # fmt: skip


def _event(entry: Mapping[str, Any]) -> Event:
    metrics = {str(name): float(value) for name, value in entry["facts"].items()}
    return Event(str(entry["name"]), int(entry["image"]), float(entry["time"]), str(entry["text"]), metrics)


def check_shapes(specs: Mapping[str, HasShape], width: int, image_size: tuple[int, int]) -> None:
    """Raise a ``ValueError`` for arrays whose shapes do not fit together; ``width`` is the number of features."""
    count, rows = specs["features"].shape[:1], specs["rows"].shape[:1]
    pairs = specs["pairs"].shape[:1]
    expected = {
        "features": (*count, width), "shown": (*count, 3), "pairs": (*pairs, 7), "rows": (*rows, width), "times": rows,
        "drifted": (width,), "previous": image_size, "scene": thumbnail_shape(image_size),
    }  # fmt: skip
    for name, spec in specs.items():
        if spec.shape != expected.get(name) or spec.dtype.kind != "f" or spec.shape[0] > MAX_ROWS:
            raise ValueError(f"{name} is {spec.dtype} of shape {list(spec.shape)}")
    if pairs[0] > PAIRS:
        raise ValueError(f"it has {pairs[0]} pairs; the limit is {PAIRS}")
