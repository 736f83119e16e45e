"""Pages from the templates beside this file, the one table of colours, and charts.

Every value is escaped, unless it is ``Markup``: charts and pictures. Charts are SVG for curves and HTML for words, so
that both fit a phone, a wide screen and paper: curves are stretched to whatever width there is, with strokes that keep
theirs; ticks, names and numbers are text of the page, placed in percent. Colours follow the page, light or dark.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

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
SIDE = 1000  # both sides of a drawing, in its own units
POINTS = 240  # a curve is thinned to this many points: more cannot be seen
FEW_NAMES, SOME_NAMES = 4, 8  # that fit side by side below a chart on a phone, and on a wide screen


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


@dataclass(frozen=True)
class Series:
    """A named curve."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int  # its index into :data:`PALETTE`
    dashed: bool = False
    faint: bool = False  # drawn behind the others
    low: Sequence[float] = ()
    high: Sequence[float] = ()  # ends of the intervals, where it has some: a band

    @property
    def style(self) -> str:
        return f"c{self.colour}{' dashed' if self.dashed else ''}{' faint' if self.faint else ''}"


@dataclass(frozen=True)
class Span:
    """A stretch of the x axis with a name, such as a corruption."""

    left: float
    right: float
    name: str


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    span = max(high - low, 1e-9)
    step = 10 ** math.floor(math.log10(span / count))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 1.0
    return low - pad, high + pad


def _thin(values: Sequence[float]) -> list[float]:
    step = max(1, math.ceil(len(values) / POINTS))
    thinned = list(values[::step])
    return thinned if not values or (len(values) - 1) % step == 0 else [*thinned, values[-1]]


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    dots: bool = False,
    spans: Sequence[Span] = (),
    events: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draw curves in their order; those without points are left out. Without any curve, the chart is empty.

    ``dots`` marks points. ``spans`` are names on the x axis instead of numbers, ``events`` positions on it with the
    short words to mark them with.
    """
    series = [s for s in series if s.x]
    xs = [float(x) for s in series for x in s.x]
    if len(set(xs)) < 2 and not (dots and xs):
        return Markup()
    low, high = _range([float(y) for s in series for each in (s.y, s.low, s.high) for y in each])
    xs += [end for span in spans for end in (span.left, span.right)]
    left, right = min(xs), max(xs)
    width = right - left or 1.0

    def across(x: float) -> float:
        return (x - left) / width

    def down(y: float) -> float:
        return 1 - (y - low) / (high - low)

    def path(points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{SIDE * across(x):.0f},{SIDE * down(y):.0f}" for x, y in points)

    fits = " few" if len(spans) <= FEW_NAMES else " some" if len(spans) <= SOME_NAMES else " many"
    html = render(
        "lines.html", title=title, x_label=x_label, y_label=y_label, side=SIDE, fits=fits if spans else "", spans=spans,
        rows=ticks(low, high, 5), columns=() if spans else ticks(left, right, 6), events=events, dots=dots,
        series=[replace(s, x=_thin(s.x), y=_thin(s.y), low=_thin(s.low), high=_thin(s.high)) for s in series],
        across=across, down=down, path=path, short=_short, zip=zip,
    )  # fmt: skip
    return Markup(html.strip())
