"""Who may ask: the bearer token, and no web page of another site."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

CLOSE = {"Connection": "close"}
"""Nothing more is read from who was refused."""
OPEN = ("/v2/health/live", "/v2/health/ready", "/")
"""What is told to everybody: a cluster asks, and nothing is given away. The page has no data in it: it asks for the
token, and then for those."""


class Guard:
    """Lets requests pass that show the token, where there is one, and that no foreign web page sends.

    A browser sends requests for any page that it shows, also to a server on its own machine; it says for whom in
    ``Origin``. Who knows only passwords may show the token as one, with any user name; it is not offered, because a
    browser would then ask for a password where the page asks for the token.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "origin" in headers and _host(headers["origin"]) != headers.get("host"):
            refusal = JSONResponse({"error": "requests of other sites' pages are not taken"}, 403, CLOSE)
            await refusal(scope, receive, send)
        elif self.token is not None and scope["path"] not in OPEN and not self._shown(headers.get("authorization", "")):
            challenge = {"WWW-Authenticate": 'Bearer realm="fozo"', **CLOSE}
            refusal = JSONResponse(
                {"error": "this server asks for a token; send Authorization: Bearer"}, 401, challenge
            )
            await refusal(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _shown(self, authorization: str) -> bool:
        """Whether a header shows the token; how long that takes says nothing about it."""
        assert self.token is not None
        scheme, _, text = authorization.partition(" ")
        shown = text.strip().encode("utf-8", "replace")
        if scheme.lower() == "basic":
            try:
                shown = base64.b64decode(shown, validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(shown, self.token)


def _host(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
