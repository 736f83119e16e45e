"""Who may send requests, and how they are refused."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
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
        self.code = code
        self.retry = retry and code != 413
