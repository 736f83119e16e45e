"""What a table says, in sentences computed from its figures: intervals decide what is significant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fozo.bench.gains import BASE, Gain, Gained, Gains, gains, signed
from fozo.bench.plan import AVERAGE
from fozo.bench.report.figures import MAX_COLUMNS, over_columns
from fozo.bench.store import Group

MAX_NAMES = 5  # rows that a sentence names of those on one side
SIDES = {1: "significantly above", 0: "not significantly different", -1: "significantly below"}
UNKNOWN = "without an interval"


def conclusions(group: Group, gained: Gained) -> dict[str, str]:
    """Conclude for every column of a table, or for the mean over them where there are many."""
    if len(group.columns) > MAX_COLUMNS:
        whole = {label: each for label, each in over_columns(gained).items() if len(each.values) == len(gained)}
        return {AVERAGE: f"On average over {len(group.columns)} columns: {_against_base(whole)}"} if whole else {}
    found = {}
    for side in group.columns:
        best, rows = _best_row(group, side), gained.get(side, {})
        both = [best, _against_base(rows)] if len(rows) > 1 else [best]  # with one row the first sentence says it all
        if text := " ".join(filter(None, both)):
            found[side] = text
    return found


def _best_row(group: Group, side: str) -> str:
    averages = {}
    for label in group.labels:
        if runs := group.of(label, side):
            averages[label] = sum(run.measures.average for run in runs) / len(runs)
    if len(averages) < 2:
        return ""
    best = max(averages, key=lambda label: averages[label])
    value = f"{averages[best]:.1f} %"
    leads: dict[str, Gain] = {}
    for label in averages:
        if label != best:
            paired = gains(group.of(best, side), group.of(label, side))
            leads[label] = Gain(0.0, None) if paired is None else paired.mean
    close = [label for label, lead in leads.items() if lead.side <= 0]
    if len(close) == len(leads):
        return f"{best} is highest with {value}, but no lead is significant."
    if close:
        return f"{best} is highest with {value}, not significantly different from {few(close)}."
    second = max(leads, key=lambda label: averages[label])
    lead, within = leads[second], leads[second].within
    assert within is not None  # else it had no side
    return (
        f"{best} is best with {value}, {lead.value:.1f} points ahead of {second} (95 % interval {within.low:.1f} to "
        f"{within.high:.1f})."
    )


def _against_base(gained: Mapping[str, Gains]) -> str:
    means = {label: each.mean for label, each in gained.items()}
    sides: dict[str, list[str]] = {name: [] for name in (*SIDES.values(), UNKNOWN)}
    for label in sorted(means, key=lambda label: -means[label].value):
        gain = means[label]
        sides[UNKNOWN if gain.within is None else SIDES[gain.side]].append(f"{label} {signed(gain.value)}")
    said = (f"{name}: {few(labels)}" for name, labels in sides.items() if labels)
    return f"Points against {BASE}: {'; '.join(said)}."


def few(words: Sequence[str]) -> str:
    return ", ".join(words if len(words) <= MAX_NAMES + 1 else [*words[:MAX_NAMES], f"{len(words) - MAX_NAMES} more"])
