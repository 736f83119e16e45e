"""The cameras on a live web page.

``/`` is the page, one document without data that needs no token; ``/events`` sends readings to it as they come, and
``/frames`` the last frame of a camera where thumbnails are on. Both of these need the server's token, if it has one.
"""

import asyncio
import json
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from fozo.serve.history import CAMERAS_PER_MESSAGE, History, Viewer
from fozo.serve.page import document, policy

VIEWERS = 16  # pages that may be open at a time
PACE = 0.3  # seconds between two messages to a page: changes in between are sent together
HEARTBEAT = 10.0  # seconds after which something is sent anyway, so that both sides notice a dead connection
STUCK = 30.0  # seconds after which a page that reads nothing is given up
HEADERS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}  # fmt: skip


class CameraBoard:
    """The page and the data that it shows, for at most ``viewers`` pages. Worker threads record the readings."""

    def __init__(self, history: History | None = None, *, viewers: int = VIEWERS) -> None:
        self.history = History() if history is None else history
        self.viewers, self.open, self.closed = viewers, 0, False
        self.record, self.forget = self.history.record, self.history.forget
        self.routes = [Route("/", self._show), Route("/events", self._events), Route("/frames", self._frames)]

    def close(self) -> None:
        """End all streams soon: the server waits for open connections before it can exit."""
        self.closed = True

    async def _show(self, request: Request) -> Response:
        return HTMLResponse(document(), headers={"Content-Security-Policy": policy(), **HEADERS})

    async def _events(self, request: Request) -> Response:
        if self.closed or self.open >= self.viewers:
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
    await asyncio.wait_for(send({"type": "http.response.body", "body": body, "more_body": more}), STUCK)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
