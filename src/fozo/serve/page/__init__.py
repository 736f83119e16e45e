"""The page as one document: its style and its script are inside, and nothing else may run or be fetched."""

import base64
import hashlib
from functools import cache
from importlib.resources import files

STYLE = ("page.css",)
SCRIPT = ("rows.js", "order.js", "stream.js")  # parts of one module


@cache
def _text(*names: str) -> str:
    return "\n".join(files(__name__).joinpath(name).read_text(encoding="utf-8") for name in names)


def document() -> str:
    """The HTML of the page: static files only, no data."""
    return _text("page.html").replace("/*STYLE*/", _text(*STYLE)).replace("/*SCRIPT*/", _text(*SCRIPT))


def policy() -> str:
    """A Content-Security-Policy that admits these very texts, a stream from the same server, and pictures inside it.

    Strings cannot become markup or code, even by mistake: a camera may have any name.
    """
    return (
        f"default-src 'none'; script-src {_hash(*SCRIPT)}; style-src {_hash(*STYLE)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _hash(*names: str) -> str:
    digest = hashlib.sha256(_text(*names).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
