"""A server for tests of the board, and readings to show on it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from fozo.serve.board import PUBLIC, CameraBoard
from fozo.serve.types import Reading

NOW = 1_700_000_000.0


def reading(camera: str = "gate", time: float = NOW, **changes: Any) -> Reading:
    """A camera that is fine, but for ``changes``."""
    usual: dict[str, Any] = {
        "model": "model",
        "camera": camera,
        "time": time,
        "images": 16,
        "drift": 0.12,
        "threshold": 0.31,
        "drifted": False,
        "warning": False,
        "accuracy": 0.9,
        "accuracy_low": 0.85,
        "accuracy_high": 0.94,
        "sentence": "no drift",
    }
    return Reading(**(usual | changes))


def guarded(app: ASGIApp, token: str) -> ASGIApp:
    """Ask for a token everywhere but where the board says that none may be asked for."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "http" and scope["path"] not in PUBLIC and given != b"Bearer " + token.encode():
            await PlainTextResponse("no", 401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer


@contextmanager
def serving(board: CameraBoard, *, port: int = 0, token: str | None = None) -> Iterator[int]:
    """Serve a board on a port of the loopback; at the end the server has to exit by itself, whoever still looks."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    app: ASGIApp = Starlette(routes=board.routes)
    config = uvicorn.Config(app if token is None else guarded(app, token), log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    listener.listen()
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        board.close()
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive(), "the server waits for a page that is still open"
