"""Sentences of docs/results.md, each computed from cells: where figures change, they do.

*Surely* means that a 95 % interval leaves zero out; where it holds zero the sentence says that it is a tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from benchmarks.cells import Cell, Gain
from benchmarks.pairs import BASE

OURS = "Align"
SIDES = {1: "above", 0: "level with", -1: "below"}


def listed(names: Sequence[str]) -> str:
    """Names as a sentence has them."""
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1] if names else "none"


def words_of(domain: str) -> str:
    """A corruption's name without its severity."""
    return domain.split("/")[0].replace("_", " ")


def adapting(cell: Cell) -> list[str]:
    """The rows beside NoAdapt."""
    return [label for label in cell.rows if label != BASE]


def rivals(cell: Cell) -> list[str]:
    """The rows beside NoAdapt and Align."""
    return [label for label in adapting(cell) if label != OURS]


def by_domain(cell: Cell, label: str = OURS, base: str = BASE) -> dict[str, Gain]:
    """A row's gain in each corruption."""
    return {words_of(name): cell.gain(label, base, (name,)) for name in cell.domains}


def against_rivals(cells: Sequence[Cell]) -> str:
    """Say whom Align is ahead of, by the interval of the paired difference, and whom not."""
    compared = [(cell.gain(OURS, label), label, cell) for cell in cells for label in rivals(cell)]
    ahead = [each for each in compared if each[0].side > 0]
    others = [
        f"{'ties with' if gain.side == 0 else 'is behind'} {label} on {cell.title} ({gain})"
        for gain, label, cell in compared
        if gain.side <= 0
    ]
    said = (
        f"Align is ahead of a rival in {len(ahead)} of {len(compared)} comparisons, by more than their paired interval"
    )
    if ahead:
        gain, label, cell = min(ahead, key=lambda each: each[0].low)
        said += f" (the closest: {label} on {cell.title}, {gain} points)"
    return said + (f"; it {listed(others)}." if others else "; it loses to none and ties with none.")


def ahead(cell: Cell) -> list[str]:
    """Name the corruptions on which a rival is surely ahead of Align, and by how much the best of them is."""
    found = []
    for name in cell.domains:
        behind = {label: cell.gain(OURS, label, (name,)) for label in rivals(cell)}
        surely = [label for label, gain in behind.items() if gain.side < 0]
        if surely:
            best = min(surely, key=lambda label: behind[label].value)
            found.append(f"{words_of(name)} ({best}, by {-behind[best].value:.1f})")
    return found


def losses(cells: Sequence[Cell]) -> list[str]:
    """Items for the first section: where Align is below or level with NoAdapt, and how well it is calibrated."""
    items = []
    for cell in cells:
        gains = by_domain(cell)
        below = [f"{name} ({gain})" for name, gain in gains.items() if gain.side < 0]
        ties = [f"{name} ({gain.value:+.1f})" for name, gain in gains.items() if gain.side == 0]
        said = (
            f"- **{cell.title}**: below NoAdapt on {listed(below)}; a tie on {listed(ties)}; surely behind a rival on "
            f"{listed(ahead(cell))}"
        )
        again = cell.with_clean(OURS)
        if again is not None:
            said += f"; {SIDES[again.side]} it once the stream is clean again ({again})"
        errors = {label: row.error for label, row in cell.rows.items()}
        least = min(errors, key=lambda label: errors[label])
        word = "higher" if errors[OURS] > errors[BASE] else "lower"
        said += f". Calibration error {errors[OURS]:.1f} %, {word} than NoAdapt's {errors[BASE]:.1f}"
        items.append(said + ("." if least == OURS else f"; lowest: {least}, {errors[least]:.1f}."))
    return items


def sides(cells: Sequence[Cell]) -> str:
    """Say which rivals help surely and which do harm, over the cells that they ran in."""
    found: dict[str, list[int]] = {}
    for cell in cells:
        for label in rivals(cell):
            found.setdefault(label, []).append(cell.gain(label).side)
    kinds: dict[str, Callable[[list[int]], bool]] = {
        "surely above NoAdapt wherever they ran": lambda v: min(v) > 0,
        "surely above in some cells and level in others": lambda v: min(v) == 0 and max(v) > 0,
        "level throughout": lambda v: min(v) == max(v) == 0,
        "surely above in some and below in others": lambda v: min(v) < 0 < max(v),
        "surely below in one at least and above in none": lambda v: min(v) < 0 and max(v) <= 0,
    }
    parts = [f"{words}: {listed([k for k, v in found.items() if holds(v)])}" for words, holds in kinds.items()]
    return "Rivals " + "; ".join(part for part in parts if not part.endswith(": none")) + "."


def learning(cells: Sequence[Cell]) -> str:
    """Say what the first batch of a corruption gains against the last; batches hold different images."""
    parts = []
    for cell in cells:
        own, best = cell.learning(OURS), max(rivals(cell), key=lambda label: cell.gain(label).value)
        other = cell.learning(best)
        parts.append(
            f"{cell.title}: Align {own[0]:+.1f} in a corruption's first batch and {own[-1]:+.1f} in its last, the best "
            f"rival ({best}) {other[0]:+.1f} and {other[-1]:+.1f}"
        )
    wide = max(cell.gain(OURS).half * len(cell.learning(OURS)) ** 0.5 for cell in cells)
    return "; ".join(parts) + f". Every batch has images of its own: one value is good to ± {wide:.0f} points or so."


def passes(cells: Sequence[Cell]) -> str:
    """Say what more passes than Align's have bought."""
    parts = []
    for cell in cells:
        own = cell.rows[OURS].passes
        costly = [label for label in rivals(cell) if cell.rows[label].passes > own + 0.5]
        helped = [f"{label} ({cell.gain(label)})" for label in costly if cell.gain(label).side > 0]
        parts.append(
            f"{cell.title}: Align makes {own:.2g} and gains {cell.gain(OURS)}; of those with more ({listed(costly)}) "
            f"surely above NoAdapt: {listed(helped)}"
        )
    return ". ".join(parts) + "."


def most_and_least(cell: Cell) -> str:
    """Say where Align gains most and least."""
    gains = by_domain(cell)
    order = [f"{name} ({gains[name]})" for name in sorted(gains, key=lambda name: -gains[name].value)]
    return f"{cell.title}: Align gains most on {listed(order[:3])}, least on {listed(order[-3:])}."


def narrow(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """Say on which side of NoAdapt the rows lie on narrow content."""
    parts = []
    for name, column in gains.items():
        up, down, ties = ([f"{k} ({gain})" for k, gain in column.items() if gain.side == side] for side in (1, -1, 0))
        parts.append(f"{name}: surely above NoAdapt {listed(up)}; surely below {listed(down)}; ties {listed(ties)}")
    return ". ".join(parts) + "."
