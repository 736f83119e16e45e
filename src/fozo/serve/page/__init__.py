"""The page as one document: its style and its script are inside, and nothing else may run or be fetched."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files


@cache
def _part(name: str) -> str:
    return files(__name__).joinpath(name).read_text(encoding="utf-8")


def document() -> str:
    """Put the page together."""
    return _part("page.html").replace("/*STYLE*/", _part("page.css")).replace("/*SCRIPT*/", _part("page.js"))


def policy() -> str:
    """A Content-Security-Policy that admits these very texts, a stream from the same server, and pictures inside it.

    Strings cannot become markup or code, even by mistake: a camera may have any name.
    """
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {_hash('page.js')}",
            f"style-src {_hash('page.css')}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )


def _hash(name: str) -> str:
    digest = hashlib.sha256(_part(name).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
