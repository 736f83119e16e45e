"""What a table says, in a sentence that is computed from its figures: intervals decide, and ties are called ties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fozo.bench.gains import BASE, Gain, Gains, gains, signed
from fozo.bench.measures import Interval
from fozo.bench.plan import AVERAGE
from fozo.bench.report.figures import MOST_COLUMNS, over_columns
from fozo.bench.store import Group

MOST = 5
"""Rows that a sentence names of those on one side."""


def conclusions(group: Group, gained: Mapping[str, Mapping[str, Gains]]) -> dict[str, str]:
    """Conclude for every column of a table, or for the mean over them where there are many."""
    sides = list(dict.fromkeys(run.experiment.column for run in group.runs))
    if len(sides) > MOST_COLUMNS:
        made, short = over_columns(gained)
        whole = {label: each for label, each in made.items() if label not in short}
        return {AVERAGE: f"On average over {len(sides)} columns: {_against(whole)}"} if whole else {}
    found = {}
    for side in sides:
        first, own = _first(group, side), gained.get(side, {})
        both = [first, _against(own)] if len(own) > 1 else [first]  # with one row the first sentence says it all
        if text := " ".join(filter(None, both)):
            found[side] = text
    return found


def _first(group: Group, side: str) -> str:
    """Say which row is best in a column, by pairs with each of the others."""
    averages = {}
    for label in group.labels:
        if runs := group.of(label, side):
            averages[label] = sum(run.measures.average for run in runs) / len(runs)
    if len(averages) < 2:
        return ""
    best = max(averages, key=lambda label: averages[label])
    level, behind = [], dict[str, tuple[float, Interval]]()
    for label in averages:
        if label != best:
            lead = gains(group.of(best, side), group.of(label, side))
            gain = Gain(0.0, None) if lead is None else lead.mean
            if gain.side > 0 and gain.within is not None:
                behind[label] = gain.value, gain.within
            else:
                level.append(label)
    value = f"{averages[best]:.1f} %"
    if len(level) == len(averages) - 1:
        return f"{best} is highest with {value}, but no lead is beyond chance."
    if level:
        return f"{best} is highest with {value}, level with {few(level)}: these differences may be chance."
    second = max(behind, key=lambda label: averages[label])
    points, within = behind[second]
    return (
        f"{best} is best with {value}, {points:.1f} points ahead of {second} (95 % interval {within.low:.1f} to "
        f"{within.high:.1f})."
    )


def _against(gained: Mapping[str, Gains]) -> str:
    """Say who is above, level with and below the row that nothing adapts in."""
    means = {label: each.mean for label, each in gained.items()}
    sides: dict[str, list[str]] = {"above": [], "level with": [], "below": [], "of unknown certainty": []}
    for label in sorted(means, key=lambda label: -means[label].value):
        gain = means[label]
        where = "of unknown certainty" if gain.within is None else ("level with", "above", "below")[gain.side]
        sides[where].append(f"{label} {signed(gain.value)}")
    said = (f"{name}: {few(labels)}" for name, labels in sides.items() if labels)
    return f"Points against {BASE}: {'; '.join(said)}."


def few(words: Sequence[str]) -> str:
    """List some words, and count the others."""
    return ", ".join(words if len(words) <= MOST + 1 else [*words[:MOST], f"{len(words) - MOST} more"])
