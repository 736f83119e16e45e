"""Pages from the templates beside this file. Every value is escaped, unless it is ``Markup``: charts and pictures."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fozo.bench.report.colours import PALETTE
from fozo.bench.report.tables import full_name, number, tex
from fozo.io import atomic_write, disk_errors


@lru_cache(maxsize=1)
def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("fozo.bench.report"),
        autoescape=lambda name: (name or "").endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
    )
    made.filters |= {"number": number, "full_name": full_name, "tex": tex}
    made.globals |= {"palette": PALETTE}
    return made


def render(template: str, **values: object) -> str:
    """Fill ``templates/TEMPLATE.j2``: a page that needs no network and no script, or tables as text."""
    return _environment().get_template(f"{template}.j2").render(values)


def draw(template: str, **values: object) -> Markup:
    return Markup(render(template, **values).strip())


def write_page(out: Path, text: str) -> None:
    """Write a page or table whole; folders and commands in it may hold any bytes."""
    with disk_errors(out), atomic_write(out) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))
