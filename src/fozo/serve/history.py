"""The recent past of each camera, as much as a page shows: bounded, and quick to add to.

Whoever looks holds a :class:`Viewer`, which remembers what it was sent; :meth:`History.changes` says what is new to
it. So there is no queue per viewer: one that reads slowly is sent the newest when it comes back.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fozo.monitor import Event
from fozo.monitor.faults import SENTENCES
from fozo.serve.types import Reading

POINTS = 120
"""Points of drift and accuracy that are kept of a camera."""
SPACING = 5.0
"""Seconds that a point stands for, at least: 120 are ten minutes of a camera that sends many frames a second."""
EVENTS = 50
"""Events that are kept of a camera."""
CAMERAS = 512
"""Cameras that are kept."""
SILENT = 60.0
"""Seconds without an image after which a camera gives its place to a new one, where all are taken."""
GONE = 3600.0
"""Seconds without an image after which a camera that has left the server's memory is dropped."""
CAMERAS_PER_MESSAGE = 16
"""Cameras in one answer to a viewer: the event loop should not stand still for a large page."""

Key = tuple[str, str]
"""Model and camera."""


class Point(NamedTuple):
    """A place on both curves."""

    version: int
    time: float | None
    drift: float | None
    threshold: float | None
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass
class Viewer:
    """Someone who looks: what was sent already."""

    version: int = -1
    """Of the history, when all of it had been sent."""
    removed_at: int = -1
    """When cameras were last known to have gone."""
    sent: dict[Key, int] = field(default_factory=dict)
    """Version of each camera."""


def state_of(reading: Reading) -> str:
    """Say it in a word: ``fault``, ``drift``, ``warning``, ``fine``, or ``unwatched`` without a monitor."""
    if any(fault in reading.sentence for fault in SENTENCES.values()):
        return "fault"
    if reading.drifted:
        return "drift"
    if reading.warning:
        return "warning"
    return "unwatched" if reading.drift is None else "fine"


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Shorten a number; JSON has none that is not finite."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


class CameraHistory:
    """What is kept of one camera."""

    def __init__(self, created: int, points: int, events: int) -> None:
        self.created = self.version = self.frames_version = created
        self.points: deque[Point] = deque(maxlen=points)
        self.events: deque[tuple[int, Event]] = deque(maxlen=events)
        self.before: bytes | None = None
        self.after: bytes | None = None
        self.gone = False
        """Whether it has left the server's memory."""
        self.reading: Reading

    def add(self, reading: Reading, version: int, spacing: float) -> None:
        """Take a reading; of those that share a point, the one that is farthest beyond its threshold is drawn."""
        self.version, self.reading, self.gone = version, reading, False
        self.events.extend((version, event) for event in reading.events)
        if reading.before is not None:
            self.before, self.after, self.frames_version = reading.before, reading.after, version
        numbers = (reading.drift, reading.threshold, reading.accuracy, reading.accuracy_low, reading.accuracy_high)
        point = Point(version, rounded(reading.time, 2), *map(rounded, numbers))
        last = self.points[-1] if self.points else None
        shared = last is not None and last.time is not None and 0 <= reading.time - last.time < spacing
        if last is None or not shared:
            self.points.append(point)
        elif _excess(point) >= _excess(last):
            self.points[-1] = point._replace(time=last.time)

    def since(self, sent: int) -> dict[str, Any]:
        """Give what is new since a version, for JSON; all that is kept, if the viewer does not know this camera."""
        fresh = sent < self.created
        sent = 0 if fresh else sent
        reading = self.reading
        return {
            "model": reading.model,
            "camera": reading.camera,
            "state": state_of(reading),
            "time": rounded(reading.time, 2),
            "images": reading.images,
            "drift": rounded(reading.drift),
            "threshold": rounded(reading.threshold),
            "accuracy": rounded(reading.accuracy),
            "low": rounded(reading.accuracy_low),
            "high": rounded(reading.accuracy_high),
            "sentence": reading.sentence,
            "gone": self.gone,
            "fresh": fresh,
            "points": [point[1:] for point in self.points if point.version > sent],
            "events": [
                [rounded(event.time, 2), event.image, event.name, event.text]
                for version, event in self.events
                if version > sent
            ],
            "frames": 0 if self.before is None else self.frames_version,
        }


