"""What the server refuses, and what its requests share: access, and pixels that are decoded at a time."""

from __future__ import annotations

import hmac
import ipaddress
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from fozo.errors import FozoError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

CLOSE = {"Connection": "close"}  # nothing more is read from a client that was refused
RETRY = {"Retry-After": "1"}
PUBLIC = ("/v2/health/live", "/v2/health/ready", "/")
"""Paths that need no token: health checks, and the page, which contains no data and asks for the token itself."""
SMALL_PICTURE = 1 << 21  # pixels, 1080p: a picture up to this size never waits for larger ones


class AccessPolicy:
    """Passes on requests that show the token, where there is one, and that no foreign web page sends.

    A browser sends requests on behalf of any page, also to a server on its own machine. It names the page's site in
    ``Origin``; where it does not, as for pictures, ``Sec-Fetch-Site`` says that it is another one. After DNS
    rebinding that site's name resolves to this server, so ``Host`` is checked as well: addresses (which cannot be
    rebound), ``localhost``, and ``hosts`` are allowed; ``*`` allows all. Only HTTP/1.0 may leave it out.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Iterable[str] = ()) -> None:
        self.app = app
        self.token = None if token is None else token.encode()
        self.hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["path"], Headers(scope=scope)) if scope["type"] == "http" else None
        await (refusal or self.app)(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        host = headers.get("host")
        if host is not None and not self._is_allowed(host):
            sentence = f"this server does not answer for the host {host[:100]!r}; name it in allowed_hosts"
            return JSONResponse({"error": sentence}, 421, CLOSE)
        foreign = "origin" in headers and headers["origin"].partition("://")[2] != host
        if foreign or (path not in PUBLIC and headers.get("sec-fetch-site", "none") not in ("none", "same-origin")):
            return JSONResponse({"error": "requests of other sites' pages are refused"}, 403, CLOSE)
        if self.token is None or path in PUBLIC or self._has_token(headers.get("authorization", ""), self.token):
            return None
        challenge = {"WWW-Authenticate": 'Bearer realm="fozo"', **CLOSE}
        return JSONResponse({"error": "this server needs a token; send Authorization: Bearer"}, 401, challenge)

    def _is_allowed(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.lower().rstrip(".")
        if name in self.hosts or name.endswith(".localhost") or "*" in self.hosts:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
            return True
        except ValueError:
            return False

    def _has_token(self, authorization: str, token: bytes) -> bool:
        scheme, _, text = authorization.partition(" ")
        same = hmac.compare_digest(text.strip().encode("utf-8", "replace"), token)  # in constant time
        return same and scheme.lower() == "bearer"


class Refused(FozoError):
    """A request that the server does not take now, with the HTTP status; ``retry``: whether waiting helps."""

    def __init__(self, sentence: str, code: int, *, retry: bool = True) -> None:
        super().__init__(sentence)
        self.code, self.retry = code, retry and code != 413


class PixelBudget:
    """Pixels of large images that are worked on at a time, over all requests.

    Small images take none of it. Larger ones wait for each other, but never on the last of the threads, which stays
    free for small ones; beyond, they are refused.

    Args:
        pixels: of all at a time.
        waiting: images that may wait or be worked on.
        at_once: images that may be worked on.
    """

    def __init__(self, pixels: int = 1 << 25, waiting: int = 7, at_once: int = 7) -> None:
        self.pixels = pixels
        self._free = pixels
        self._waiting = max(1, waiting)
        self._at_once = max(1, at_once)
        self._changed = threading.Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        if pixels <= SMALL_PICTURE:
            yield
            return
        if pixels > self.pixels:
            raise Refused(f"an image takes {pixels} pixels, where max_pixels is {self.pixels}; send a smaller one", 413)
        with self._changed:
            if not self._waiting:
                raise Refused("too many large pictures are being decoded; try again in a while", 503)
            self._waiting -= 1
            self._changed.wait_for(lambda: self._free >= pixels and self._at_once)
            self._free -= pixels
            self._at_once -= 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting += 1
                self._at_once += 1
                self._free += pixels
                self._changed.notify_all()
