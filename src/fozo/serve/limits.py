"""What the server refuses, and what its requests share: access, and pixels that are decoded at a time."""

from __future__ import annotations

import hmac
import ipaddress
import re
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
MAX_SCANS = 16  # scans of a JPEG that has as many pixels as a request may have; a smaller one may have more
MAX_SEGMENTS = 1 << 14  # segments of a picture, and bytes between those before a JPEG's pixels
SMALL_PICTURE = 1 << 21  # pixels, 1080p: a picture up to this size never waits for larger ones
ARITHMETIC = b"\xc9\xca\xcb\xcd\xce\xcf"  # markers of frames in a slower coding, which browsers do not decode either
SEGMENT = re.compile(rb"\xff[\xc0-\xc7\xc9-\xcf\xd9-\xef\xfe]")  # markers after which Pillow skips; and the end


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
    """Pixels that may be decoded at a time, over all requests.

    Small pictures take none of it. Larger ones wait for each other, but never on the last of the threads, which stays
    free for small ones; beyond, they are refused.
    """

    def __init__(self, pixels: int = 1 << 25, workers: int = 8) -> None:
        self.pixels, self._free, self._threads = pixels, pixels, max(1, workers - 1)
        self._changed = threading.Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        if pixels <= SMALL_PICTURE:
            yield
            return
        if pixels > self.pixels:
            raise Refused(f"an image has {pixels} pixels, where max_pixels is {self.pixels}; send a smaller one", 413)
        with self._changed:
            if not self._threads:
                raise Refused("too many large pictures are being decoded; try again in a while", 503)
            self._threads -= 1
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._threads += 1
                self._free += pixels
                self._changed.notify_all()


def count_scans(picture: bytes) -> int:
    """Count the scans of a JPEG by its markers (ITU-T T.81, B.1): a pass over all pixels each. PNG and WebP have one.

    0 is for what is not decoded: formats that Pillow decodes in Python, at least in part; arithmetic coding; more than
    :data:`MAX_SEGMENTS` segments or bytes between them, which it reads in Python too. What is left takes 3 s at most.
    """
    scans, start, left = 0, 2, MAX_SEGMENTS
    if picture[:4] == b"RIFF" and picture[8:12] == b"WEBP":
        return 1
    if picture[:8] == b"\x89PNG\r\n\x1a\n":
        start = 8
        for _ in range(MAX_SEGMENTS + len(picture) // 1024):  # pixels are in chunks of 8 kB and more
            if picture[start + 4 : start + 8] in (b"", b"IEND"):
                return 1
            start += 12 + int.from_bytes(picture[start : start + 4], "big")
    while picture[:2] == b"\xff\xd8" and left >= 0:
        found = SEGMENT.search(picture, start)
        left -= 1 if scans else (len(picture) if found is None else found.end()) - start
        if left >= 0 and (found is None or (scans and found[0] == b"\xff\xd9")):
            return max(scans, 1)  # files may continue after the end of the image
        if found is not None:
            if found[0][1:] in ARITHMETIC:
                return 0
            scans += found[0] == b"\xff\xda"
            length = int.from_bytes(picture[found.end() : found.end() + 2], "big")
            start = found.end() + (0 if found[0] == b"\xff\xd9" else max(2, length))
    return 0