def _excess(point: Point) -> float:
    """How far a point is above its threshold."""
    if point.drift is None:
        return -math.inf
    return point.drift - (point.threshold or 0.0)


class History:
    """Keeps the recent past of all cameras; may be used from any thread.

    Args:
        cameras, points, events: how many of them are kept.
        spacing: seconds that a point stands for, at least.
    """

    def __init__(
        self, *, cameras: int = CAMERAS, points: int = POINTS, events: int = EVENTS, spacing: float = SPACING
    ) -> None:
        self.cameras, self.points, self.events, self.spacing = cameras, points, events, spacing
        self.version = 0
        """Grows with every change."""
        self.full = False
        """Whether a camera was turned away because all places are taken."""
        self._removed_at = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, CameraHistory] = OrderedDict()
        """The one that was heard of longest ago comes first."""

    def record(self, reading: Reading) -> None:
        """Take a reading. The lock is held for microseconds: nothing is drawn, encoded or sent here."""
        key = (reading.model, reading.camera)
        with self._lock:
            camera = self._kept.get(key)
            self._drop_old(reading.time)
            if camera is None and not self._make_room(reading.time):
                return
            self.version += 1
            if camera is None:
                camera = self._kept[key] = CameraHistory(self.version, self.points, self.events)
            camera.add(reading, self.version, self.spacing)
            self._kept.move_to_end(key)

    def _drop_old(self, now: float) -> None:
        """Drop the camera that was heard of longest ago, if that is long ago and it has gone."""
        for key, camera in self._kept.items():
            if camera.gone and now - camera.reading.time >= GONE:
                self._drop(key)
            break

    def _make_room(self, now: float) -> bool:
        """Let the camera go that was heard of longest ago; not one that is heard of now, or rows would only flicker."""
        if len(self._kept) >= self.cameras:
            oldest, camera = next(iter(self._kept.items()))
            if not camera.gone and now - camera.reading.time < SILENT:
                self.version += not self.full
                self.full = True
                return False
            self._drop(oldest)
        self.full = False
        return True

    def _drop(self, key: Key) -> None:
        del self._kept[key]
        self.version += 1
        self._removed_at = self.version

    def forget(self, model: str, camera: str) -> None:
        """Note that a camera has left the server's memory; one that is not kept is no error."""
        with self._lock:
            kept = self._kept.get((model, camera))
            if kept is not None:
                self.version += 1
                kept.gone, kept.version = True, self.version

    def frames(self, model: str, camera: str) -> tuple[bytes, bytes | None] | None:
        """JPEGs of a camera's last frame before and after the equaliser, where there are any."""
        with self._lock:
            kept = self._kept.get((model, camera))
            return None if kept is None or kept.before is None else (kept.before, kept.after)

    def changes(self, viewer: Viewer) -> dict[str, Any] | None:
        """Give what is new to a viewer, for JSON, and note that it was sent; ``None`` where nothing is.

        At most :data:`CAMERAS_PER_MESSAGE` cameras are sent at a time: ask again while ``viewer.version`` is behind. To a new viewer
        everything is new. At first, and where cameras have gone, ``all`` names those that there are.
        """
        with self._lock:
            if viewer.version == self.version:
                return None
            new = [key for key, camera in self._kept.items() if camera.version > viewer.sent.get(key, -1)]
            part = new[:CAMERAS_PER_MESSAGE]
            lines = [self._kept[key].since(viewer.sent.get(key, -1)) for key in part]
            viewer.sent.update((key, self._kept[key].version) for key in part)
            message: dict[str, Any] = {"time": time.time(), "limit": self.cameras if self.full else None}
            if viewer.removed_at < self._removed_at:
                message["all"] = list(self._kept)
                viewer.sent = {key: sent for key, sent in viewer.sent.items() if key in self._kept}
                viewer.removed_at = self._removed_at
            if len(part) == len(new):
                viewer.version = self.version
            return message | {"cameras": lines}
