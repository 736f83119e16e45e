"""Measured figures in prose and hand-written tables: ``make pages`` puts them in from ``results/``.

A quote is a piece of a page's text with holes and what belongs into them, each in the format that its hole states. The
text must be on the page exactly once, in whatever lines. Change a sentence here and on its page; change a record, and
``make pages`` changes the page.
"""

import json
import lzma
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from fozo.errors import FozoError

RECORDS = Path(__file__).parent.parent / "results"
FIGURE = r"([-+]?\w(?:[\w.,]*\w)?)"
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")
TABLE = re.compile(r"((?:^(?!\|).*\n)*)((?:^\|.*(?:\n|\Z))+)", re.MULTILINE)


class Quote:
    """Text of a page with a hole ``{}`` or ``{:.1f}`` for each value: a number, or a word."""

    def __init__(self, template: str, *values: object) -> None:
        parts = [(text, spec) for text, _, spec, _ in Formatter().parse(template)]
        specs = [spec for _, spec in parts if spec is not None]
        self.template = template
        self.figures = [format(value, spec) for value, spec in zip(values, specs, strict=True)]
        holes = (_spaced(text) + ("" if spec is None else FIGURE) for text, spec in parts)
        self.pattern = re.compile("".join(holes))

    def put(self, name: str, page: str, figures: Sequence[str] = ()) -> str:
        """Put the figures (or others) into the page of this name."""
        found = list(self.pattern.finditer(page))
        if len(found) != 1:
            raise FozoError(
                f"{name} has {len(found)} places instead of one for the quote {self.template!r}; change the page, or "
                "the quote in benchmarks/quotes_*.py"
            )
        for hole, figure in reversed([*enumerate(figures or self.figures, start=1)]):
            page = page[: found[0].start(hole)] + figure + page[found[0].end(hole) :]
        return page


def _spaced(text: str) -> str:
    """A regular expression of the text, in which a line may end wherever there is a space."""
    return r"\s+".join(map(re.escape, re.split(r"\s+", text)))


def put_all(name: str, page: str, quotes: Iterable[Quote]) -> str:
    for quote in quotes:
        page = quote.put(name, page)
    return page


# Records


def record(name: str) -> str:
    path = RECORDS / name
    if not path.is_file():
        raise FozoError(f"there is no record results/{name}; results/README.md says which command writes it")
    data = path.read_bytes()
    return (lzma.decompress(data) if path.suffix == ".xz" else data).decode(errors="replace")


def words(name: str, pattern: str) -> list[str]:
    """The groups of a pattern that a record holds once; its spaces stand for line breaks too."""
    found = list(re.finditer(pattern.replace(" ", r"\s+"), record(name), re.DOTALL))
    if len(found) != 1:
        raise FozoError(f"results/{name} holds {pattern!r} {len(found)} times instead of once")
    return [*found[0].groups()]


def printed(name: str, pattern: str) -> list[float]:
    return [number(text) for text in words(name, pattern)]


def every(name: str, pattern: str) -> list[list[float]]:
    """Numbers in the groups of a pattern, for every line that has it."""
    found = list(re.finditer(pattern, record(name), re.MULTILINE))
    if not found:
        raise FozoError(f"results/{name} has no line with {pattern!r}")
    return [[number(text) for text in line.groups()] for line in found]


def number(text: str) -> float:
    """The first number of a text."""
    if not (found := NUMBER.search(text)):
        raise FozoError(f"there is no number in {text!r}")
    return float(found[0].replace(",", ""))


def lines(name: str) -> list[dict[str, Any]]:
    """JSON of the lines that have any, whatever stands before it."""
    return [json.loads(line[line.index("{") :]) for line in record(name).splitlines() if "{" in line]


def rows(name: str, title: str, *labels: str) -> list[dict[str, str]]:
    """Rows that begin with the labels, of tables with the title in their heads or in the text before them.

    An empty cell of the first two columns repeats what stands above it.
    """
    found = []
    for caption, table in TABLE.findall(record(name)):
        heads, _, *body = (_cells(line) for line in table.splitlines())
        if title in f"{caption}{table.splitlines()[0]}":
            above = ["", ""]
            for cells in body:
                above = [cell or old for cell, old in zip(cells, above, strict=False)]
                found.append(dict(zip(heads, [*above, *cells[2:]], strict=True)))
    found = [row for row in found if [*row.values()][: len(labels)] == [*labels]]
    if not found:
        raise FozoError(f"results/{name} has no row {' | '.join(labels)!r} in a table of {title!r}")
    return found


def row(name: str, title: str, *labels: str) -> dict[str, str]:
    found = rows(name, title, *labels)
    if len(found) > 1:
        raise FozoError(f"results/{name} has {len(found)} rows {' | '.join(labels)!r} in tables of {title!r}")
    return found[0]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


def ends(values: Iterable[float]) -> tuple[float, float]:
    """The least and the largest."""
    found = [*values]
    return min(found), max(found)


def figures(found: Iterable[Mapping[str, str]], head: str) -> list[float]:
    return [number(each[head]) for each in found]
