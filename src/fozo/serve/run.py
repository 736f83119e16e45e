"""Run the application: uvicorn, one line about where, and an orderly shutdown."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import signal
import socket
import ssl
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from fozo.errors import FozoError
from fozo.serve.app import create_app
from fozo.serve.limits import ACCESS_LINES, LogLimit

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from fozo.serve.board import CameraBoard
    from fozo.serve.config import ServeConfig

KEEP_ALIVE = 75  # seconds that a connection may be idle: for cameras that send a frame a minute
PATIENCE = 15  # seconds that connections may take to end at shutdown
MAX_HEADERS = 1 << 16  # bytes of headers, with httptools
BACKLOG = 128  # connections that wait to be accepted; where descriptors run short, asyncio logs as many errors a second
LOG_LIMIT, ACCESS_LIMIT = LogLimit(), LogLimit(ACCESS_LINES, logging.INFO)


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's connection. If there are too many, one without a request is given up, best one that never had any.

    h11 limits the bytes of headers; httptools does not, so they are counted here: bytes that are not of a body.
    """

    headers_read = 0

    def data_received(self, data: bytes) -> None:
        self.headers_read += len(data)
        super().data_received(data)
        if self.headers_read > MAX_HEADERS and hasattr(self, "parser"):  # which is httptools'
            self.transport.abort()

    def on_headers_complete(self) -> None:
        self.headers_read = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.headers_read = 0
        super().on_body(body)

    @property
    def waiting(self) -> bool:
        return self.cycle is None or bool(self.cycle.response_complete)

    @property
    def stalled(self) -> bool:
        """Whether uvicorn waits without a limit: for the rest of headers, or for the client to read a response."""
        return self.waiting and (self.timeout_keep_alive_task is None or self.transport.is_closing())

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.made = self.loop.time()
        alive = [each for each in self.connections if not each.transport.is_closing()]
        if len(alive) > self.most:
            waiting = (each for each in alive if each.waiting)
            min(waiting, key=lambda each: (each.cycle is not None, each.made), default=self).transport.abort()


class FrontServer(uvicorn.Server):
    """Calls ``ready`` when it takes requests, gives up stalled connections, and ends the board's streams at the end."""

    def __init__(
        self, app: Starlette, config: ServeConfig, ready: Callable[[], None], board: CameraBoard | None = None
    ) -> None:
        protocol: Any = type("LimitedConnection", (Connection,), {"most": config.max_connections})
        options = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="on", ws="none", http=protocol,
            timeout_graceful_shutdown=PATIENCE, timeout_keep_alive=KEEP_ALIVE, ssl_certfile=config.certificate,
            ssl_keyfile=config.key, backlog=BACKLOG,
        )  # fmt: skip
        for name in ("asyncio", "uvicorn.error", "fozo.serve", "py.warnings"):
            logging.getLogger(name).addFilter(LOG_LIMIT)
        logging.getLogger("fozo.access").addFilter(ACCESS_LIMIT)
        super().__init__(options)
        self.ready, self.board, self.header_timeout = ready, board, config.header_timeout

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        loop: Any = asyncio.get_running_loop()
        if self.config.is_ssl:  # uvicorn has no option for it, and asyncio's own limit is 60 s
            loop.create_server = partial(loop.create_server, ssl_handshake_timeout=self.header_timeout)
        await super().startup(sockets)
        self._watch = asyncio.create_task(self._give_up_stalled())
        self.ready()

    async def _give_up_stalled(self) -> None:
        since = dict[Any, float]()
        while True:
            await asyncio.sleep(min(1.0, self.header_timeout / 2))
            now, connections = time.monotonic(), list[Any](self.server_state.connections)
            since = {each: since.get(each, now) for each in connections if each.stalled}
            for connection, start in since.items():
                if now - start >= self.header_timeout:
                    connection.transport.abort()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._watch.cancel()
        if self.board is not None:
            self.board.close()  # uvicorn waits for connections to end, and those of open pages stay open
        app: Any = self.config.app
        if (pool := app.state.server.pool) is not None:
            await asyncio.to_thread(pool.save_idle)  # at once: connections may take long, and be killed
        await super().shutdown(sockets)


def serve(config: ServeConfig, board: CameraBoard | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C: then finish what is under way, save all cameras, and return."""
    logging.basicConfig(level=logging.WARNING, format="fozo: %(message)s")  # unless the program has done so
    logging.getLogger("fozo.access").setLevel(logging.INFO)
    logging.getLogger("fozo.monitor").setLevel(logging.ERROR)  # the pool logs events, with the camera's name
    if config.certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(config.certificate, config.key, password="")  # instead of asking for one
        except OSError as error:
            files = f"the certificate {config.certificate} with the key {config.key}"
            raise FozoError(f"cannot use {files} ({error.strerror or error}); give PEM files of one pair") from error
    logging.captureWarnings(True)
    warnings.simplefilter("always")  # Pillow's have clients' numbers in them, and Python would remember each
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 4 << 20)  # M_MMAP_THRESHOLD: each thread would keep what a large picture took
        mallopt(-8, 2)  # M_ARENA_MAX: with a heap for each thread, none can reuse what another has freed
    app = create_app(config, board)
    listener = _listen(config.host, config.port)
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.certificate is None else "https"
    models = ", ".join(model.name for model in config.models)

    def announce() -> None:
        name = f"[{host}]" if ":" in host else host
        print(f"fozo: serving {models} at {scheme}://{name}:{port}", flush=True)

    # Once done, uvicorn raises the signal that stopped it again, for the handlers that were there before.
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        FrontServer(app, config, announce, board).run([listener])
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
        sentence = f"cannot listen on {host} port {port}: {error.strerror}; give another --host or --port"
        raise FozoError(sentence) from error
    return listener
