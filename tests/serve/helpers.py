"""A server for tests of the board, and readings to show on it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware

from fozo.serve.board import CameraBoard
from fozo.serve.history import Reading
from fozo.serve.security import AccessPolicy

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


@contextmanager
def serving(board: CameraBoard, *, port: int = 0, token: str | None = None) -> Iterator[int]:
    """Serve a board on a port of the loopback; at the end the server has to exit by itself, whoever still looks."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    app = Starlette(routes=board.routes, middleware=[Middleware(AccessPolicy, token=token)])
    config = uvicorn.Config(app, log_level="error", lifespan="off")
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
