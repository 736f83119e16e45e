"""The board: what the server shows to people, as a page that is live.

``/`` is the page, one document without data that needs no token; ``/events`` sends readings to it as they come, and
``/frames`` the last frame of a camera where thumbnails are on. Both of these need the server's token, if it has one.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from fozo.serve.history import CAMERAS_PER_MESSAGE, History, Viewer
from fozo.serve.page import document, policy
from fozo.serve.types import Reading

VIEWERS = 16
"""Pages that may be open at a time."""
PACE = 0.3
"""Seconds between two messages to a page: what happens in between is sent as one."""
HEARTBEAT = 10.0
"""Seconds after which something is sent although nothing happened, so that both sides notice a dead connection."""
STUCK = 30.0
"""Seconds after which a page that takes nothing is given up."""


class CameraBoard:
    """A :class:`fozo.serve.types.Board` that is a web page.

    Args:
        history: what is kept of each camera.
        viewers: pages that may be open at a time.
    """

    def __init__(self, history: History | None = None, *, viewers: int = VIEWERS) -> None:
        self.history = History() if history is None else history
        self.viewers, self.open, self.closed = viewers, 0, False
        self._page, self._headers = document(), {"Content-Security-Policy": policy(), **HEADERS}

    def record(self, reading: Reading) -> None:
        """Show a reading; takes microseconds, and waits for no viewer."""
        self.history.record(reading)

    def forget(self, model: str, camera: str) -> None:
        """Show a camera as silent; it is taken off the page only later, since silence may be news."""
        self.history.forget(model, camera)

    def close(self) -> None:
        """End all streams soon: the server waits for open connections before it can exit."""
        self.closed = True

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """The page and what it asks for."""
        return [Route("/", self._show), Route("/events", self._events), Route("/frames", self._frames)]

    async def _show(self, request: Request) -> Response:
        return HTMLResponse(self._page, headers=self._headers)

    async def _events(self, request: Request) -> Response:
        if self.closed or self.open >= self.viewers:
            why = "the server is stopping" if self.closed else f"{self.open} pages are open already, which is the limit"
            return JSONResponse({"error": why}, 503, {"Retry-After": "5"})
        return EventStream(self)

    async def _frames(self, request: Request) -> Response:
        asked = request.query_params
        frames = self.history.frames(asked.get("model", ""), asked.get("camera", ""))
        if frames is None:
            return JSONResponse({"error": "there is no frame of this camera"}, 404)
        before, after = (None if jpeg is None else base64.b64encode(jpeg).decode() for jpeg in frames)
        return JSONResponse({"before": before, "after": after}, headers=HEADERS)


HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class EventStream(Response):
    """Server-sent events: ``snapshot`` in one or more parts, then ``change`` as often as something does.

    It asks the history at its own pace instead of being told: who records never meets the event loop.
    """

    media_type = "text/event-stream"

    def __init__(self, board: CameraBoard) -> None:
        super().__init__(headers={**HEADERS, "X-Accel-Buffering": "no"})  # so that nginx passes it on at once
        del self.headers["content-length"]
        self.board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the page goes, takes nothing any more, or the server stops."""
        self.board.open += 1
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            with suppress(asyncio.TimeoutError):  # uvicorn then closes the connection, and says so in its log
                if scope["method"] != "HEAD":
                    await self._stream(send, gone)
                if not gone.done():
                    await _send(send, b"", more=False)
        finally:
            self.board.open -= 1
            gone.cancel()

    async def _stream(self, send: Send, gone: asyncio.Future[None]) -> None:
        history, viewer, quiet = self.board.history, Viewer(), 0.0
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
    """Send, but not for ever."""
    message: dict[str, Any] = {"type": "http.response.body", "body": body, "more_body": more}
    await asyncio.wait_for(send(message), STUCK)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
