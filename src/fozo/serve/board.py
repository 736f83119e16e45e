"""The cameras on a live web page.

``/`` is the page, one document without data that needs no token; ``/events`` sends readings to it as they come, and
``/frames`` the last frame of a camera where thumbnails are on. Both of these need the server's token, if it has one.
Every open page has a :class:`Viewer`, which remembers what was sent to it: there is no queue per viewer, and one that
reads slowly is sent the newest state when it comes back.
"""

import asyncio
import json
import math
import threading
import time
from collections import OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fozo.monitor import Event, Status
from fozo.serve.page import document, policy

POINTS = 120  # points of drift and accuracy that are kept of a camera
SPACING = 5.0  # seconds between two points, at least: 120 are ten minutes of a camera that sends many frames a second
EVENTS = 50  # events that are kept of a camera
CAMERAS = 512  # cameras that are kept
SILENT = 60.0  # seconds without an image after which a camera is silent, and makes room for a new one
FORGOTTEN = 3600.0  # seconds without an image after which a camera that has left the server's memory is dropped
CAMERAS_PER_MESSAGE = 16  # so that a large page does not block the event loop

Key = tuple[str, str]  # model and camera
VIEWERS = 16  # pages that may be open at a time
PACE = 0.3  # seconds between two messages to a page: changes in between are sent together
HEARTBEAT = 10.0  # seconds after which something is sent anyway, so that both sides notice a dead connection
STUCK = 30.0  # seconds after which a page that reads nothing is given up
HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """What is known of a camera after one of its requests."""

    model: str
    camera: str  # its `sequence_id`; empty for requests without one, which share a memory
    time: float  # in seconds since 1970
    images: int  # images seen so far
    status: Status | None = None  # the monitor's, where there is one
    events: tuple[Event, ...] = ()  # those that the request raised
    before: str | None = None  # small JPEG in base64 of the last frame as the camera sent it; only with thumbnails
    after: str | None = None  # the same as the model read it, where an equaliser changed it

    @property
    def state(self) -> str:
        """In a word: ``fault``, ``drift``, ``warning``, ``fine``, or ``unwatched`` without a monitor."""
        if self.status is None:
            return "unwatched"
        if self.status.faults:
            return "fault"
        drift = self.status.drift
        return "drift" if drift.drift_detected else "warning" if drift.warning_detected else "fine"

    @property
    def numbers(self) -> list[float | None]:
        """Drift over its threshold, expected accuracy and its interval, where they are known; rounded, for JSON."""
        values: list[float | None] = [None] * 4
        if self.status is not None:
            values[0] = self.status.drift.ratio
            if (expected := self.status.expected) is not None:
                values[1:] = expected.value, expected.low, expected.high
        return [rounded(number) for number in values]


class Point(NamedTuple):
    """A point of both curves."""

    version: int
    time: float | None
    drift: float | None  # over its threshold: above 1 is drift
    accuracy: float | None
    low: float | None
    high: float | None


@dataclass
class Viewer:
    """An open page: what was sent to it."""

    version: int = -1  # of the history, when all of it had been sent
    removed_at: int = -1  # version of the history when cameras were last removed from the page
    sent: dict[Key, int] = field(default_factory=dict)  # version of each camera


def rounded(value: float | None, digits: int = 4) -> float | None:
    """Shorten a number; JSON has only finite ones."""
    return None if value is None or not math.isfinite(value) else round(value, digits)


