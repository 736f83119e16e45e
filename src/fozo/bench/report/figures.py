"""The charts of a table of ``fozo bench``: what was gained, and how it went over the stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from markupsafe import Markup

from fozo.bench.gains import BASE, Gains, by_method
from fozo.bench.measures import BatchRecord, within_domains
from fozo.bench.plan import AVERAGE, TUNED
from fozo.bench.report.charts import Row, Series, Span, forest, line_chart
from fozo.bench.report.tables import Table, full_name
from fozo.bench.store import Group, Run

MAX_COLUMNS = 8  # columns of a table that have charts of their own; of more, the mean over columns is drawn
STRONG = 6
"""Curves that a reader can follow: the best ones, and what they are compared with. Others are drawn behind them."""
WINDOW = 128  # fewest images that a point of an accuracy over time is of, in whole batches
WINDOWS = 4  # points of a domain, at most
FEWEST_BATCHES = 4  # batches of a domain without which there is no curve to be seen in it


def charts(
    group: Group, table: Table, gained: Mapping[str, Mapping[str, Gains]], colours: Mapping[str, int]
) -> dict[str, list[Markup]]:
    """Draw what there is to be seen of a group, by column of its table; charts that would be empty are left out."""
    sweeps = list(dict.fromkeys(run.experiment.axis for run in group.runs if run.experiment.x is not None))
    if sweeps:
        return {AVERAGE: [_sweep(group, table, axis) for axis in sweeps]}
    sides = list(dict.fromkeys(run.experiment.column for run in group.runs))
    if len(sides) > MAX_COLUMNS:
        made, short = over_columns(gained)
        return {AVERAGE: [gain_chart(made, short, colours, f"the mean over {len(sides)} columns")]}
    found = {}
    for side in sides:
        runs = {label: group.of(label, side)[0] for label in group.labels if group.of(label, side)}
        severity = next(iter(runs.values())).experiment.stream.severity
        own = gained.get(side, {})
        clean = any("clean" in each.values for each in own.values())
        mean = f"the mean over corruptions{' and clean images' if clean else ''}"
        drawn = [gain_chart(own, {}, colours, mean), over_stream(runs, colours, severity)]
        drawn.append(domain_chart(own, colours, severity))
        if len(sides) == 1:
            drawn.append(passes_chart(runs, colours))
        found[side] = [chart for chart in drawn if chart]
    return found


def over_columns(gained: Mapping[str, Mapping[str, Gains]]) -> tuple[dict[str, Gains], dict[str, int]]:
    """Take a table's columns as the parts of one gain a row; say of how many columns those are that miss some."""
    labels = dict.fromkeys(label for rows in gained.values() for label in rows)
    made, short = {}, {}
    for label in labels:
        columns = {column: rows[label] for column, rows in gained.items() if label in rows}
        made[label] = Gains({c: g.mean.value for c, g in columns.items()}, {c: g.drawn for c, g in columns.items()})
        if len(columns) < len(gained):
            short[label] = len(columns)
    return made, short


def gain_chart(gained: Mapping[str, Gains], short: Mapping[str, int], colours: Mapping[str, int], mean: str) -> Markup:
    """Draw what each row gained: the best method first, tuned rows behind the published ones."""
    rows = []
    for label in by_method({label: each.mean.value for label, each in gained.items()}):
        each, gain = gained[label], gained[label].mean
        low, high = (None, None) if gain.within is None else (gain.within.low, gain.within.high)
        name = f"{label} ({short[label]} columns)" if label in short else label
        parts = list(each.values.values())
        marks = parts if len(parts) > 1 else []
        rows.append(Row(name, gain.value, low, high, marks, colours[label], label.endswith(TUNED)))
    note = "points of accuracy; bar: 95 % interval; n.s. and hollow: not significant (it includes zero)"
    if any(row.marks for row in rows):
        note += f"; dot: {mean}, thin marks: each of them"
    if any(row.square for row in rows):
        note += "; square: tuned"
    return forest(f"Gain over {BASE}", rows, note)


def strong(runs: Mapping[str, Run]) -> list[str]:
    """Choose the rows that are drawn in front: the best, and the base."""
    ranked = sorted(runs, key=lambda label: -runs[label].measures.average)
    chosen = [label for label in ranked if label != BASE][: STRONG - 1]
    return [label for label in runs if label in chosen or label == BASE]


