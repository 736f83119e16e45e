"""Access: the bearer token, the host names the server answers to, no web page of another site; and a log of it."""

from __future__ import annotations

import hmac
import ipaddress
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("fozo.access")
CLOSE = {"Connection": "close"}  # nothing more is read from a client that was refused
PUBLIC = ("/v2/health/live", "/v2/health/ready", "/")
"""Paths that need no token: health checks, and the page, which contains no data and asks for the token itself."""


class AccessPolicy:
    """Passes on requests that show the token, where there is one, and that no foreign web page sends.

    A browser sends requests on behalf of any page, also to a server on its own machine. It names the page's site in
    ``Origin``; where it does not, as for pictures, ``Sec-Fetch-Site`` says that it is another one. After DNS
    rebinding that site's name resolves to this server, so ``Host`` is checked as well: addresses (which cannot be
    rebound), ``localhost``, and ``hosts`` are allowed; ``*`` allows all. Only HTTP/1.0 may leave it out.

    With ``log`` it logs all requests: time, client, method, path without the query, which may hold secrets, status (0:
    no response), milliseconds.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Iterable[str] = (), *, log: bool = False) -> None:
        self.app, self.token, self.log = app, None if token is None else token.encode(), log
        self.hosts = {"localhost", *(host.lower() for host in hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope["path"], Headers(scope=scope)) if scope["type"] == "http" else None
        app, began, code = self.app if refusal is None else refusal, time.time(), 0
        if not self.log or scope["type"] != "http":
            return await app(scope, receive, send)

        async def note(message: Message) -> None:
            nonlocal code
            code = message.get("status", code)
            await send(message)

        try:
            await app(scope, receive, note)
        finally:
            what = (scope.get("client") or "-")[0], scope["method"], quote(scope["path"][:200]), code
            when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(began))
            LOG.info("%s %s %s %s %d %.0f ms", when, *what, 1000 * (time.time() - began), extra={"kind": code})

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