class CameraHistory:
    """The recent past of one camera."""

    def __init__(self, version: int) -> None:
        self.created = self.version = self.frames_version = version
        self.points: deque[Point] = deque(maxlen=POINTS)
        self.events: deque[tuple[int, Event]] = deque(maxlen=EVENTS)
        self.before: str | None = None
        self.after: str | None = None
        self.silent = False  # whether no image has come for :data:`SILENT`
        self.evicted = False  # whether it has left the server's memory
        self.ended = False  # whether its client has said that no image will follow
        self.reading: Reading

    def add(self, reading: Reading, version: int) -> tuple[Event, ...]:
        """Add a reading; of those that share a point, the one farthest above its threshold is drawn.

        Returns its events, with the end of a silence.
        """
        self.version = version
        self.reading = reading
        self.evicted = self.ended = False
        events = reading.events
        if self.silent:
            self.silent = False
            events = (Event("silent over", reading.images, reading.time, "images come again"), *events)
        self.events.extend((version, event) for event in events)
        if reading.before is not None:
            self.before = reading.before
            self.after = reading.after
            self.frames_version = version
        point = Point(version, rounded(reading.time, 2), *reading.numbers)
        last = self.points[-1] if self.points else None
        if last is None or last.time is None or not 0 <= reading.time - last.time < SPACING:
            self.points.append(point)
        elif last.drift is None or (point.drift is not None and point.drift >= last.drift):
            self.points[-1] = point._replace(time=last.time)
        return events

    def fall_silent(self, version: int) -> Event:
        self.silent = True
        self.version = version
        when = self.reading.time + SILENT
        event = Event("silent", self.reading.images, when, f"no image has come for {SILENT:g} s")
        self.events.append((version, event))
        return event

    def since(self, sent: int) -> dict[str, Any]:
        """What is new since a version, for JSON; all of it, if the viewer does not know this camera."""
        fresh = sent < self.created
        sent = 0 if fresh else sent
        reading = self.reading
        events = [event for version, event in self.events if version > sent]
        return {
            "model": reading.model, "camera": reading.camera,
            "state": "silent" if self.silent else reading.state, "images": reading.images,
            "time": rounded(reading.time, 2), **dict(zip(Point._fields[2:], reading.numbers, strict=True)),
            "sentence": "" if reading.status is None else reading.status.sentence,
            "relative": reading.status is not None and reading.status.relative_accuracy is not None,
            "gone": self.evicted, "fresh": fresh,
            "points": [point[1:] for point in self.points if point.version > sent],
            "events": [[rounded(event.time, 2), event.image, event.name, event.text] for event in events],
            "frames": 0 if self.before is None else self.frames_version,
        }  # fmt: skip


class History:
    """The recent past of all cameras; may be used from any thread."""

    def __init__(self) -> None:
        self.version = 0  # grows with every change
        self.full = False  # whether a camera was left out because there is no room for it
        self._removed_at = 0
        self._lock = threading.Lock()
        self._cameras: OrderedDict[Key, CameraHistory] = OrderedDict()  # by their latest readings, oldest first

    def record(self, reading: Reading) -> tuple[Event, ...]:
        """Add a reading; return its events, with the end of a silence.

        The lock is held for microseconds: nothing is drawn, encoded or sent here.
        """
        key = (reading.model, reading.camera)
        with self._lock:
            camera = self._cameras.get(key)
            oldest = next(iter(self._cameras.items()), None)
            if oldest is not None and oldest[1].evicted and reading.time - oldest[1].reading.time >= FORGOTTEN:
                self._remove(oldest[0])
            if camera is None and not self._make_room(reading.time):
                return reading.events
            self.version += 1
            if camera is None or key not in self._cameras:
                camera = self._cameras[key] = CameraHistory(self.version)
            self._cameras.move_to_end(key)
            return camera.add(reading, self.version)

    def _make_room(self, now: float) -> bool:
        """Remove the oldest camera if it is silent; an active one stays, or rows would flicker."""
        if len(self._cameras) >= CAMERAS:
            key, oldest = next(iter(self._cameras.items()))
            if not oldest.evicted and now - oldest.reading.time < SILENT:
                self.version += not self.full
                self.full = True
                return False
            self._remove(key)
        self.full = False
        return True

    def _remove(self, key: Key) -> None:
        del self._cameras[key]
        self.version += 1
        self._removed_at = self.version

    def forget(self, model: str, camera: str, ended: bool = False) -> None:
        """Note that a camera has left the server's memory; an unknown one is ignored. One that ended is not silent."""
        with self._lock:
            kept = self._cameras.get((model, camera))
            if kept is not None:
                self.version += 1
                kept.evicted = True
                kept.ended = ended
                kept.version = self.version

    def notice_silence(self, now: float) -> list[tuple[Key, Event]]:
        """Note which cameras have sent nothing for a while; return those that were not known to be silent."""
        silent = list[tuple[Key, Event]]()
        with self._lock:
            for key, camera in self._cameras.items():  # the oldest readings first
                if now - camera.reading.time <= SILENT:
                    break
                if not (camera.silent or camera.ended):
                    self.version += 1
                    silent.append((key, camera.fall_silent(self.version)))
        return silent

    def frames(self, model: str, camera: str) -> tuple[str, str | None] | None:
        """JPEGs in base64 of a camera's last frame before and after the equaliser, where there are any."""
        with self._lock:
            kept = self._cameras.get((model, camera))
            return None if kept is None or kept.before is None else (kept.before, kept.after)

    def changes(self, viewer: Viewer) -> dict[str, Any] | None:
        """Return what is new to a viewer, for JSON, and note it as sent; ``None`` if nothing is.

        At most :data:`CAMERAS_PER_MESSAGE` are sent at a time: call again while ``viewer.version`` is behind. At
        first, and after cameras were removed, ``all`` names those that there are.
        """
        with self._lock:
            if viewer.version == self.version:
                return None
            new = [key for key, camera in self._cameras.items() if camera.version > viewer.sent.get(key, -1)]
            some = new[:CAMERAS_PER_MESSAGE]
            lines = [self._cameras[key].since(viewer.sent.get(key, -1)) for key in some]
            viewer.sent.update((key, self._cameras[key].version) for key in some)
            message: dict[str, Any] = {"time": time.time(), "limit": CAMERAS if self.full else None}
            if viewer.removed_at < self._removed_at:
                message["all"] = list(self._cameras)
                viewer.sent = {key: version for key, version in viewer.sent.items() if key in self._cameras}
                viewer.removed_at = self._removed_at
            if len(some) == len(new):
                viewer.version = self.version
            return message | {"cameras": lines}


