"""Sections of docs/results.md beside its tables: deadlines, recovery, when Align refuses; and the CSV of all gains."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.cells import CLEAN, RECIPE, USUAL, Cell, Gain, name_of
from benchmarks.common import markdown
from benchmarks.conclusions import OURS, listed, rivals
from benchmarks.pictures import WIDTH, Span, line, svg, text
from fozo.bench.gains import ADAPTING, BASE, FROZEN, LATENCY, latencies, signed, utilities
from fozo.bench.recipes.comparison import GRID, METHODS, choose
from fozo.bench.report.render import ticks
from fozo.bench.store import Group, Run
from fozo.types import Array

WITHIN = 2.0
"""Points of the final gain within which a method has recovered."""
LAST = 2
"""Batches whose mean is the final gain."""
WINDOW = 4
"""Batches over which a collapse is looked for: at less than half of NoAdapt's accuracy, to the end of the stream."""
NARROW_VARIANCE, CHANCE = 0.25, 2**0.5
"""Of Align's evidence of drift (docs/method.md): what content may shift descriptors by, and two standard deviations."""
BOUNDS = {"nothing": 0.0, "a part": 0.95, "all": 1.0}
"""Upper ends of the evidence for each answer."""
IMAGES = 192
"""Of a corruption, in the cell whose accuracies utilities are of."""
MEASURES = ("discrete", "continuous", "amortised")
DEADLINES = (
    "Tempora's utilities (ICML 2026), percent. *Discrete*: a batch arrives each reference latency (the plain model's), "
    "and is lost if another waits. *Continuous*: waiting one more latency halves an answer's worth. *Amortised*: a "
    "method may adapt for half a latency in each corruption, then it is frozen."
)
UNTIMED = (
    "Not timed yet: `fozo bench tempora --column latency --model WEIGHTS --imagenet DIR --out RUNS` takes seven "
    "minutes of a machine that does nothing else."
)


def recovered(cell: Cell, label: str) -> int | None:
    """Images of a corruption after which the gain stays within ``WITHIN`` points of its final value, or above.

    ``None`` where a corruption has too few batches to tell.
    """
    gains = cell.learning(label)
    if len(gains) < 2 * LAST:
        return None
    low = gains[-LAST:].mean() - WITHIN
    last = max((batch for batch, gain in enumerate(gains) if gain < low), default=-1)
    sizes = next(iter(next(iter(cell.rows[BASE].correct.values())).values()))
    return sum(images for _, images in sizes[: last + 1])


def _all_batches(cell: Cell, label: str) -> Array:
    """Right predictions and images of every batch of the first seed, in the order of the stream: ``[batches, 2]``."""
    found = next(iter(cell.rows[label].correct.values()))
    return np.array([batch for name in (*cell.domains, *([CLEAN] if cell.clean else [])) for batch in found[name]])


def collapsed(cell: Cell, label: str) -> int | None:
    """Images after which a row is below half of NoAdapt's accuracy until the end; ``None`` where it is not."""
    own, base = (_all_batches(cell, each) for each in (label, BASE))
    windows = np.ones(WINDOW)
    right, plain = (np.convolve(each[:, 0], windows, "valid") for each in (own, base))
    fine = np.flatnonzero(right >= plain / 2)
    first = fine[-1] + 1 if len(fine) else 0
    return None if first >= len(right) else int(own[:first, 1].sum())


def recovery(cell: Cell) -> list[str]:
    """What a change of corruption, the return to clean images and a long stream do to each method."""
    after = recovered(cell, OURS)
    said = ""
    if after is not None:
        waits = f"after {after} images" if after else "from the first batch on"
        said = f"After a change of corruption Align is within {WITHIN:g} points of its final gain {waits}. "
    if cell.clean:
        first = [_all_batches(cell, label)[-len(cell.learning(label)), 0] for label in (OURS, BASE)]
        images = _all_batches(cell, BASE)[-1, 1]
        said += (
            f"Back on clean images, it recognises {first[0]:.0f} of the first {images:.0f}, NoAdapt {first[1]:.0f}. "
        )
    ends = {label: images for label in rivals(cell) if (images := collapsed(cell, label)) is not None}
    found = listed(
        [f"{label} after {images:,} images" for label, images in sorted(ends.items(), key=lambda item: item[1])]
    )
    return [f"{said}Below half of NoAdapt's accuracy until the end of the stream: {found}."]


