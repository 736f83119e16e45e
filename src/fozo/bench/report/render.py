"""Pages from the templates beside this file, the palette, and charts.

Every value is escaped, unless it is ``Markup``: charts and pictures. Charts are SVG for curves and HTML for words, so
that both fit a phone, a wide screen and paper: curves are stretched to whatever width there is, with strokes that keep
theirs; ticks, names and numbers are text of the page, placed in percent. Colours follow the page, light or dark.
"""

import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fozo.bench.plan import BASE_METHOD
from fozo.bench.report.tables import full_name, number, tex
from fozo.io import atomic_write, disk_errors
from fozo.methods.registry import list_methods, method_class

Colour: TypeAlias = tuple[str, str]
"""On white paper, and on a dark screen."""
PALETTE: tuple[Colour, ...] = tuple(
    re.findall(
        r"(#\w+) (#\w+)",
        """
    #6b6b6b #b0b0b0   #0072b2 #5ae1ff   #d55e00 #ffc300   #5a0f69 #a56996
    #004b00 #b4ff87   #0000ff #964bff   #7878ff #c3ffff   #1e0fa5 #4b87d2
    #5a9669 #f0ff00   #871e4b #f06978   #4b4b87 #a5c387   #7887b4 #d2ffc3
    #004bc3 #4fb0f0   #a54b2d #c38700   #5a5ae1 #a578ff   #69003c #c387a5
    #a54b96 #ffb4e1   #e15a96 #f02dc3   #1e962d #00f069   #96000f #f0004b
    #960f78 #ff78f0   #5a78d2 #69f0a5   #0000d2 #00a578   #e15a5a #ff9248
        """,
    )
)
"""Grey for the plain model, and colours chosen as far from each other as possible also to eyes that do not tell red
from green, each with a contrast of 3 or more to the page."""
SIDE = 1000  # both sides of a drawing, in its own units
POINTS = 240  # a curve is thinned to this many points: more cannot be seen
FEW_NAMES = 4  # that fit side by side below a chart on a phone
SOME_NAMES = 8  # likewise on a wide screen


@lru_cache(maxsize=1)
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("fozo.bench.report"),
        autoescape=lambda name: (name or "").endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "full_name": full_name, "tex": tex}
    environment.globals |= {"palette": PALETTE}
    return environment


def render(template: str, **values: object) -> str:
    """Fill ``templates/TEMPLATE.j2``: a page that needs no network and no script, or tables as text."""
    return _environment().get_template(f"{template}.j2").render(values)


def write_page(out: Path, text: str) -> None:
    """Write a page or table whole; folders and commands in it may hold any bytes."""
    with disk_errors(out), atomic_write(out) as stream:
        stream.write(text.encode("utf-8", "backslashreplace"))


def _method_colours() -> dict[str, int]:
    """An index into the palette for every registered method: where the hash of its name points, or the next free one.

    Those of other packages come last, so that they change no colour of fozo's own.
    """
    indices = {BASE_METHOD: 0}
    foreign = {name: not method_class(name).__module__.startswith("fozo.") for name in list_methods()}
    for name in sorted(foreign.keys() - {BASE_METHOD}, key=lambda name: (foreign[name], name)):
        start = zlib.crc32(name.encode())
        probes = ((start + step) % len(PALETTE) for step in range(len(PALETTE)))
        index = next((probe for probe in probes if probe not in indices.values()), None)
        if index is not None:
            indices[name] = index
    return indices


def assign_colours(rows: Mapping[str, str]) -> dict[str, int]:
    """Give every label of a page an index into :data:`PALETTE`, from the name of its method.

    Its curves have the class ``c{index}``. A method has one colour on every page; where several labels are of one
    method it is the shortest's, and the others take what is free. Labels share colours only where there are more of
    them than colours.
    """
    known = _method_colours()
    indices: dict[str, int] = {}
    labels = sorted(rows, key=lambda label: (len(label), label))
    for label in labels:
        colour = known.get(rows[label])
        if colour is not None and colour not in indices.values():
            indices[label] = colour
    free = [index for index in range(len(PALETTE)) if index not in indices.values()] or [0]
    others = [label for label in labels if label not in indices]
    return indices | {label: free[place % len(free)] for place, label in enumerate(others)}


@dataclass(frozen=True)
class Series:
    """A named curve."""

    label: str
    """Its name in the legend."""
    x: Sequence[float]
    """Where its points are."""
    y: Sequence[float]
    """How high they are."""
    colour: int
    """Its index into :data:`PALETTE`."""
    dashed: bool = False
    """Whether its line is."""
    faint: bool = False
    """Whether it is drawn behind the others."""
    low: Sequence[float] = ()
    """Lower ends of the intervals, where it has some: a band."""
    high: Sequence[float] = ()
    """Upper ends of the intervals."""

    @property
    def style(self) -> str:
        return f"c{self.colour}{' dashed' if self.dashed else ''}{' faint' if self.faint else ''}"


@dataclass(frozen=True)
class Span:
    """A stretch of the x axis with a name, such as a corruption."""

    left: float
    """Where it begins."""
    right: float
    """Where it ends."""
    name: str
    """What is written below it."""


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


def _thin(values: Sequence[float]) -> list[float]:
    step = max(1, math.ceil(len(values) / POINTS))
    return [value for place, value in enumerate(values) if place % step == 0 or place == len(values) - 1]


def _fits(names: int) -> str:
    """The class of a chart with so many names below it."""
    if not names:
        return ""
    if names <= FEW_NAMES:
        return " few"
    return " some" if names <= SOME_NAMES else " many"


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
    ys = [float(y) for s in series for y in (*s.y, *s.low, *s.high)]
    margin = 0.06 * (max(ys) - min(ys)) or 1.0
    low = min(ys) - margin
    high = max(ys) + margin
    xs += [end for span in spans for end in (span.left, span.right)]
    left = min(xs)
    right = max(xs)
    width = right - left or 1.0

    def across(x: float) -> float:
        return (x - left) / width

    def down(y: float) -> float:
        return 1 - (y - low) / (high - low)

    def path(points: Iterable[tuple[float, float]]) -> str:
        return " ".join(f"{SIDE * across(x):.0f},{SIDE * down(y):.0f}" for x, y in points)

    html = render(
        "lines.html", title=title, x_label=x_label, y_label=y_label, side=SIDE, fits=_fits(len(spans)), spans=spans,
        rows=ticks(low, high, 5), columns=() if spans else ticks(left, right, 6), events=events, dots=dots,
        series=[replace(s, x=_thin(s.x), y=_thin(s.y), low=_thin(s.low), high=_thin(s.high)) for s in series],
        across=across, down=down, path=path, short=_short, zip=zip,
    )  # fmt: skip
    return Markup(html.strip())
