"""Run the application: uvicorn, one line about where, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import uvicorn

from fozo.errors import FozoError
from fozo.serve.app import create_app

if TYPE_CHECKING:
    from fozo.serve.board import CameraBoard
    from fozo.serve.config import ServeConfig

KEEP_ALIVE = 75  # seconds that a connection may be idle: for cameras that send a frame a minute
PATIENCE = 15  # seconds that connections may take to end at shutdown


class _UvicornServer(uvicorn.Server):
    """Calls ``ready`` when it takes requests, and ends the board's streams before it stops."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], board: CameraBoard | None) -> None:
        super().__init__(config)
        self.ready, self.board = ready, board

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.board is not None:
            self.board.close()  # uvicorn waits for connections to end, and those of open pages stay open
        app: Any = self.config.app
        if (pool := app.state.server.pool) is not None:
            await asyncio.to_thread(pool.save_idle)  # at once: connections may take long, and be killed
        await super().shutdown(sockets)


def serve(config: ServeConfig, board: CameraBoard | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C: then finish what is under way, save all cameras, and return."""
    logging.basicConfig(level=logging.WARNING, format="fozo: %(message)s")  # unless the program has done so
    logging.getLogger("fozo.monitor").setLevel(logging.ERROR)  # the pool logs events, with the camera's name
    app = create_app(config, board)
    listener = _listen(config.host, config.port)
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.certificate is None else "https"
    models = ", ".join(model.name for model in config.models)

    def announce() -> None:
        name = f"[{host}]" if ":" in host else host
        print(f"fozo: serving {models} at {scheme}://{name}:{port}", flush=True)

    options = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on", ws="none",
        timeout_graceful_shutdown=PATIENCE, timeout_keep_alive=KEEP_ALIVE, ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
    )  # fmt: skip
    # Once done, uvicorn raises the signal that stopped it again, for the handlers that were there before.
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        _UvicornServer(options, announce, board).run([listener])
    finally:
        listener.close()
        for each, handler in before.items():
            signal.signal(each, handler)
        app.state.server.stop()
    if lost := app.state.server.unsaved:
        raise FozoError(f"{len(lost)} of the cameras could not be saved ({str(lost[:5])[1:-1]}); the log says why")


def _listen(host: str, port: int) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        # With the protocol by its number: asyncio sends without delay only over what says that it is TCP.
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except BaseException:
            listener.close()
            raise
    except OSError as error:
        raise FozoError(
            f"cannot listen on {host} port {port}: {error.strerror}; give another --host or --port"
        ) from error
    return listener
