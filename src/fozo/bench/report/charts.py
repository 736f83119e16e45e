"""Charts as inline SVG, by hand: they take the page's colours, light or dark, and need no library to be seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 14, 46
POINTS = 240
"""A curve is thinned to so many points: more cannot be seen."""


@dataclass(frozen=True)
class Series:
    """A named curve or set of bars; ``dashed`` is the paper's."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int
    dashed: bool = False


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Choose round numbers that cover a range."""
    span = max(high - low, 1e-9)
    step = 10 ** math.floor(math.log10(span / count))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= count)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _short(value: float) -> str:
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{value:g}"


def _frame(x_ticks: list[tuple[float, str]], y_ticks: list[tuple[float, str]], x_label: str, y_label: str) -> list[str]:
    bottom = HEIGHT - BOTTOM
    parts = [
        f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
        for y, text in y_ticks
    ]
    parts += [f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text)}</text>' for x, text in x_ticks]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    turn = f'transform="rotate(-90 14 {(TOP + bottom) / 2})"'
    parts.append(
        f'<text class="axis" x="14" y="{(TOP + bottom) / 2}" text-anchor="middle" {turn}>{escape(y_label)}</text>'
    )
    return parts


def _svg(title: str, parts: Sequence[str], series: Sequence[Series]) -> str:
    keys = "".join(
        f'<span class="key"><i class="swatch c{s.colour}{" dashed" if s.dashed else ""}"></i>{escape(s.label)}</span>'
        for s in series
    )
    return (
        f'<figure><div class="scroll"><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg></div>"
        f'<figcaption>{escape(title)}<div class="legend">{keys}</div></figcaption></figure>'
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    pad = 0.06 * (high - low) or 1.0
    return low - pad, high + pad


def _thin(values: Sequence[float]) -> list[float]:
    step = max(1, math.ceil(len(values) / POINTS))
    kept = list(values[::step])
    return kept if (len(values) - 1) % step == 0 else [*kept, values[-1]]


def line_chart(
    title: str, series: Sequence[Series], x_label: str, y_label: str, *, log: bool = False, dots: bool = False
) -> str:
    """Draw curves; with ``log`` the x axis is logarithmic, with ``dots`` the points are marked."""
    xs = [float(x) for s in series for x in s.x]
    ys = [float(y) for s in series for y in s.y]
    low, high = _range(ys)
    left, right = (math.log10(min(xs)), math.log10(max(xs))) if log else (min(xs), max(xs))
    width = right - left or 1.0

    def across(x: float) -> float:
        return LEFT + ((math.log10(x) if log else x) - left) / width * (WIDTH - LEFT - RIGHT)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    marks = _decades(min(xs), max(xs)) if log else ticks(left, right, 8)
    parts = _frame(
        [(across(x), _short(x)) for x in marks], [(down(y), f"{y:g}") for y in ticks(low, high)], x_label, y_label
    )
    for s in series:
        pairs = list(zip(_thin(s.x), _thin(s.y), strict=True))
        points = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in pairs)
        parts.append(f'<polyline class="curve c{s.colour}{" dashed" if s.dashed else ""}" points="{points}"/>')
        if dots:
            parts += [
                f'<circle class="dot c{s.colour}" cx="{across(x):.1f}" cy="{down(y):.1f}" r="3"/>' for x, y in pairs
            ]
    return _svg(title, parts, series)


def _decades(low: float, high: float) -> list[float]:
    found = [
        m * 10.0**k for k in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1) for m in (1, 2, 5)
    ]
    inside = [value for value in found if low <= value <= high]
    return inside if len(inside) <= 9 else [value for value in inside if f"{value:e}"[0] == "1"]


def bar_chart(title: str, names: Sequence[str], series: Sequence[Series], y_label: str) -> str:
    """Draw one cluster of bars for each name; all bars start at zero."""
    high = max(1.0, *(float(y) for s in series for y in s.y))
    cluster = (WIDTH - LEFT - RIGHT) / len(names)
    thick = 0.82 * cluster / len(series)

    def down(y: float) -> float:
        return HEIGHT - BOTTOM - y / high * (HEIGHT - TOP - BOTTOM)

    centres = [(LEFT + (i + 0.5) * cluster, name) for i, name in enumerate(names)]
    parts = _frame(centres, [(down(y), f"{y:g}") for y in ticks(0, high)], "", y_label)
    for place, s in enumerate(series):
        for i, y in enumerate(s.y):
            x = LEFT + i * cluster + 0.09 * cluster + place * thick
            hint = f"{escape(s.label)}, {escape(names[i])}: {y:.1f}"
            parts.append(
                f'<rect class="bar c{s.colour}" x="{x:.1f}" y="{down(y):.1f}" width="{max(0.8, thick - 0.6):.1f}" '
                f'height="{HEIGHT - BOTTOM - down(y):.1f}"><title>{hint}</title></rect>'
            )
    return _svg(title, parts, series)
