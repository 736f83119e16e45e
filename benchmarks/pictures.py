"""Pictures of docs/results.md: SVG by hand, in the colours of the reader's light or dark screen, no library needed."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import fmean

from benchmarks.cells import Gain, by_method
from fozo.bench.plan import TUNED, published
from fozo.bench.report.render import COLOURS, ticks

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
.over {{ paint-order: stroke; stroke: var(--paper); stroke-width: 3px; }}
.curve {{ fill: none; stroke-width: 1.8; }} .cut {{ stroke-dasharray: 5 4; }} .thin {{ stroke-width: 1; }}
.band {{ fill: var(--line); fill-opacity: 0.3; }}
"""
SIDES = {1: "up", 0: "tie", -1: "down"}
INKS = {1: "var(--good)", 0: "var(--tie)", -1: "var(--bad)"}
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
    named = (("class", kind), ("style", style))
    given = "".join(f' {name}="{value}"' for name, value in named if value)
    return f'<text x="{x:.1f}" y="{y:.1f}"{given}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
        f'<rect width="100%" height="100%" style="fill: var(--paper)"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def name_style(label: str) -> str:
    """How the name of a row is set: ours bold, tuned rows softer than the published ones above them."""
    return "end bold" if label == "Align" else "end soft" if label.endswith(TUNED) else "end"


def margin(labels: Sequence[str]) -> float:
    """Pixels that names of rows take on the left."""
    return max(108, 16 + 6.5 * max(map(len, labels)))


def dot(x: float, y: float, label: str, ink: str) -> str:
    """The mark of a row: filled, and hollow where its constants are tuned."""
    fill = "var(--paper)" if label.endswith(TUNED) else ink
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" style="fill: {fill}; stroke: {ink}; stroke-width: 1.4"/>'


def gains_picture(title: str, tiers: Sequence[Mapping[str, Mapping[str, Gain]]], low: float, high: float) -> str:
    """Gains with whiskers: a row for each method, a column for each cell, one axis for all; what lies outside is cut.

    Tiers of columns stand below each other, each with the rows that it has. Blue is significantly above NoAdapt,
    red significantly below, gray neither.
    """
    parts: list[str] = []
    bottom = 0.0
    for columns in tiers:
        drawn, bottom = _tier(columns, low, high, bottom)
        parts += drawn
    words = "points of top-1 above NoAdapt, with 95 % intervals: blue above, red below, gray not significant"
    tuned = any(label.endswith(TUNED) for columns in tiers for column in columns.values() for label in column)
    parts.append(text(WIDTH / 2, bottom + 14, words + ("; hollow: tuned" if tuned else ""), "middle soft"))
    return svg(title, bottom + 25, parts)


def _tier(columns: Mapping[str, Mapping[str, Gain]], low: float, high: float, above: float) -> tuple[list[str], float]:
    """Columns of gains side by side, from a height on, and where they end."""
    every = dict.fromkeys(label for column in columns.values() for label in column)
    labels = by_method({k: fmean(column[k].value for column in columns.values() if k in column) for k in every})
    left, top, step = margin(labels), above + 26 + 14 * max(name.count(", ") + 1 for name in columns), 17
    wide = (WIDTH - left - 10) / len(columns)
    bottom = top + step * len(labels)
    parts = []
    methods = list(dict.fromkeys(map(published, labels)))
    for row, label in enumerate(labels):
        if methods.index(published(label)) % 2:
            parts.append(f'<rect x="0" y="{top + step * row}" width="{WIDTH}" height="{step}" class="band"/>')
        parts.append(text(left - 8, top + step * (row + 0.5) + 4, label, name_style(label)))
    for number, (name, column) in enumerate(columns.items()):
        start, end = left + number * wide, left + (number + 1) * wide
        across = Span(low, high, start + 10, end - 10)
        for row, words in enumerate(name.split(", ")):
            style = "middle bold" if row == 0 else "middle soft"
            parts.append(text((start + end) / 2, above + 18 + 14 * row, words, style))
        for tick in ticks(low, high, 6):
            parts.append(line(across(tick), top, across(tick), bottom, "zero" if tick == 0 else "grid"))
            parts.append(text(across(tick), bottom + 15, f"{tick:+g}" if tick else "0", "middle soft small"))
        for row, label in enumerate(labels):
            if label in column:
                gain, y = column[label], top + step * (row + 0.5)
                kind = SIDES[gain.side]
                hint = f"<title>{escape(label)}: {gain}</title>"
                parts.append(f'<g class="{kind}">{hint}{line(across(gain.low), y, across(gain.high), y, kind)}')
                parts.append(f"{dot(across(gain.value), y, label, INKS[gain.side])}</g>")
                if not low <= gain.value <= high:  # what the axis cannot show
                    side = ("end", -8) if gain.value > high else ("", 8)
                    parts.append(text(across(gain.value) + side[1], y + 4, f"{gain.value:+.0f}", f"small {side[0]}"))
    return parts, bottom + 19


