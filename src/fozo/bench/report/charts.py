"""Charts: SVG for curves and HTML for words, so that both fit a phone, a wide screen and paper.

Curves are stretched to whatever width there is, with strokes that keep theirs; ticks, names and numbers are text of the
page, placed in percent. No library and no script is needed, and colours follow the page, light or dark.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from fozo.bench.report.render import render

SIDE = 1000  # both sides of a drawing, in its own units
POINTS = 240  # a curve is thinned to this many points: more cannot be seen
FEW_NAMES, SOME_NAMES = 4, 8  # that fit side by side below a chart on a phone, and on a wide screen


@dataclass(frozen=True)
class Series:
    """A named curve."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int  # its index into :data:`fozo.bench.report.render.PALETTE`
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
    """Draw curves in their order; those without points are left out, and with none there is no chart.

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
