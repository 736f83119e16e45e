"""Sentences of docs/results.md, each computed from cells.

*Significantly* means that the 95 % interval of the paired difference excludes zero.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from benchmarks.cells import Cell, Gain, by_method
from fozo.bench.gains import BASE, signed
from fozo.bench.plan import TUNED, published

OURS = "Align"
NAMED = 4
"""As many corruptions as a table names."""
SIDES = {1: "significantly above", 0: "not significantly different from", -1: "significantly below"}


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if names[1:] else "") + names[-1] if names else "none"


def words_of(domain: str) -> str:
    return domain.split("/")[0].replace("_", " ")


def adapting(cell: Cell) -> list[str]:
    """The rows beside NoAdapt: the best method first, its tuned row behind the published one."""
    return by_method({label: cell.gain(label).value for label in cell.rows if label != BASE})


def rivals(cell: Cell) -> list[str]:
    return [label for label in adapting(cell) if label != OURS]


def by_domain(cell: Cell, label: str = OURS, base: str = BASE) -> dict[str, Gain]:
    return {words_of(name): cell.gain(label, base, (name,)) for name in cell.domains}


def headline(cell: Cell) -> str:
    """What a reader should keep of the leading cell: Align, its best rival, and what is between them."""
    best = max(rivals(cell), key=lambda label: cell.gain(label).value)
    lead = cell.gain(OURS, best)
    verb = {1: "ahead of", 0: "not significantly different from", -1: "behind"}[lead.side]
    methods = len({published(label) for label in rivals(cell)})
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
    return f"{said}; it {'; it '.join(rest or ['is significantly behind none'])}."


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
    least = sorted(equal, key=lambda name: equal[name].value)[:NAMED]
    few = listed([f"{name} ({signed(equal[name].value)})" for name in equal if name in least])
    again = cell.with_clean(OURS)
    errors = {label: row.error for label, row in cell.rows.items()}
    lowest = min(errors, key=lambda label: errors[label])
    return {
        "significantly below NoAdapt on": listed([f"{name} ({gain})" for name, gain in gains.items() if gain.side < 0]),
        "no significant gain on": few if len(equal) <= NAMED else f"{len(equal)} of {len(gains)}, the least {few}",
        "significantly behind a rival on": listed(ahead(cell)),
        "after returning to clean images": "-" if again is None else str(again),
        "calibration error": f"{errors[OURS]:.1f}; NoAdapt {errors[BASE]:.1f}"
        + (", it is the lowest" if lowest == OURS else f", lowest {lowest} {errors[lowest]:.1f}"),
    }


def grouped(gains: Mapping[str, Gain], words: Mapping[int, str]) -> str:
    """Put gains in words by their sides, the largest first; those that are not significant without their intervals."""
    order = sorted(gains, key=lambda label: -gains[label].value)
    said = []
    for side, verb in words.items():
        own = {label: gains[label] for label in order if gains[label].side == side}
        said += [f"{verb} {listed([f'{k} ({v if side else signed(v.value)})' for k, v in own.items()])}"] if own else []
    return "; ".join(said)


def tuning(cell: Cell) -> str:
    """Say what each rival gains by tuned constants, against its published ones on the same images."""
    both = [published(label) for label in cell.rows if label.endswith(TUNED) and published(label) in cell.rows]
    gained = {method: cell.gain(method + TUNED, method) for method in both}
    words = {1: "significantly helps", 0: "makes no significant difference to", -1: "significantly harms"}
    return f"Against its published constants, tuning {grouped(gained, words)}." if gained else ""


def after_clean(cell: Cell) -> str:
    """Say what the rows lose on the clean images at the end of the stream."""
    found = {label: gain for label in adapting(cell) if (gain := cell.with_clean(label)) is not None}
    if not found:
        return ""
    below = sorted((label for label in found if found[label].side < 0), key=lambda label: found[label].value)
    worst = f", the worst {listed([f'{label} ({found[label]})' for label in below[:3]])}" if below else ""
    own = f"Align is {SIDES[found[OURS].side]} it ({found[OURS]})"
    rows = (
        f"{len(below) or 'none'} of {len(found)} rows {'is' if len(below) == 1 else 'are'} significantly below NoAdapt"
    )
    return f"After returning to clean images, {rows}{worst}; {own}."


def processors(cells: Sequence[Cell]) -> str:
    """Say so where the rows of one cell were not all run on the same processor."""
    said = []
    for cell in cells:
        rows = Counter(row.processor or "one that is not recorded" for row in cell.rows.values())
        if len(rows) > 1:
            said.append(f"{cell.title}: {listed([f'{count} on {name}' for name, count in rows.most_common()])}")
    return f"Rows on different processors, which may change last bits: {'; '.join(said)}." if said else ""


def sides(cells: Sequence[Cell]) -> str:
    """Say which rivals help significantly wherever they ran, and which nowhere."""
    found: dict[str, list[int]] = {}
    for cell in cells:
        for label in rivals(cell):
            found.setdefault(label, []).append(cell.gain(label).side)
    found = {label: found[label] for label in by_method({label: fmean(v) for label, v in found.items()})}
    always = [label for label, v in found.items() if min(v) > 0]
    never = [label for label, v in found.items() if max(v) <= 0]
    harmful = sum(min(v) < 0 for v in found.values())
    return (
        f"Rivals significantly above NoAdapt wherever they ran: {listed(always)}; nowhere: {listed(never)}; "
        f"significantly below it in one cell at least: {harmful or 'none'} of {len(found)} rows."
    )


def learning(cells: Sequence[Cell]) -> str:
    """Say what the first batch of a corruption gains against the last; batches hold different images."""
    parts = []
    for cell in cells:
        best = max(rivals(cell), key=lambda label: cell.gain(label).value)
        ends = [f"{k} {cell.learning(k)[0]:+.1f} and {cell.learning(k)[-1]:+.1f}" for k in (OURS, best)]
        parts.append(f"{cell.title}: {', '.join(ends)}")
    wide = max(cell.gain(OURS).half * len(cell.learning(OURS)) ** 0.5 for cell in cells)
    return (
        f"Gains in a corruption's first batch and in its last, of Align and of the best rival. {'; '.join(parts)}. "
        f"Every batch has images of its own: one value is good to ± {wide:.0f} points or so."
    )


def passes(cells: Sequence[Cell]) -> str:
    """Say what more passes than Align's have bought."""
    parts = []
    for cell in cells:
        own = cell.rows[OURS].passes
        costly = [label for label in rivals(cell) if cell.rows[label].passes > own + 0.5]
        best = max(costly, key=lambda label: cell.gain(label).value, default=None)
        said = f"{cell.title}: Align makes {own:.2g} and gains {cell.gain(OURS)}"
        if best is not None:
            above = [label for label in costly if cell.gain(label).side > 0]
            said += (
                f"; rows with more passes that are significantly above NoAdapt: {len(above) or 'none'} of "
                f"{len(costly)}, the best {best} ({cell.rows[best].passes:.2g}: {cell.gain(best)})"
            )
        parts.append(said)
    return ". ".join(parts) + "."


def most_and_least(cell: Cell) -> str:
    gains = by_domain(cell)
    order = [f"{name} ({gains[name]})" for name in sorted(gains, key=lambda name: -gains[name].value)]
    return f"{cell.title}: Align gains most on {listed(order[:3])}, least on {listed(order[-3:])}."


def narrow(gains: Mapping[str, Mapping[str, Gain]]) -> str:
    """Say on which side of NoAdapt the rows lie on narrow content."""
    words = {1: "significantly above NoAdapt", -1: "significantly below", 0: "not significant"}
    return ". ".join(f"{name}: {grouped(column, words)}" for name, column in gains.items()) + "."