class CameraBoard:
    """The page and the data that it shows, for :data:`VIEWERS` pages at most. Worker threads record the readings."""

    def __init__(self) -> None:
        self.history = History()
        self.open = 0
        self.closed = False
        self.routes = [Route("/", self._show), Route("/events", self._events), Route("/frames", self._frames)]

    def close(self) -> None:
        """End all streams soon: the server waits for open connections before it can exit."""
        self.closed = True

    async def _show(self, request: Request) -> Response:
        return HTMLResponse(document(), headers={"Content-Security-Policy": policy(), **HEADERS})

    async def _events(self, request: Request) -> Response:
        if self.closed or self.open >= VIEWERS:
            why = "the server is stopping" if self.closed else f"{self.open} pages are open already, which is the limit"
            return JSONResponse({"error": why}, 503, {"Retry-After": "5"})
        return EventStream(self)

    async def _frames(self, request: Request) -> Response:
        query = request.query_params
        frames = self.history.frames(query.get("model", ""), query.get("camera", ""))
        if frames is None:
            return JSONResponse({"error": "there is no frame of this camera"}, 404)
        return JSONResponse(dict(zip(("before", "after"), frames, strict=True)), headers=HEADERS)


class EventStream(Response):
    """Server-sent events: ``snapshot`` in one or more parts, then ``change`` whenever cameras change.

    It polls the history at its own pace, so recording never meets the event loop.
    """

    media_type = "text/event-stream"

    def __init__(self, board: CameraBoard) -> None:
        super().__init__(headers={**HEADERS, "X-Accel-Buffering": "no"})  # so that nginx passes it on at once
        del self.headers["content-length"]
        self.board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the page is closed, reads nothing any more, or the server stops."""
        self.board.open += 1
        gone = asyncio.ensure_future(_disconnect(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with suppress(asyncio.TimeoutError):  # uvicorn then closes the connection, and logs it
                if scope["method"] != "HEAD":
                    await self._stream(send, gone)
                if not gone.done():
                    await _send(send, b"", more=False)
        finally:
            self.board.open -= 1
            gone.cancel()

    async def _stream(self, send: Send, gone: asyncio.Future[None]) -> None:
        history = self.board.history
        viewer = Viewer()
        quiet = 0.0
        while not (self.board.closed or gone.done()):
            name = "snapshot" if viewer.version < 0 else "change"
            message = history.changes(viewer)
            if message is not None:
                await _send(send, f"event: {name}\ndata: {json.dumps(message, separators=(',', ':'))}\n\n".encode())
            elif quiet >= HEARTBEAT:
                await _send(send, b": still here\n\n")
            quiet = 0.0 if message is not None or quiet >= HEARTBEAT else quiet + PACE
            more = message is not None and len(message["cameras"]) == CAMERAS_PER_MESSAGE
            await asyncio.wait({gone}, timeout=0 if more else PACE)


async def _send(send: Send, body: bytes, more: bool = True) -> None:
    await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": more}), STUCK)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
