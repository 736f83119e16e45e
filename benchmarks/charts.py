"""Charts as SVG, without a library, for light and dark screens: gains with whiskers, gains by corruption."""

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil
from typing import NamedTuple

from fozo.bench.gains import signed

WIDTH = 820
STYLE = """
:root { --paper: #fff; --ink: #1d2129; --soft: #5d6675; --line: #d9dde3;
  --up: #0072b2; --down: #c0392b; --tie: #8b93a1; --four: #7a5195; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171c; --ink: #e7eaf0; --soft: #9aa4b2; --line: #323944;
  --up: #4fb0f0; --down: #ff8a80; --tie: #7d8694; --four: #c39bd3; } }
rect.p { fill: var(--paper); } .z { stroke: var(--soft); } .g { stroke: var(--line); }
text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.s { fill: var(--soft); font-size: 11px; } .b { font-weight: 600; } .e { text-anchor: end; } .m { text-anchor: middle; }
.up { stroke: var(--up); fill: var(--up); } .down { stroke: var(--down); fill: var(--down); }
.tie { stroke: var(--tie); fill: var(--tie); } .four { stroke: var(--four); fill: var(--four); } .t { font-size: 11px; }
.h { fill: var(--paper); } .r { stroke: none; }
polyline { fill: none; stroke-width: 1.8; }
"""
SIDES = {1: "up", 0: "tie", -1: "down"}
DARKEST = 20.0
"""Points from which on a field of the map is as dark as any."""


class Gain(NamedTuple):
    """A difference in points, and the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, row: Mapping[str, str], value: str = "gain", low: str = "low", high: str = "high") -> "Gain":
        """Read it from a record that has both ends."""
        return cls(float(row[value]), float(row[low]), float(row[high]))

    @classmethod
    def around(cls, row: Mapping[str, str], value: str = "gain", half: str = "half") -> "Gain":
        """Read it from a record that has half of the interval."""
        middle = float(row[value])
        width = float(row[half])
        return cls(middle, middle - width, middle + width)

    @property
    def side(self) -> int:
        """1 significantly above zero, -1 below, 0 where the interval includes zero."""
        return (self.low > 0) - (self.high < 0)

    def __str__(self) -> str:
        return f"{signed(self.value)} ± {(self.high - self.low) / 2:.1f}"


def published(label: str) -> str:
    """The method's row with the published constants."""
    return label.partition(" (")[0]


def by_method(values: Mapping[str, float]) -> list[str]:
    """Order rows by their values: the best method first, its tuned rows right behind the published one."""
    best: dict[str, float] = {}
    for label, value in values.items():
        best[published(label)] = max(value, best.get(published(label), value))
    return sorted(values, key=lambda label: (-best[published(label)], published(label), label.endswith("(tuned)")))


def scaled(value: float, low: float, high: float, start: float, end: float) -> float:
    """A value on an axis; what lies outside is put at its end."""
    return start + (min(max(value, low), high) - low) / (high - low) * (end - start)


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "g") -> str:
    return f'<path d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}" class="{kind}"/>'


def svg(title: str, height: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" role="img">'
    paper = '<rect width="100%" height="100%" class="p"/>'
    return "\n".join([f"{head}<title>{escape(title)}</title><style>{STYLE}</style>", paper, *parts, "</svg>\n"])


def margin(labels: Sequence[str]) -> float:
    """Pixels that names of rows take on the left."""
    return 16 + 6.5 * max(map(len, labels))


def whiskers(title: str, tiers: Sequence[Mapping[str, Mapping[str, Gain]]], low: float, high: float) -> str:
    """Gains with their intervals: a row for each method, a column for each stream; tiers stand below each other."""
    parts: list[str] = []
    bottom = 0.0
    for columns in tiers:
        mean: dict[str, list[float]] = {}
        for column in columns.values():
            for label, gain in column.items():
                mean.setdefault(label, []).append(gain.value)
        means = {label: sum(values) / len(values) for label, values in mean.items()}
        labels = by_method(means)
        left = margin(labels)
        wide = (WIDTH - left - 10) / len(columns)
        above = bottom + 18
        top = above + 42
        bottom = top + 17 * len(labels)
        parts += [text(left - 8, top + 17 * row + 12, label, "e") for row, label in enumerate(labels)]
        for number, (name, column) in enumerate(columns.items()):
            start = left + number * wide + 10
            end = start + wide - 20
            for number_of_line, words in enumerate(name.split(", ")):
                kind = "m s" if number_of_line else "m b"
                parts.append(text((start + end) / 2, above + 13 * number_of_line, words, kind))
            for tick in range(10 * ceil(low / 10), int(high) + 1, 10):
                x = scaled(tick, low, high, start, end)
                parts += [
                    line(x, top, x, bottom, "g" if tick else "z"),
                    text(x, bottom + 14, f"{tick:+}" if tick else "0", "m s"),
                ]
            for row, label in enumerate(labels):
                if label in column:
                    gain = column[label]
                    kind = SIDES[gain.side]
                    y = top + 17 * row + 8
                    ends = [scaled(value, low, high, start, end) for value in gain]
                    hollow = " h" if label.endswith("(tuned)") else ""
                    parts.append(line(ends[1], y, ends[2], y, kind))
                    parts.append(f'<circle cx="{ends[0]:.1f}" cy="{y:.1f}" r="3.4" class="{kind}{hollow}"/>')
                    if gain.value < low:
                        parts.append(text(ends[0] + 8, y + 4, f"{gain.value:+.0f}", "s"))
        bottom += 20
    words = (
        "points of top-1 over NoAdapt, with 95 % intervals: blue above, red below, gray not significant; hollow: tuned"
    )
    return svg(title, bottom + 25, [*parts, text(WIDTH / 2, bottom + 14, words, "m s")])


def heat(title: str, panels: Mapping[str, Mapping[str, Mapping[str, Gain]]]) -> str:
    """A field with its number for each row and corruption, a panel for each stream; shaded where significant."""
    names = list(dict.fromkeys(name for rows in panels.values() for row in rows.values() for name in row))
    left = margin([label for rows in panels.values() for label in rows])
    wide = (WIDTH - left - 56) / len(names)
    parts = []
    for number, name in enumerate(names):
        x = left + (number + 0.5) * wide
        parts.append(f'<text x="{x:.0f}" y="66" class="s" transform="rotate(-38 {x:.0f} 66)">{escape(name)}</text>')
    top = 74.0
    for panel, rows in panels.items():
        parts.append(text(left, top + 13, panel, "b"))
        order = by_method({label: sum(gain.value for gain in row.values()) for label, row in rows.items()})
        for label in order:
            top += 18
            parts.append(text(left - 8, top + 13, label, "e"))
            for number, gain in enumerate(rows[label].values()):
                x = left + number * wide
                points = round(gain.value)
                if gain.side:
                    shade = 0.08 + 0.6 * min(1.0, abs(gain.value) / DARKEST)
                    field = f'x="{x:.0f}" y="{top:.0f}" width="{wide - 2:.0f}" height="16"'
                    parts.append(f'<rect {field} class="{SIDES[gain.side]} r" fill-opacity="{shade:.2f}"/>')
                parts.append(text(x + wide / 2, top + 12, f"{points:+}" if points else "0", "m t"))
        top += 22
    words = "points of top-1 over NoAdapt: blue above, red below; shaded where the paired 95 % interval excludes zero"
    return svg(title, top + 26, [*parts, text(WIDTH / 2, top + 14, words, "m s")])
