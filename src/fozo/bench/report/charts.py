"""Charts: SVG for curves and HTML for words, so that both fit a phone, a wide screen and paper.

Curves are stretched to whatever width there is, with strokes that keep theirs; ticks, names and numbers are text of the
page, placed in percent. No library and no script is needed, and colours follow the page, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from fozo.bench.gains import signed

SIDE = 1000  # both sides of a drawing, in its own units
POINTS = 240  # a curve is thinned to this many points: more cannot be seen
LONG = 12  # rows above which a forest stands beside two other charts
FEW_NAMES, SOME_NAMES = 4, 8
"""Names that fit side by side below a chart on a phone, and on a wide screen; more are turned upright."""


@dataclass(frozen=True)
class Series:
    """A named curve."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int  # its index into :data:`fozo.bench.report.colours.PALETTE`
    dashed: bool = False
    faint: bool = False  # drawn behind the others
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    """Ends of the intervals, where it has some: a band, or whiskers where the points are marked."""

    @property
    def style(self) -> str:
        return f"c{self.colour}{' dashed' if self.dashed else ''}{' faint' if self.faint else ''}"


@dataclass(frozen=True)
class Span:
    """A stretch of the x axis with a name, such as a corruption."""

    left: float
    right: float
    name: str


@dataclass(frozen=True)
class Row:
    """A row of :func:`forest`: a difference, its interval, and what it is the mean of."""

    label: str
    value: float
    low: float | None
    high: float | None
    marks: Sequence[float]
    colour: int
    square: bool = False  # whether its point is a square: the second of two rows of one colour


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


def _decades(low: float, high: float) -> list[float]:
    found = [
        m * 10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)
    ]
    inside = [value for value in found if low <= value <= high]
    return inside if len(inside) <= 6 else [value for value in inside if f"{value:e}"[0] == "1"]


def legend(series: Sequence[Series]) -> str:
    keys = "".join(f'<span class="key"><i class="swatch {s.style}"></i>{escape(s.label)}</span>' for s in series)
    return f'<div class="legend">{keys}</div>'