# --- evidence ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """Batches of Align: how far from clean images, and what was gained over NoAdapt on the same images."""

    shift: Array
    images: Array
    gain: Array

    @property
    def share(self) -> Array:
        """Evidence of drift in each batch alone, 0 to 1, as docs/method.md has it; the memory adds to it."""
        ratio = self.shift / (1 + NARROW_VARIANCE * self.images)
        found: Array = 1 - np.exp(-2 * np.maximum(ratio - 1 - CHANCE, 0))
        return found

    def of(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> Gain:
        """Mean gain of some batches, with a 95 % interval over batches."""
        own = self.gain[chosen]
        return Gain.around(float(own.mean()), float(1.96 * own.std(ddof=1) / len(own) ** 0.5) if len(own) > 1 else 0.0)


def read_refusals(groups: Iterable[Group]) -> Evidence | None:
    """All batches of Align in the cells, beside NoAdapt's."""
    lines = []
    for group in groups:
        for run in group.runs if group.recipe.name == RECIPE else ():
            plain = [r for r in group.of(BASE, run.experiment.column) if r.experiment.seed == run.experiment.seed]
            if run.experiment.label == OURS and plain:
                for own, base in zip(run.records(), plain[0].records(), strict=True):
                    if "shift" in own.metrics:
                        points = 100 * (own.correct - base.correct) / own.images
                        lines.append((own.metrics["shift"], own.images, points))
    return Evidence(*np.array(lines).T) if len(lines) > 1 else None


def refusal_lines(found: Evidence) -> list[tuple[str, float, Gain]]:
    """What Align's equaliser was allowed to do, how often, and the gain there."""
    lines, low = [], -1.0
    for name, high in BOUNDS.items():
        chosen = (found.share > low) & (found.share <= high)
        if chosen.sum() > 1:
            lines.append((name, float(100 * chosen.mean()), found.of(chosen)))
        low = high
    return lines


def refusal_sentence(found: Evidence) -> str:
    said = [f"{name} in {share:.0f} % (gain {gain})" for name, share, gain in refusal_lines(found)]
    return (
        f"By its evidence of drift, Align's equaliser may change {listed(said)} of {len(found.gain):,} batches in all "
        "cells. Tokens are moved by evidence of their own."
    )


def refusal_picture(found: Evidence, bins: int = 12) -> str:
    """Gain against the distance from clean images, batches in bins of equal size."""
    order = np.array_split(np.argsort(found.shift), bins)
    points = [
        (float(np.log10(np.median(found.shift[own]))), found.of(own), float(found.share[own].mean())) for own in order
    ]
    low, high = min(0.0, *(gain.low for _, gain, _ in points)), max(gain.high for _, gain, _ in points)
    top, bottom, left = 30, 230, 60
    across = Span(points[0][0] - 0.1, points[-1][0] + 0.1, left, WIDTH - 20)
    down = Span(low - 1, high + 1, bottom, top)
    parts = [text(left, 18, "points of top-1 above NoAdapt, mean and 95 % interval; darker: more evidence", "soft")]
    for tick in ticks(low, high, 5):
        parts.append(line(left, down(tick), WIDTH - 20, down(tick), "zero" if tick == 0 else "grid"))
        parts.append(text(left - 8, down(tick) + 4, f"{tick:+g}" if tick else "0", "end soft small"))
    for power in range(int(np.ceil(across.low)), int(across.high) + 1):
        parts.append(line(across(power), top, across(power), bottom, "grid"))
        parts.append(text(across(power), bottom + 16, f"{10**power:,}", "middle soft small"))
    for x, gain, share in points:
        parts.append(line(across(x), down(gain.low), across(x), down(gain.high), "up" if gain.side > 0 else "tie"))
        parts.append(
            f'<circle cx="{across(x):.1f}" cy="{down(gain.value):.1f}" r="6" class="up" '
            f'style="fill-opacity: {0.1 + 0.9 * share:.2f}"><title>{gain}, evidence {share:.2f}</title></circle>'
        )
    parts.append(
        text(WIDTH / 2, bottom + 36, "distance of a batch from clean images (about 1 for these)", "middle soft")
    )
    return svg("Gain of Align against evidence of drift", bottom + 48, parts)


# --- deadlines --------------------------------------------------------------------------------------------------------


def _by_label(runs: Iterable[Run]) -> dict[str, Run]:
    return {run.experiment.label: run for run in runs if run.experiment.seed == 0}


def deadlines(groups: Sequence[Group]) -> list[list[str]]:
    """Rows of the table: time for a batch over the plain model's, and utilities; none without times."""
    timed = [run for group in groups if group.recipe.name == "tempora" for run in group.runs]
    sides = {side: _by_label(r for r in timed if r.experiment.column == side) for side in (LATENCY, ADAPTING, FROZEN)}
    if BASE not in sides[LATENCY]:
        return []
    model = sides[LATENCY][BASE].experiment.model
    for group in groups:
        for run in group.runs if group.recipe.name == RECIPE else ():
            own = run.experiment
            if (own.model, own.column, own.stream.images, own.seed) == (model, f"reset, severity {USUAL}", IMAGES, 0):
                sides[ADAPTING].setdefault(own.label, run)
    times, found = latencies(sides[LATENCY]), utilities(*sides.values())
    rows = []
    for label in sides[ADAPTING]:
        if label in times:
            values = [found.get(f"{label} {name}") for name in MEASURES]
            shown = ["-" if value is None else f"{value:.1f}" for value in values]
            factor = sum(times[label]) / times[BASE].prediction
            rows.append([label, f"{factor:.2f}", *shown])
    return sorted(rows, key=lambda row: -float(row[2]))


def deadline_section(groups: Sequence[Group]) -> list[str]:
    rows = deadlines(groups)
    if not rows:
        return [UNTIMED]
    heads = ["", "time, x plain", *MEASURES]
    model = next(name_of(g.runs[0].experiment.model) for g in groups if g.recipe.name == "tempora")
    return [f"{DEADLINES} {model}, severity 5, reset, batches of 64.", markdown(heads, rows)]


def walk_table(lines: Sequence[Mapping[str, str]]) -> str:
    """What each method gains on the long walk, and in its last tenth: a column for each model."""
    shares: dict[str, dict[str, list[float]]] = {}
    images: dict[str, int] = {}
    for each in lines:
        own = shares.setdefault(each["model"], {}).setdefault(each["method"], [])
        own.append(100 * int(each["correct"]) / int(each["images"]))
        images[each["model"]] = images.get(each["model"], 0) + (each["method"] == "noadapt") * int(each["images"])
    labels = {method: label for label, (method, _) in METHODS.items() if "(" not in label}
    rows: dict[str, list[str]] = {}
    for found in shares.values():
        base = np.array(found["noadapt"])
        for name in found.keys() - {"noadapt"}:
            gain = np.array(found[name]) - base
            last = gain[-(len(base) // 10) :]
            rows.setdefault(name, []).append(f"{signed(float(gain.mean()))} ({signed(float(last.mean()))})")
    heads = [f"{name_of(model)}, {images[model]:,} images" for model in shares]
    order = [name for name in next(iter(shares.values())) if name in rows]
    return markdown(["", *heads], [[labels[name], *rows[name]] for name in order])


# --- files ------------------------------------------------------------------------------------------------------------

COLUMNS = (
    "model", "stream", "severity", "corruptions", "images", "row", "source", "preset", "constants", "passes",
    "gflop_per_image", "processor", "seeds", "top1", "gain", "gain_low", "gain_high", "clean_gain", "clean_low",
    "clean_high", "ece", "recovers_after_images", "collapses_after_images",
)  # fmt: skip


def gains_csv(cells: Sequence[Cell], operations: Mapping[str, float]) -> str:
    """Every row of every cell, a line each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for cell in cells:
        for label, row in cell.rows.items():
            gains = [None if label == BASE else cell.gain(label), None if label == BASE else cell.with_clean(label)]
            numbers = [
                "" if g is None else f"{v:.3f}" for g in gains for v in ((g.value, g.low, g.high) if g else [0] * 3)
            ]
            count = operations.get(row.method)
            given = {"source": "", "preset": "", "constants": {}, **row.constants}
            named = [given["source"], given["preset"], json.dumps(given["constants"], sort_keys=True)]
            cost = [f"{row.passes:g}", "" if count is None else f"{count / 1e9:.3f}", row.processor]
            curves = [_or_empty(of(cell, label)) for of in (recovered, collapsed)]
            where = [cell.model, cell.scenario, cell.severity, len(cell.domains), cell.images, label]
            own = [len(row.seeds), f"{cell.top(label):.3f}", *numbers, f"{row.error:.3f}"]
            writer.writerow([*where, *named, *cost, *own, *curves])
    return text.getvalue()


def tuning_csv(groups: Iterable[Group]) -> str:
    """Top-1 of every constant that was tried for a rival, and which is its tuned one by the rule of the recipe."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "images_a_corruption", "method", "constant", "top1", "tuned"])
    for group in (group for group in groups if group.recipe.name == "tuning"):
        found = {run.experiment.label: run.measures.average for run in group.runs}
        where = [name_of(group.runs[0].experiment.model), group.runs[0].experiment.stream.images]
        for method, values in GRID.items():
            whole = all(f"{method}, {name}" in found for name in values)
            best = choose(method, found) if whole else ""
            for name in (name for name in values if f"{method}, {name}" in found):
                writer.writerow([*where, method, name, f"{found[f'{method}, {name}']:.3f}", int(name == best)])
    return text.getvalue()


def _or_empty(value: int | None) -> str:
    return "" if value is None else str(value)


def read_csv(path: Path) -> list[dict[str, str]]:
    """Lines of a CSV file by heading; none where there is no file."""
    return list(csv.DictReader(io.StringIO(path.read_text()))) if path.is_file() else []