def curves_picture(title: str, xs: Sequence[float], curves: Mapping[str, Sequence[float]], x_label: str) -> str:
    """Curves, a panel for each method on one scale: published constants solid, tuned ones dashed.

    The first method's curve stands thin and gray in the panels of the others.
    """
    methods = list(dict.fromkeys(map(published, curves)))
    values = [value for curve in curves.values() for value in curve]
    low, high = min(0.0, *values), max(0.0, *values)
    low, high = low - 0.06 * (high - low), high + 0.06 * (high - low)
    left, top, height, count = 34, 44, 84, 5
    wide, tall = (WIDTH - left) / count, height + 30
    parts = [text(12, 16, "points of top-1 above NoAdapt", "soft")]
    for number, method in enumerate(methods):
        row, column = divmod(number, count)
        start, end, head = left + column * wide + 6, left + (column + 1) * wide - 8, top + row * tall
        down, across = Span(low, high, head + height, head), Span(min(xs), max(xs), start, end)
        name = method.replace("equalisation", "eq.")
        parts.append(text(start, head - 5, name, "bold", f"fill: {colour(method)}"))
        for tick in ticks(low, high, 4):
            parts.append(line(start, down(tick), end, down(tick), "zero" if tick == 0 else "grid"))
            if column == 0:
                parts.append(text(left, down(tick) + 4, f"{tick:+g}" if tick else "0", "end soft small"))
        if number + count >= len(methods):  # nothing below it
            parts.append(text(start, head + height + 14, f"{min(xs):g}", "soft small"))
            parts.append(text(end, head + height + 14, f"{max(xs):g}", "end soft small"))
        for label, curve in curves.items():
            if published(label) in (method, methods[0]):
                mine = published(label) == method
                ink, kind = (colour(label), "curve") if mine else ("var(--tie)", "curve thin")
                points = " ".join(f"{across(x):.1f},{down(value):.1f}" for x, value in zip(xs, curve, strict=True))
                cut = " cut" if label.endswith(TUNED) else ""
                parts.append(
                    f'<polyline class="{kind}{cut}" style="stroke: {ink}" points="{points}">'
                    f"<title>{escape(label)}</title></polyline>"
                )
    foot = top + tall * -(-len(methods) // count) + 8
    dashed = "; dashed: tuned" if any(label.endswith(TUNED) for label in curves) else ""
    parts.append(text(WIDTH / 2, foot, f"{x_label}; thin and gray: {methods[0]}{dashed}", "middle soft"))
    return svg(title, foot + 12, parts)


def map_picture(title: str, columns: Sequence[str], panels: Mapping[str, Mapping[str, Sequence[Gain]]]) -> str:
    """Gains by corruption, a panel for each cell: a field for each, with the number; shaded where it is significant.

    A row may be shorter than the headings.
    """
    left, top, high = margin([label for rows in panels.values() for label in rows]), 74, 19
    wide = (WIDTH - left - 56) / len(columns)  # the last heading leans out
    parts = []
    for number, name in enumerate(columns):
        x, y = left + (number + 0.5) * wide, top - 8
        turn = f"rotate(-38 {x:.1f} {y})"
        parts.append(f'<text x="{x:.1f}" y="{y}" class="small" transform="{turn}">{escape(name)}</text>')
    for panel, rows in panels.items():
        parts.append(text(left, top + 13, panel, "bold"))
        for label, gains in rows.items():
            top += high
            parts.append(text(left - 8, top + 13, label, name_style(label)))
            for number, gain in enumerate(gains):
                x, kind = left + number * wide, "up" if gain.value > 0 else "down"
                fade = 0.08 + 0.62 * min(1.0, abs(gain.value) / DARKEST) if gain.side else 0.0
                shown, ink = f"{gain.value:+.0f}" if round(gain.value) else "0", "" if gain.side else " soft"
                parts.append(
                    f"<g><title>{escape(label)}, {escape(columns[number])}: {gain}</title>"
                    f'<rect x="{x:.1f}" y="{top:.1f}" width="{wide - 2:.1f}" height="{high - 2}" class="{kind}" '
                    f'style="fill-opacity: {fade:.2f}; stroke: var(--line)"/>'
                    f"{text(x + wide / 2 - 1, top + 12.5, shown, 'middle small' + ink)}</g>"
                )
        top += high + 4
    words = "points of top-1 above NoAdapt (blue) or below it (red); shaded: significant by the paired 95 % interval"
    return svg(title, top + 28, [*parts, text(left, top + 14, words, "soft")])