def line_chart(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    dots: bool = False,
    lines: bool = True,
    spans: Sequence[Span] = (),
    events: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draw curves in their order; those without points are left out, and with none there is no chart.

    ``log`` makes the x axis logarithmic, ``dots`` marks points, ``lines`` joins them. ``spans`` are names on the x axis
    instead of numbers, ``events`` positions on it with the short words to mark them with.
    """
    series = [s for s in series if s.x]
    xs = [float(x) for s in series for x in s.x]
    if len(set(xs)) < 2 and not (dots and xs):
        return Markup()
    low, high = _range([float(y) for s in series for each in (s.y, s.low, s.high) for y in each])
    xs += [end for span in spans for end in (span.left, span.right)]
    left, right = (math.log10(min(xs)), math.log10(max(xs))) if log else (min(xs), max(xs))
    width = right - left or 1.0

    def across(x: float) -> float:
        return ((math.log10(x) if log else x) - left) / width

    def down(y: float) -> float:
        return 1 - (y - low) / (high - low)

    def path(points: Sequence[tuple[float, float]]) -> str:
        return " ".join(f"{SIDE * across(x):.0f},{SIDE * down(y):.0f}" for x, y in points)

    shapes, words = [], []
    for index, span in enumerate(spans):
        if index % 2:
            at, wide = SIDE * across(span.left), SIDE * (across(span.right) - across(span.left))
            shapes.append(f'<rect class="span" x="{at:.0f}" y="0" width="{wide:.0f}" height="{SIDE}"/>')
        middle = 50 * (across(span.left) + across(span.right))
        share = 100 * (across(span.right) - across(span.left))
        words.append(f'<span class="name" style="left:{middle:.2f}%;--w:{share:.2f}%">{escape(span.name)}</span>')
    for value in ticks(low, high, 5):
        zero = " zero" if value == 0 else ""
        shapes.append(f'<path class="grid{zero}" d="M0 {SIDE * down(value):.0f}H{SIDE}"/>')
        words.append(f'<span class="y" style="top:{100 * down(value):.2f}%">{_short(value)}</span>')
    if not spans:
        marks = _decades(min(xs), max(xs)) if log else ticks(left, right, 6)
        words += [f'<span class="x" style="left:{100 * across(at):.2f}%">{_short(at)}</span>' for at in marks]
    for at, word in events:
        shapes.append(f'<path class="event" d="M{SIDE * across(at):.0f} 0V{SIDE}"/>')
        words.append(f'<span class="event" style="left:{100 * across(at):.2f}%">{escape(word)}</span>')
    for s in series:
        x, y, bottom, top = (_thin(each) for each in (s.x, s.y, s.low, s.high))
        if top and lines:
            around = [*zip(x, top, strict=True), *reversed(list(zip(x, bottom, strict=True)))]
            shapes.append(f'<polygon class="band {s.style}" points="{path(around)}"/>')
        elif top:
            shapes += [
                f'<polyline class="whisker {s.style}" points="{path(((at, a), (at, b)))}"/>'
                for at, a, b in zip(x, bottom, top, strict=True)
            ]
        if lines:
            curve = path(list(zip(x, y, strict=True)))
            shapes.append(f'<polyline class="curve {s.style}" points="{curve}"/>')
        if dots:  # not of the drawing, which is stretched
            words += [
                f'<i class="{s.style}" style="left:{100 * across(a):.2f}%;top:{100 * down(b):.2f}%"></i>'
                for a, b in zip(x, y, strict=True)
            ]
    fits = " few" if len(spans) <= FEW_NAMES else " some" if len(spans) <= SOME_NAMES else " many"
    turned = fits if spans else ""
    return Markup(
        f'<figure><figcaption>{escape(title)}</figcaption><div class="unit">{escape(y_label)}</div>'
        f'<div class="plot{turned}"><svg viewBox="0 0 {SIDE} {SIDE}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>{"".join(shapes)}</svg>{"".join(words)}</div>'
        f'<div class="unit below">{escape(x_label)}</div>{legend(series) if len(series) > 1 else ""}</figure>'
    )


def forest(title: str, rows: Sequence[Row], note: str) -> Markup:
    """Draw differences with their intervals, one row each, with zero where nothing is gained; numbers beside them.

    A significant difference (its interval excludes zero) is filled, another hollow and marked ``n.s.``. The axis holds
    all intervals and most of the marks; those beyond it are drawn at its ends.
    """
    values = [x for row in rows for x in (row.value, row.low, row.high) if x is not None]
    if not values:
        return Markup()
    marks = sorted(x for row in rows for x in row.marks)
    most = marks[len(marks) // 20 : len(marks) - len(marks) // 20]
    low, high = _range([0.0, *values, *most])
    if marks and (marks[0] < low or marks[-1] > high):
        note += "; marks at the ends of the axis: there or beyond"

    def across(x: float) -> str:
        return f"{100 * (min(max(x, low), high) - low) / (high - low):.2f}%"

    scale = "".join(
        f'<span class="x" style="left:{across(x)}">{f"{x:+g}" if x else "0"}</span>' for x in ticks(low, high, 5)
    )
    drawn = ""
    for row in rows:
        parts = [f'<i class="mark" style="left:{across(x)}"></i>' for x in row.marks]
        text, significant = signed(row.value), False
        if row.low is not None and row.high is not None:
            significant = not row.low <= 0 <= row.high
            wide = f"{100 * (row.high - row.low) / (high - low):.2f}%"
            parts.append(f'<i class="range" style="left:{across(row.low)};width:{wide}"></i>')
            text += f" <small>({signed(row.low)} to {signed(row.high)}){'' if significant else ' n.s.'}</small>"
        kind = f"point{'' if significant else ' hollow'}{' square' if row.square else ''}"
        parts.append(f'<i class="{kind}" style="left:{across(row.value)}"></i>')
        drawn += (
            f'<div class="row c{row.colour}"><b>{escape(row.label)}</b><div class="track" style="--zero:{across(0)}">'
            f'{"".join(parts)}</div><span class="value">{text}</span></div>'
        )
    long = " long" if len(rows) > LONG else ""
    return Markup(
        f'<figure class="forest{long}"><figcaption>{escape(title)}</figcaption>{drawn}'
        f'<div class="row scale"><b></b><div class="track" style="--zero:{across(0)}">{scale}</div>'
        f'<span class="value"></span></div><div class="unit below">{escape(note)}</div></figure>'
    )