def windows(records: Sequence[BatchRecord]) -> list[tuple[float, float]]:
    """Accuracy in percent within windows of whole batches, none of which reaches into another domain.

    Each is given with the middle of its images in the stream.
    """
    found, seen = [], 0
    for _, run in groupby(records, key=lambda record: record.domain):
        own = list(run)
        images = sum(record.images for record in own)
        most = WINDOWS if len({record.domain for record in records}) > 1 else 10 * WINDOWS
        count = max(1, min(most, len(own), images // WINDOW))
        for part in np.array_split(np.arange(len(own)), count):
            some = [own[i] for i in part]
            size = sum(record.images for record in some)
            found.append((seen + size / 2, 100 * sum(record.correct for record in some) / size))
            seen += size
    return found


def domain_spans(records: Sequence[BatchRecord], severity: int) -> list[Span]:
    """Say from which image to which the stream was in a domain; nothing where it is one all along."""
    spans, seen = [], 0
    for name, run in groupby(records, key=lambda record: record.domain):
        images = sum(record.images for record in run)
        spans.append(Span(seen, seen + images, full_name(name, severity)))
        seen += images
    return spans if len(spans) > 1 else []


def over_stream(runs: Mapping[str, Run], colours: Mapping[str, int], severity: int) -> Markup:
    read = {label: run.records() for label, run in runs.items()}
    front = strong(runs)
    order = [label for label in runs if label not in front] + front
    series = []
    for label in order:
        x, y = zip(*windows(read[label]), strict=True)
        series.append(Series(label, x, y, colours[label], label.endswith(TUNED), faint=label not in front))
    spans = domain_spans(next(iter(read.values())), severity)
    if len(spans) > 40:  # a stream that comes back again and again: names would not be read
        spans = []
    return line_chart("Accuracy along the stream", series, "" if spans else "images", "accuracy (%)", spans=spans)


def domain_chart(gained: Mapping[str, Gains], colours: Mapping[str, int], severity: int) -> Markup:
    best = sorted(gained, key=lambda label: -gained[label].mean.value)[: STRONG - 1]
    labels = [label for label in gained if label in best]
    if not labels or len(gained[labels[0]].values) < 2:
        return Markup()
    names = list(gained[labels[0]].values)
    series = []
    for index, label in enumerate(labels):
        found = [gained[label].of(name) for name in names]
        x = [i + (index + 1) / (len(labels) + 1) for i in range(len(names))]
        within = [each.within for each in found if each.within is not None]
        whole = within if len(within) == len(found) else []
        low, high = [each.low for each in whole], [each.high for each in whole]
        values = [each.value for each in found]
        series.append(Series(label, x, values, colours[label], label.endswith(TUNED), low=low, high=high))
    which = "" if len(labels) == len(gained) else f", the {len(labels)} best rows of {len(gained)}"
    title = f"Gain over {BASE} under each corruption{which}"
    spans = [Span(i, i + 1, full_name(name, severity)) for i, name in enumerate(names)]
    unit = "points, with 95 % intervals" if series[0].low else "points"
    return line_chart(title, series, "", unit, dots=True, lines=False, spans=spans)


def passes_chart(runs: Mapping[str, Run], colours: Mapping[str, int]) -> Markup:
    """Draw how fast a domain is learnt, against what it costs; nothing where domains are of a batch or two."""
    front = strong(runs)
    curves = {label: within_domains(run.records(), run.costs()) for label, run in runs.items()}
    lengths = {label: min(len(spent) for _, spent, _ in each) for label, each in curves.items()}
    if min(lengths.values()) < FEWEST_BATCHES:
        return Markup()
    series = []
    for label in [label for label in runs if label not in front] + front:
        length = lengths[label]
        spent = np.mean([spent[:length] for _, spent, _ in curves[label]], axis=0)
        reached = np.mean([accuracy[:length] for _, _, accuracy in curves[label]], axis=0)
        dashed, faint = label.endswith(TUNED), label not in front
        series.append(Series(label, spent.tolist(), reached.tolist(), colours[label], dashed, faint))
    title = "How fast a corruption is learnt: accuracy of its images so far, mean over corruptions"
    x_label = "forward passes spent on it, logarithmic"
    return line_chart(title, series, x_label, "accuracy (%)", log=True)


def _sweep(group: Group, table: Table, axis: str) -> Markup:
    places = {run.experiment.label: run.experiment.x for run in group.runs if run.experiment.axis == axis}
    cells = {label: row[table.columns.index(AVERAGE)] for label, row in table.rows}
    points = [(x, cell) for label, x in places.items() if x is not None and (cell := cells[label]) is not None]
    x = [x for x, _ in points]
    lows, highs = ([end for _, cell in points if (end := getattr(cell, side)) is not None] for side in ("low", "high"))
    lows, highs = (lows, highs) if len(lows) == len(highs) == len(x) else ([], [])
    series = [Series("ours, with 95 % interval", x, [c.ours for _, c in points], 1, low=lows, high=highs)]
    paper = [(x, cell.paper) for x, cell in points if cell.paper is not None]
    if paper:
        series.append(Series("paper", [x for x, _ in paper], [y for _, y in paper], 2, dashed=True))
    return line_chart(f"Accuracy against {axis}", series, axis, "accuracy (%)", dots=True)
