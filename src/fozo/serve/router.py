"""Several servers as one: every camera has a server of its own, and another one if that should die.

The servers keep their cameras in one folder, and each camera there is locked by the server that has it in memory
(:mod:`fozo.serve.store`): whatever goes wrong, no two of them learn from one camera. So a router need not know who has
which camera, nor agree with other routers:

* the order in which servers are asked follows from the camera's name alone (rendezvous hashing: with one server more or
  less, only the cameras of that one move);
* a server that is down is passed over: the next one goes on from what it saved;
* a server that says that another one has the camera is passed over as well, and the one that is found to have it
  answers, saves the camera and lets it go: the next request finds it where it belongs.

Nothing here knows of Ray; :mod:`fozo.serve.ray` does.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl

from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from fozo.errors import FozoError
from fozo.serve.app import ELSEWHERE, RETRY, create_app
from fozo.serve.protocol import HEADER_LENGTH, PICTURES, Limits, Request, picture_request, read_request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp
    from starlette.types import Message as ASGIMessage

    from fozo.serve.config import ServeConfig

Headers = tuple[tuple[str, str], ...]
INFER = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?/infer")
PASSED_ON = ("authorization", "content-encoding", "content-type", "host", HEADER_LENGTH, "origin")
"""Headers that a server looks at."""


@dataclass(frozen=True)
class Message:
    """A request of HTTP, to be handed on."""

    method: str
    path: str
    query: str = ""
    headers: Headers = ()
    """Their names in lower case."""
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """Find one."""
        return dict(self.headers).get(name)


@dataclass(frozen=True)
class Reply:
    """What was answered."""

    status: int
    headers: Headers
    body: bytes

    @property
    def elsewhere(self) -> bool:
        """Whether another server has the camera."""
        return any(name.lower() == ELSEWHERE.lower() for name, _ in self.headers)


def refusal(status: int, sentence: str) -> Reply:
    """Tell what went wrong as the protocol does."""
    again = tuple(RETRY.items()) if status in (429, 503) else ()
    return Reply(status, (("Content-Type", "application/json"), *again), json.dumps({"error": sentence}).encode())


class Died(Exception):
    """A server is gone, and nobody knows whether it did what it was asked for."""


class Part(Protocol):
    """One of several servers, as a router sees it. Both may raise :class:`Died`."""

    async def call(self, message: Message, leave: bool) -> Reply:
        """Answer; if told to ``leave``, let go of the camera then."""

    async def ready(self) -> int:
        """Say that it lives: the id of its process."""


class LocalPart:
    """A server in this process: the same application as ever, called without a socket."""

    def __init__(self, config: ServeConfig) -> None:
        if config.state is None:
            raise FozoError("several servers need a folder that all of them reach; give state")
        self.app = create_app(replace(config, shared=True))
        self.server = self.app.state.server
        self.server.start()
        self.limits = Limits(images=config.max_images, body=config.max_body)

    async def call(self, message: Message, leave: bool) -> Reply:
        """Answer."""
        reply = await answered(self.app, message)
        found = INFER.fullmatch(message.path)
        if leave and found and self.server.pool is not None and not reply.elsewhere:
            camera = read_message(message, self.limits).camera
            await asyncio.to_thread(self.server.pool.let_go, found[1], camera)
        return reply

    async def ready(self) -> int:
        """Say that it lives."""
        return os.getpid()

    def stop(self) -> None:
        """Save all cameras."""
        self.server.stop()


def read_message(message: Message, limits: Limits) -> Request:
    """Read a request for predictions."""
    kind = (message.header("content-type") or "").partition(";")[0].strip().lower()
    if kind in PICTURES:
        return picture_request(message.body, dict(parse_qsl(message.query, keep_blank_values=True)))
    return read_request(message.body, message.header(HEADER_LENGTH), limits)


async def answered(app: ASGIApp, message: Message) -> Reply:
    """Let an ASGI application answer."""
    scope: dict[str, Any] = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": message.method, "scheme": "http",
        "path": message.path, "raw_path": message.path.encode(), "query_string": message.query.encode(),
        "root_path": "", "client": None, "server": None,
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in message.headers],
    }  # fmt: skip
    given, start, parts = False, dict[str, Any](), list[bytes]()

    async def receive() -> dict[str, Any]:
        nonlocal given
        if given:
            await asyncio.Event().wait()  # the client stays; if it does not, this task is cancelled
        given = True
        return {"type": "http.request", "body": message.body, "more_body": False}

    async def send(event: ASGIMessage) -> None:
        if event["type"] == "http.response.start":
            start.update(event)
        else:
            parts.append(event.get("body", b""))

    await app(scope, receive, send)
    headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"])
    return Reply(start["status"], tuple(pair for pair in headers if pair[0] != "content-length"), b"".join(parts))


def ranked(key: str, count: int) -> list[int]:
    """The order in which servers are asked for a camera: for each camera another one, and for each always the same."""
    return sorted(range(count), key=lambda number: hashlib.blake2b(f"{number} {key}".encode(), digest_size=8).digest())


class Router:
    """Hands requests on to several servers.

    Args:
        parts: the servers, always in the same order.
        config: theirs, for its limits.
        beat: seconds between two looks at whether a server lives.
        patience: seconds that it may take to say so.
    """

    def __init__(self, parts: Sequence[Part], config: ServeConfig, *, beat: float = 0.5, patience: float = 5.0) -> None:
        self.parts, self.config, self.beat, self.patience = tuple(parts), config, beat, patience
        self.limits = Limits(images=config.max_images, body=config.max_body)
        self._down = [asyncio.Event() for _ in parts]
        self._turns: dict[str, tuple[asyncio.Lock, list[None]]] = {}
        self._watches: list[asyncio.Task[None]] = []
        self._numbers = itertools.count()

    def watch(self) -> None:
        """Begin to look at whether the servers live; needs a running loop, and is done by the first request."""
        if not self._watches:
            self._watches = [asyncio.ensure_future(self._watch(number)) for number in range(len(self.parts))]

    def stop(self) -> None:
        """Look no more."""
        for each in self._watches:
            each.cancel()

    async def _watch(self, number: int) -> None:
        while True:
            try:
                await asyncio.wait_for(self.parts[number].ready(), self.patience)
                self._down[number].clear()
            except Exception:  # whatever it is: who does not say that it lives is passed over
                self._down[number].set()
            await asyncio.sleep(self.beat)

    async def route(self, message: Message) -> Reply:
        """Answer a request."""
        self.watch()
        if message.path == "/metrics":
            return await self._metrics(message)
        found = INFER.fullmatch(message.path)
        key, repeatable = f"any {next(self._numbers)}", True
        if found and message.method == "POST":
            try:
                request = read_message(message, self.limits)
            except FozoError as error:
                return refusal(400, str(error))
            repeatable = bool(request.id)
            if request.camera or self.config.anonymous != "stateless":
                key = f"{found[1]} {request.camera}"
        try:
            async with self._turn(key):
                return await asyncio.wait_for(self._found(key, message, repeatable), self.config.timeout)
        except asyncio.TimeoutError:
            return refusal(504, f"there was no answer within {self.config.timeout:g} s; send it again")
        except _Full:
            return refusal(429, "requests of this camera are waiting already; send more slowly")

    @asynccontextmanager
    async def _turn(self, key: str) -> AsyncIterator[None]:
        """Wait until all earlier requests of the camera are answered: what is sent side by side may overtake."""
        lock, waiting = self._turns.setdefault(key, (asyncio.Lock(), []))
        if len(waiting) > self.config.max_camera_queue:
            raise _Full
        waiting.append(None)
        try:
            async with lock:
                yield
        finally:
            waiting.pop()
            if not waiting:
                self._turns.pop(key, None)

    async def _found(self, key: str, message: Message, repeatable: bool) -> Reply:
        """Ask servers in their order until one has the camera."""
        while True:
            leave = False
            for number in ranked(key, len(self.parts)):
                if self._down[number].is_set():
                    continue
                reply = await self._ask(number, message, leave)
                if reply is None and not repeatable:
                    return refusal(503, "the server died that had this request; send it again, best with an id")
                if reply is not None and not reply.elsewhere:
                    return reply
                leave = leave or reply is not None
            await asyncio.sleep(0.1)  # one of them is just dying, letting the camera go, or being started again

    async def _ask(self, number: int, message: Message, leave: bool) -> Reply | None:
        """Ask one server; ``None`` if it dies on the way."""
        work = asyncio.ensure_future(self.parts[number].call(message, leave))
        down = asyncio.ensure_future(self._down[number].wait())
        try:
            await asyncio.wait({work, down}, return_when=asyncio.FIRST_COMPLETED)
            return work.result() if work.done() else None
        except Died:
            self._down[number].set()
            return None
        finally:
            work.cancel()
            down.cancel()

    async def _metrics(self, message: Message) -> Reply:
        """The metrics of all servers, each with a label that tells whose they are."""
        texts = dict[int, str]()
        for number in range(len(self.parts)):
            reply = None if self._down[number].is_set() else await self._ask(number, message, False)
            if reply is not None and reply.status != 200:
                return reply
            if reply is not None:
                texts[number] = reply.body.decode()
        return Reply(200, (("Content-Type", "text/plain; version=0.0.4; charset=utf-8"),), joined(texts))


class _Full(Exception):
    """A camera's queue is."""


class _Joined(Collector):
    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        """Give what there is."""
        yield from self.families


def joined(texts: dict[int, str]) -> bytes:
    """Put what several servers tell Prometheus together, each sample with the label ``server``."""
    families: dict[str, Metric] = {}
    for number, text in texts.items():
        for family in text_string_to_metric_families(text):
            made = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            made.samples += [
                sample._replace(labels={**sample.labels, "server": str(number)}) for sample in family.samples
            ]
    registry = CollectorRegistry()
    registry.register(_Joined(list(families.values())))
    return generate_latest(registry)
