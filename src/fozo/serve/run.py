"""Running the application: uvicorn, one line about where, and an orderly end."""

from __future__ import annotations

import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import uvicorn

from fozo.errors import FozoError
from fozo.serve.app import create_app

if TYPE_CHECKING:
    from fozo.serve.config import ServeConfig
    from fozo.serve.types import Board

KEEP_ALIVE = 75
"""Seconds that a connection may be idle: for cameras that send a frame a minute."""
PATIENCE = 30
"""Seconds that connections may take to end once the server is told to stop."""


class _Server(uvicorn.Server):
    """Says when it takes requests, which uvicorn's log would say among much else, and tells the board to end."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None], board: Board | None) -> None:
        super().__init__(config)
        self.ready, self.board = ready, board

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; uvicorn waits for connections to end, and those of open pages do not by themselves."""
        if self.board is not None:
            self.board.close()
        await super().shutdown(sockets)


def serve(config: ServeConfig, board: Board | None = None) -> None:
    """Serve until told to stop (SIGTERM, Ctrl-C): then finish what is under way, save all cameras, and return."""
    logging.basicConfig(level=logging.WARNING, format="fozo: %(message)s")  # unless the program has done so
    logging.getLogger("fozo.monitor").setLevel(logging.ERROR)  # it does not know its camera's name; the pool does
    app = create_app(config, board)
    listener = _listen(config.host, config.port)
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.certificate is None else "https"
    models = ", ".join(model.name for model in config.models)

    def say() -> None:
        name = f"[{host}]" if ":" in host else host
        print(f"fozo: serving {models} at {scheme}://{name}:{port}", flush=True)

    options = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="on", ws="none",
        timeout_graceful_shutdown=PATIENCE, timeout_keep_alive=KEEP_ALIVE, ssl_certfile=config.certificate,
        ssl_keyfile=config.key,
    )  # fmt: skip
    # Once done, uvicorn raises the signal that stopped it anew, for whoever was there before it.
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        _Server(options, say, board).run([listener])
    finally:
        listener.close()
        for each, handler in before.items():
            signal.signal(each, handler)
        app.state.server.stop()


def _listen(host: str, port: int) -> socket.socket:
    """Take the address, before anything is said about it."""
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
