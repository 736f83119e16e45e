"""Sentences of docs/results.md, each computed from cells.

*Significantly* means that the 95 % interval of the paired difference excludes zero.
"""

import re
from collections.abc import Mapping, Sequence

from benchmarks.cells import Cell, Gain, by_method
from fozo.bench.gains import BASE, signed
from fozo.bench.plan import TUNED

OURS = "Align"
OWN = (OURS, "Equalise")
"""This project's methods."""
NAMED = 4
"""As many corruptions as a table names; more are counted."""
SIDES = {1: "significantly above", 0: "not significantly different from", -1: "significantly below"}


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1] if names else "none"


def words_of(domain: str) -> str:
    return domain.split("/")[0].replace("_", " ")


def adapting(cell: Cell) -> list[str]:
    """The rows beside NoAdapt: the best method first, its tuned row behind the published one."""
    return by_method({label: cell.gain(label).value for label in cell.rows if label != BASE})


def rivals(cell: Cell) -> list[str]:
    """Rows of methods that are not this project's."""
    return [label for label in adapting(cell) if label not in OWN]


def rival_methods(cell: Cell) -> int:
    """How many methods the rivals are, whatever their constants."""
    return len({re.split(r", | \(", label)[0] for label in rivals(cell)})


def by_domain(cell: Cell, label: str = OURS, base: str = BASE) -> dict[str, Gain]:
    return {words_of(name): cell.gain(label, base, (name,)) for name in cell.domains}


def headline(cell: Cell) -> str:
    """What a reader should keep of the leading cell: Align, its best rival, and what is between them."""
    best = max(rivals(cell), key=lambda label: cell.gain(label).value)
    lead = cell.gain(OURS, best)
    verb = {1: "ahead of", 0: "not significantly different from", -1: "behind"}[lead.side]
    methods = rival_methods(cell)
    constants = ", published or tuned," if any(label.endswith(TUNED) for label in rivals(cell)) else ""
    return (
        f"**{cell.title} of each of {len(cell.domains)} corruptions: Align gains {cell.gain(OURS)} points over "
        f"NoAdapt; the best of {methods} rivals{constants} is {best} with {cell.gain(best)}, and Align is {verb} it "
        f"({lead}).**"
    )


def against_rivals(cells: Sequence[Cell]) -> str:
    """Say which rivals Align is significantly ahead of, and which not."""
    compared = [(cell.gain(OURS, label), label, cell) for cell in cells for label in rivals(cell)]
    ahead = [each for each in compared if each[0].side > 0]
    others = {
        verb: [f"{label} on {cell.title} ({gain})" for gain, label, cell in compared if gain.side == side]
        for verb, side in (("is behind", -1), ("is not significantly different from", 0))
    }
    rest = [f"{verb} {listed(names)}" for verb, names in others.items() if names]
    said = (
        f"Over all corruptions Align is significantly ahead of a rival in {len(ahead)} of {len(compared)} comparisons"
    )
    if ahead:
        gain, label, cell = min(ahead, key=lambda each: each[0].low)
        said += f" (the closest: {label} on {cell.title}, {gain})"
    return f"{said}. It {'; it '.join(rest or ['is significantly behind none'])}."


def ahead(cell: Cell) -> list[str]:
    """Name the corruptions on which a rival is significantly ahead of Align, and the lead of the best rival."""
    found = []
    for name in cell.domains:
        behind = {label: cell.gain(OURS, label, (name,)) for label in rivals(cell)}
        leading = [label for label, gain in behind.items() if gain.side < 0]
        if leading:
            best = min(leading, key=lambda label: behind[label].value)
            found.append(f"{words_of(name)} ({best}, by {-behind[best].value:.1f})")
    return found


def losses(cell: Cell) -> dict[str, str]:
    """What speaks against Align in a cell, for a table: by heading."""
    gains = by_domain(cell)
    equal = {name: gain for name, gain in gains.items() if gain.side == 0}
    few = listed([f"{name} ({signed(gain.value)})" for name, gain in equal.items()])
    return {
        "significantly below NoAdapt on": listed([f"{name} ({gain})" for name, gain in gains.items() if gain.side < 0]),
        "no significant gain on": few if len(equal) <= NAMED else f"{len(equal)} of {len(gains)}",
        "significantly behind a rival on": listed(ahead(cell)),
    }


def afterwards(cells: Sequence[Cell]) -> str:
    """Say what Align loses on clean images after the corruptions."""
    found = {cell.title: gain for cell in cells if (gain := cell.with_clean(OURS)) is not None}
    below = [f"{title} ({gain})" for title, gain in found.items() if gain.side < 0]
    if not found:
        return ""
    where = f"is significantly below NoAdapt in {listed(below)}" if below else "is never significantly below NoAdapt"
    return f"On clean images afterwards it {where}."


def milder(cells: Sequence[Cell]) -> str:
    """Say on how many corruptions Align gains nothing significant in cells of another severity than the first."""
    found: dict[int, list[int]] = {}
    for cell in cells:
        if cell.severity != cells[0].severity:
            found.setdefault(cell.severity, []).append(sum(gain.side <= 0 for gain in by_domain(cell).values()))
    said = [f"at severity {level} on {min(counts)} to {max(counts)} of 15" for level, counts in found.items()]
    return f"It has no significant gain {listed(said)}." if said else ""


def narrow(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """Say what Align gains on narrow content, and which rows are on either side of NoAdapt."""
    parts = []
    for name, column in gains.items():
        own = listed([f"{label} {column[label]}" for label in OWN if label in column]) if OURS in column else "no Align"
        rows = sorted(column.keys() - set(OWN), key=lambda label: column[label].value)
        sides = {
            side: listed([f"{row} ({signed(column[row].value)})" for row in rows[::-side] if column[row].side == side])
            for side in (-1, 1)
        }
        others = f". Rivals significantly above NoAdapt: {sides[1]}. Below: {sides[-1]}" if rows else ""
        parts.append(f"{name}: {own}{others}")
    return ". ".join(parts) + "."
