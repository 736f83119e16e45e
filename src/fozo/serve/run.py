"""Run the application: uvicorn with its own options, one line about where, and an orderly shutdown.

uvicorn gives up neither clients that never read nor bodies that never come. A proxy does (``deploy/nginx.conf``), and
:func:`serve` says so where strangers could reach it without one.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import logging
import signal
import socket
import ssl
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import uvicorn

from fozo.errors import FozoError
from fozo.serve.app import create_app

if TYPE_CHECKING:
    from collections.abc import Callable

    from fozo.serve.board import CameraBoard
    from fozo.serve.config import ServeConfig

LOG = logging.getLogger("fozo.serve")
LOOPBACK = ("127.0.0.1", "::1")
KEEP_ALIVE_SECONDS = 75  # longer than nginx keeps its own connections to a server
STOP_SECONDS = 15  # that requests may take to end when the server is stopped
MAX_HEADER_BYTES = 16 << 10
TOKEN_LETTERS = 16  # a token with fewer can be guessed


class Server(uvicorn.Server):
    """Calls ``ready`` once it takes requests; when it is stopped, ends open pages and saves idle cameras at once."""

    def __init__(self, options: uvicorn.Config, ready: Callable[[], None], board: CameraBoard | None) -> None:
        super().__init__(options)
        self.ready = ready
        self.board = board

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self.board is not None:
            self.board.close()  # uvicorn waits for connections to end, and those of open pages stay open
        app: Any = self.config.app
        pool = app.state.server.pool
        if pool is not None:
            await asyncio.to_thread(pool.save_idle)  # connections may take long to end, and the process be killed
        await super().shutdown(sockets)


def server_options(app: Any, config: ServeConfig) -> uvicorn.Config:  # noqa: ANN401 - an ASGI application
    return uvicorn.Config(
        app, http="h11", ws="none", lifespan="on", log_config=None, log_level="warning", access_log=False,
        limit_concurrency=config.max_connections, timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS, h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        forwarded_allow_ips=list(config.proxies or LOOPBACK), ssl_certfile=config.certificate, ssl_keyfile=config.key,
    )  # fmt: skip


def serve(config: ServeConfig, board: CameraBoard | None = None) -> None:
    """Serve until SIGTERM or Ctrl-C: then finish what is under way, save all cameras, and return."""
    logging.basicConfig(level=logging.WARNING, format="fozo: %(message)s")  # unless the program has done so
    logging.getLogger("fozo.monitor").setLevel(logging.ERROR)  # the pool logs events, with the camera's name
    if config.certificate is not None:
        try:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(config.certificate, config.key, password="")  # instead of asking for one
        except OSError as error:
            files = f"the certificate {config.certificate} with the key {config.key}"
            raise FozoError(f"cannot use {files} ({error.strerror or error}); give PEM files of one pair") from error
    warnings.simplefilter("always")  # Python remembers what it shows once, and clients could have it remember much
    warnings.filterwarnings("ignore", module="PIL")
    with suppress(AttributeError, OSError, TypeError):  # only glibc has it
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-3, 4 << 20)  # M_MMAP_THRESHOLD: each thread would keep what a large body took
        mallopt(-8, 2)  # M_ARENA_MAX: with a heap for each thread, none can reuse what another has freed
    app = create_app(config, board)
    listener = listen(config.host, config.port)
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.certificate is None else "https"
    models = ", ".join(model.name for model in config.models)
    for sentence in exposures(config, host):
        LOG.warning(sentence)

    def announce() -> None:
        name = f"[{host}]" if ":" in host else host
        print(f"fozo: serving {models} at {scheme}://{name}:{port}", flush=True)

    # Once done, uvicorn raises the signal that stopped it again, for the handlers that were there before.
    handlers = {stop: signal.signal(stop, lambda *_: None) for stop in (signal.SIGTERM, signal.SIGINT)}
    try:
        Server(server_options(app, config), announce, board).run([listener])
    finally:
        listener.close()
        for stop, handler in handlers.items():
            signal.signal(stop, handler)
        app.state.server.stop()
    if unsaved := app.state.server.unsaved:
        raise FozoError(
            f"{len(unsaved)} of the cameras could not be saved ({str(unsaved[:5])[1:-1]}); the log says why"
        )


def exposures(config: ServeConfig, host: str) -> list[str]:
    """What an operator should know of a server that other machines can reach; ``host`` is its numeric address."""
    sentences = list[str]()
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        if not config.proxies:
            advice = "put deploy/nginx.conf in front and name its address with --proxy"
            sentences.append(f"other machines reach this server without a proxy, so any can stop it; {advice}")
        if config.token is None:
            sentences.append("other machines reach this server without a token; give --token-file")
    if config.token is not None and len(config.token) < TOKEN_LETTERS:
        sentences.append(f"the token has fewer than {TOKEN_LETTERS} letters and can be guessed; make a longer one")
    return sentences


def listen(host: str, port: int) -> socket.socket:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
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
