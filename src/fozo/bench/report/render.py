"""Pages from the templates beside this file, and the one table of colours.

Every value is escaped, unless it is ``Markup``: charts and pictures.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined

from fozo.bench.plan import published
from fozo.bench.report.tables import full_name, number, tex
from fozo.io import atomic_write, disk_errors

Colour: TypeAlias = tuple[str, str]  # on white paper, and on a dark screen
# A method has the same colour in every chart of every page, and in the pictures of the docs: by its label in recipes.
COLOURS: Mapping[str, Colour] = {
    "NoAdapt": ("#6b6b6b", "#b0b0b0"), "Align": ("#0072b2", "#4fb0f0"), "FOZO": ("#d55e00", "#ff9248"),
    "FOZO (paper)": ("#b58900", "#e6c34a"), "FOA": ("#009e73", "#3fd3a6"), "ZOA": ("#7b3fa0", "#c79bea"),
    "LAME": ("#cc79a7", "#f0a3cb"), "T3A": ("#3d9bd6", "#9ad7ff"), "TENT": ("#d81b60", "#ff6f9f"),
    "EATA": ("#8c510a", "#d9a066"), "SAR": ("#7a9a01", "#b5d64a"), "DeYO": ("#00838f", "#5fe0e6"),
    "NEO": ("#3f51b5", "#93a1ff"), "GAIN": ("#a8323e", "#ff9b93"), "PEA": ("#5d7052", "#b7cfa9"),
    "CAZO": ("#b07aa1", "#dcb4d4"), "Equalise": ("#2f6f9f", "#8cc4ea"), "CLAHE": ("#a06a2c", "#e0b27a"),
    "Auto levels": ("#4f7f3f", "#a5d693"), "Histogram equalisation": ("#8f4f6f", "#d99ab8"),
    "Grey world": ("#55606a", "#c3ccd4"),
}  # fmt: skip
# For rows that are no method as published, before these take colours of methods that a page does not show.
SPARE: tuple[Colour, ...] = (("#000000", "#ffffff"), ("#8d6e63", "#bcaaa4"), ("#c0a000", "#ffe082"))
PALETTE: tuple[Colour, ...] = (*COLOURS.values(), *SPARE)
PASSES = re.compile(r"(, \d+ passes| \(FP=\d+\))$")


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


def write_page(out: Path, text: str) -> None:
    """Write a page or table whole; folders and commands in it may hold any bytes."""
    with disk_errors(out), atomic_write(out) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


def assign_colours(labels: Iterable[str]) -> dict[str, int]:
    """Give every label of a page an index into :data:`PALETTE`; its curves have the class ``c{index}``.

    A method has its own, also where its constants are tuned; so has a method at some number of passes, where no other
    label of the page is its. Others take what is free, the spare ones first, in the order in which they come, and share
    colours only where there are more labels than colours.
    """
    every, known = list(dict.fromkeys(labels)), list(COLOURS)
    listed = sorted(dict.fromkeys(map(published, every)), key=lambda label: label not in COLOURS)
    indices: dict[str, int] = {}
    for label in listed:
        method = PASSES.sub("", label)
        if method in COLOURS and known.index(method) not in indices.values():
            indices[label] = known.index(method)
    free = [index for index in reversed(range(len(PALETTE))) if index not in indices.values()] or [0]
    others = [label for label in listed if label not in indices]
    indices |= {label: free[i % len(free)] for i, label in enumerate(others)}
    return {label: indices[published(label)] for label in every}
