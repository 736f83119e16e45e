"""Curves above each other over one axis, as an SVG by hand: for benchmarks that run for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from fozo.bench.report.charts import ticks

WIDTH, HIGH, LEFT, RIGHT, TOP = 760, 150, 60, 90, 34
COLOURS = ("#2563a8", "#c2571a")


@dataclass(frozen=True)
class Panel:
    """One quantity; the labels of its curves are written at their ends, and may be empty."""

    title: str
    curves: Mapping[str, Sequence[float]]
    from_zero: bool = False
    """Whether the axis begins at zero, so that what looks steep is."""


def picture(title: str, x_label: str, x: Sequence[float], panels: Sequence[Panel]) -> str:
    """Draw the panels, each with its own axis."""
    height = TOP + len(panels) * HIGH + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12" fill="#333"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LEFT}" y="20" font-size="15" font-weight="bold">{escape(title)}</text>'
    ]
    left, width = min(x), (max(x) - min(x)) or 1

    def across(value: float) -> float:
        return LEFT + (value - left) / width * (WIDTH - LEFT - RIGHT)

    for number, panel in enumerate(panels):
        top, bottom = TOP + number * HIGH + 24, TOP + (number + 1) * HIGH - 8
        values = [value for curve in panel.curves.values() for value in curve]
        pad = max(0.08 * (max(values) - min(values)), 0.02 * max(abs(value) for value in values), 1e-9)
        low, high = 0.0 if panel.from_zero else min(values) - pad, max(values) + pad
        parts.append(f'<text x="{LEFT}" y="{top - 7}" font-weight="bold">{escape(panel.title)}</text>')
        scale = (bottom - top) / (high - low)
        for tick in ticks(low, high, 4):
            y = bottom - (tick - low) * scale
            parts.append(
                f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
                f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>'
            )
        ends: list[float] = []
        for colour, (label, curve) in zip(COLOURS, panel.curves.items(), strict=False):
            points = [(across(a), bottom - (value - low) * scale) for a, value in zip(x, curve, strict=True)]
            line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            end = points[-1][1] + 4
            if ends and abs(end - ends[-1]) < 14:  # not over each other
                end = ends[-1] + (14 if end >= ends[-1] else -14)
            ends.append(end)
            parts.append(f'<text x="{WIDTH - RIGHT + 6}" y="{end:.1f}" fill="{colour}">{escape(label)}</text>')
    for tick in ticks(left, left + width, 6):
        parts.append(f'<text x="{across(tick):.1f}" y="{height - 20}" text-anchor="middle">{tick:,.0f}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{height - 5}" text-anchor="middle">{escape(x_label)}</text></svg>')
    return "\n".join(parts) + "\n"
