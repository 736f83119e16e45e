"""Pictures of docs/results.md: SVG by hand, in the colours of the reader's light or dark screen, no library needed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2
from statistics import fmean

from benchmarks.cells import Gain
from fozo.bench.report.charts import ticks
from fozo.bench.report.colours import COLOURS

WIDTH = 820
METHODS = (
    "Align", "FOZO", "NEO", "GAIN", "PEA", "LAME", "ZOA", "FOA", "TENT", "EATA", "DeYO", "SAR", "T3A", "CAZO",
    "NoAdapt",
)  # fmt: skip


def _inks(side: int) -> str:
    """Colours of the methods as the report has them, for light (0) or dark (1) screens."""
    return " ".join(f"--m{place}: {COLOURS[name][side]};" for place, name in enumerate(METHODS))


STYLE = f"""
:root {{ --paper: #ffffff; --ink: #1d2129; --soft: #5d6675; --line: #d9dde3;
  --good: #0072b2; --bad: #c0392b; --tie: #8b93a1; {_inks(0)} }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #14171c; --ink: #e7eaf0; --soft: #9aa4b2; --line: #323944;
    --good: #4fb0f0; --bad: #ff8a80; --tie: #7d8694; {_inks(1)} }} }}
text {{ font: 12px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; fill: var(--ink); }}
.soft {{ fill: var(--soft); }} .bold {{ font-weight: 600; }}
.end {{ text-anchor: end; }} .middle {{ text-anchor: middle; }}
.grid {{ stroke: var(--line); }} .zero {{ stroke: var(--soft); }} .small {{ font-size: 11px; }}
.up {{ stroke: var(--good); fill: var(--good); }} .down {{ stroke: var(--bad); fill: var(--bad); }}
.tie {{ stroke: var(--tie); fill: var(--tie); }}
.curve {{ fill: none; stroke-width: 1.8; }} .cut {{ stroke-dasharray: 5 4; }}
"""
SIDES = {1: "up", 0: "tie", -1: "down"}
DARKEST = 20.0
"""Points from which on a field of the map is as dark as any."""


def colour(label: str) -> str:
    """A method's colour, the same in every picture, whatever its options."""
    name = next((name for name in METHODS if re.split(r"[ ,-]", label)[0] == name), "NoAdapt")
    return f"var(--m{METHODS.index(name)})"


@dataclass(frozen=True)
class Span:
    """A range of values laid over a range of pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start)


def text(x: float, y: float, words: str, kind: str = "", style: str = "") -> str:
    """A line of text."""
    named = (("class", kind), ("style", style))
    given = "".join(f' {name}="{value}"' for name, value in named if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    """The whole picture."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f'<rect width="100%" height="100%" style="fill: var(--paper)"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def gains_picture(title: str, columns: Mapping[str, Mapping[str, Gain]], low: float, high: float) -> str:
    """Gains with whiskers: a row for each method, a column for each cell, one axis for all; what lies outside is cut.

    Blue is surely above NoAdapt, red surely below, gray a tie.
    """
    every = dict.fromkeys(label for column in columns.values() for label in column)
    mean = {label: fmean(column[label].value for column in columns.values() if label in column) for label in every}
    labels = sorted(every, key=lambda label: -mean[label])
    left, top, step = 108, 58, 19
    wide = (WIDTH - left - 10) / len(columns)
    bottom = top + step * len(labels)
    parts = [
        text(left - 8, top + step * (place + 0.5) + 4, label, "end bold" if label == "Align" else "end")
        for place, label in enumerate(labels)
    ]
    for number, (name, column) in enumerate(columns.items()):
        across = Span(low, high, left + number * wide + 10, left + (number + 1) * wide - 10)
        head = name.split(", ")
        parts += [
            text(
                left + (number + 0.5) * wide,
                18 + 14 * place,
                ", ".join(words),
                "middle bold" if place == 0 else "middle soft",
            )
            for place, words in enumerate((head[:1], head[1:2], head[2:]))
        ]
        for tick in ticks(low, high, 5 if len(columns) > 2 else 8):
            parts.append(line(across(tick), top, across(tick), bottom, "zero" if tick == 0 else "grid"))
            parts.append(text(across(tick), bottom + 15, f"{tick:+g}" if tick else "0", "middle soft small"))
        for place, label in enumerate(labels):
            if label in column:
                gain, y = column[label], top + step * (place + 0.5)
                kind = SIDES[gain.side]
                ends = across(gain.low), across(gain.high)
                hint = f"<title>{escape(label)}: {gain}</title>"
                parts.append(f'<g class="{kind}">{hint}{line(ends[0], y, ends[1], y, kind)}')
                parts.append(f'<circle cx="{across(gain.value):.1f}" cy="{y:.1f}" r="3.6"/></g>')
                if not low <= gain.value <= high:  # the number stands for what the axis cannot show
                    side = ("end", -8) if gain.value > high else ("", 8)
                    parts.append(text(across(gain.value) + side[1], y + 4, f"{gain.value:+.0f}", f"small {side[0]}"))
    parts.append(
        text(
            left + (WIDTH - left) / 2,
            bottom + 33,
            "points of top-1 above NoAdapt, with 95 % intervals: blue above, red below, gray a tie",
            "middle soft",
        )
    )
    return svg(title, bottom + 44, parts)


def curves_picture(
    title: str, panels: Mapping[str, tuple[Sequence[float], Mapping[str, Sequence[float]]]], x_label: str
) -> str:
    """Curves side by side on one scale; labels stand at the ends of the curves."""
    values = [value for _, curves in panels.values() for curve in curves.values() for value in curve]
    low, high = min(0.0, *values), max(values)
    pad = 0.08 * (high - low)
    left, top, height = 40, 56, 280
    wide = (WIDTH - left) / len(panels)
    down = Span(low - pad, high + pad, top + height, top)
    parts = [text(12, 16, "points of top-1 above NoAdapt", "soft")]
    for number, (name, (xs, curves)) in enumerate(panels.items()):
        start, end = left + number * wide, left + (number + 1) * wide - 86
        across = Span(min(xs), max(xs), start + 8, end)
        parts += headings(start + 8, name)
        for tick in ticks(low - pad, high + pad):
            parts.append(line(start + 8, down(tick), end, down(tick), "zero" if tick == 0 else "grid"))
            if number == 0:
                parts.append(text(left, down(tick) + 4, f"{tick:+g}" if tick else "0", "end soft small"))
        parts += [text(across(x), top + height + 16, f"{x:g}", "middle soft small") for x in xs]
        parts.append(text((start + end) / 2, top + height + 34, x_label, "middle soft"))
        places = spread([down(curve[-1]) for curve in curves.values()], 13, top + 4, top + height)
        for (label, curve), y in zip(curves.items(), places, strict=True):
            points = " ".join(f"{across(x):.1f},{down(value):.1f}" for x, value in zip(xs, curve, strict=True))
            cut = " cut" if "tuned" in label else ""
            parts.append(f'<polyline class="curve{cut}" style="stroke: {colour(label)}" points="{points}"/>')
            parts.append(line(end, down(curve[-1]), end + 8, y, "grid"))
            parts.append(text(end + 10, y + 4, label, "small", f"fill: {colour(label)}"))
    return svg(title, top + height + 44, parts)


def headings(x: float, name: str) -> list[str]:
    """A panel's name in two lines: model and scenario, and the rest."""
    words = name.split(", ")
    return [text(x, 32, ", ".join(words[:2]), "bold"), text(x, 46, ", ".join(words[2:]), "soft small")]


def spread(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """Move labels apart until no two are nearer than ``least``, keeping their order."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [min(max(places[i], low), high) for i in order]
    for _ in range(200):
        for k in range(1, len(moved)):
            near = least - (moved[k] - moved[k - 1])
            if near > 0:
                moved[k - 1] -= near / 2
                moved[k] += near / 2
    shift = max(0.0, low - moved[0]) - max(0.0, moved[-1] - high)
    found = [0.0] * len(places)
    for k, i in enumerate(order):
        found[i] = moved[k] + shift
    return found


def points_picture(title: str, panels: Mapping[str, Mapping[str, tuple[float, Gain]]], x_label: str) -> str:
    """Gains against a cost on a doubling scale, with whiskers and names."""
    every = [point for panel in panels.values() for point in panel.values()]
    low = min(0.0, *(gain.low for _, gain in every)) - 0.5
    high = max(0.0, *(gain.high for _, gain in every)) + 0.5
    most = max(cost for cost, _ in every)
    left, top, height = 40, 56, 300
    wide = (WIDTH - left) / len(panels)
    down = Span(low, high, top + height, top)
    parts = [text(12, 16, "points of top-1 above NoAdapt", "soft")]
    marks = [mark for mark in (1, 2, 3, 4, 6, 8, 16, 28, 41) if mark <= most]
    for number, (name, panel) in enumerate(panels.items()):
        start, end = left + number * wide, left + (number + 1) * wide - 84
        across = Span(0, max(1.0, log2(most)), start + 26, end)
        parts += headings(start + 8, name)
        for tick in ticks(low, high):
            parts.append(line(start + 8, down(tick), end + 76, down(tick), "zero" if tick == 0 else "grid"))
            if number == 0:
                parts.append(text(left, down(tick) + 4, f"{tick:+g}" if tick else "0", "end soft small"))
        parts += [text(across(log2(mark)), top + height + 16, str(mark), "middle soft small") for mark in marks]
        parts.append(text((start + end) / 2, top + height + 34, x_label, "middle soft"))
        columns: dict[float, list[str]] = {}
        for label, (cost, _) in panel.items():
            columns.setdefault(round(across(log2(max(cost, 1)))), []).append(label)
        for x, labels in columns.items():
            places = spread([down(panel[label][1].value) for label in labels], 13, top, top + height)
            for place, (label, y) in enumerate(zip(labels, places, strict=True)):
                gain, at = panel[label][1], x + 3 * (place % 3 - 1)
                ink = colour(label)
                parts.append(
                    f'<g style="stroke: {ink}"><title>{escape(label)}: {gain}</title>'
                    f"{line(at, down(gain.low), at, down(gain.high), '')}"
                    f'<circle cx="{at:.1f}" cy="{down(gain.value):.1f}" r="3.4" style="fill: {ink}"/></g>'
                )
                parts.append(text(x + 9, y + 4, label, "small", f"fill: {ink}"))
    return svg(title, top + height + 44, parts)


def map_picture(title: str, columns: Sequence[str], panels: Mapping[str, Mapping[str, Sequence[Gain]]]) -> str:
    """Gains by corruption, a panel for each cell: a field for each, with the number; not shaded where it is a tie.

    A row may be shorter than the headings.
    """
    left, top, high = 108, 74, 22
    wide = (WIDTH - left - 56) / len(columns)  # the last heading leans out
    parts = []
    for number, name in enumerate(columns):
        x, y = left + (number + 0.5) * wide, top - 8
        turn = f"rotate(-38 {x:.1f} {y})"
        parts.append(f'<text x="{x:.1f}" y="{y}" class="small" transform="{turn}">{escape(name)}</text>')
    for panel, rows in panels.items():
        parts.append(text(left, top + 15, panel, "bold"))
        for label, gains in rows.items():
            top += high
            parts.append(text(left - 8, top + 15, label, "end bold" if label == "Align" else "end"))
            for number, gain in enumerate(gains):
                x, kind = left + number * wide, "up" if gain.value > 0 else "down"
                fade = 0.08 + 0.62 * min(1.0, abs(gain.value) / DARKEST) if gain.side else 0.0
                shown, ink = f"{gain.value:+.0f}" if round(gain.value) else "0", "" if gain.side else " soft"
                parts.append(
                    f"<g><title>{escape(label)}, {escape(columns[number])}: {gain}</title>"
                    f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide - 2:.1f}" height="{high - 2}" class="{kind}" '
                    f'style="fill-opacity: {fade:.2f}; stroke: var(--line)"/>'
                    f"{text(x + wide / 2 - 1, top + 14.5, shown, 'middle small' + ink)}</g>"
                )
        top += high + 4
    words = "points of top-1 above NoAdapt (blue) or below it (red); not shaded: a tie by the paired 95 % interval"
    return svg(title, top + 28, [*parts, text(left, top + 14, words, "soft")])
