"""The report of ``fozo bench``: one page of tables, charts and sentences; the tables as Markdown, CSV and LaTeX too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import numpy as np
from markupsafe import Markup

from fozo.bench.gains import BASE, Gained, Gains, gains, over_base, signed
from fozo.bench.measures import BatchRecord
from fozo.bench.plan import AVERAGE
from fozo.bench.published import PAPERS_MODEL
from fozo.bench.report.render import Series, Span, assign_colours, line_chart, render, write_page
from fozo.bench.report.tables import Cell, Table, comma_separated, full_name, number, side_by_side, table_of
from fozo.bench.store import Group, Run, read_runs
from fozo.errors import FozoError
from fozo.io import check_output, open_regular, parse_json
from fozo.monitor.events import check_thumbnail
from fozo.monitor.monitor import clock
from fozo.monitor.quality import STATISTICS

COSTS = ("ECE", "Passes", "Time (s)", "Memory (MiB)", "#Params")
MAX_COLUMNS = 8  # columns of a table that have charts and conclusions of their own
MAX_CURVES = 6  # that a reader can follow: the best ones and the base; others are drawn behind them
MAX_SPANS = 40  # names below a chart that would be read
WINDOW_IMAGES = 128  # fewest images that a point of an accuracy over time is of, in whole batches
WINDOWS = 4  # points of a domain, at most; ten times as many where it is the only one
MAX_NAMES = 5  # rows that a sentence names of those on one side
SIDES = {1: "significantly above", 0: "not significantly different", -1: "significantly below"}
UNKNOWN = "without an interval"
MAX_LINE = 1 << 20  # bytes of a line
MAX_LINES = 200_000  # lines of a file: at 8 images a batch, more than a million images
DRAWN = ("brightness", "contrast", "saturation", "fine detail", "noise", "blockiness")  # of image quality
THUMBNAILS = ("camera", "equalised")  # pictures that an event may have: what the camera saw, and what the model read


def write_report(root: Path, out: Path, *more: Path) -> tuple[list[Path], list[str]]:
    """Write the page to ``out`` and the tables beside it; return these files, and the stale runs.

    Runs are those below ``root`` and ``more`` folders.
    """
    check_output(out)
    groups: list[Group] = []
    stale: list[str] = []
    for folder in (root, *more):
        finished, left_out = read_runs(folder)
        groups += finished
        stale += [str(path.relative_to(folder)) for path in left_out]
    compared = side_by_side(groups) if more else []
    shown = chapters({f"{group.recipe.name}-{place}": group for place, group in enumerate(groups)})
    tables = [*compared, *(chapter.table for chapter in shown)]
    texts = {
        out: render("report.html", title="fozo: results", compared=compared, chapters=shown, stale=stale),
        out.with_suffix(".md"): render("tables.md", tables=tables),
        out.with_suffix(".csv"): comma_separated(tables),
        out.with_suffix(".tex"): render("tables.tex", tables=tables),
    }
    for path, text in texts.items():
        write_page(path, text)
    return list(texts), stale


def chapters(groups: Mapping[str, Group]) -> list[Chapter]:
    """Compare the rows of groups by id; a method has the same colour in all of them."""
    rows = [run.experiment for group in groups.values() for run in group.runs]
    colours = assign_colours({row.label: row.method for row in rows})
    by_title = {row.title: colours[row.label] for row in rows}
    shown = []
    for id, group in groups.items():
        gained = over_base(group)
        shown.append(Chapter(id, group, gained, table_of(group, gained), by_title))
    return shown


@dataclass(frozen=True)
class Chapter:
    """A group of runs with what the page shows of it."""

    id: str
    """Of its section of the page."""
    group: Group
    """The runs."""
    gained: Gained
    """What rows gained over the plain model."""
    table: Table
    """Their numbers."""
    colours: Mapping[str, int]
    """Indices into the palette by the title of a row."""
    base: ClassVar[str] = BASE
    PAPERS_MODEL: ClassVar[str] = PAPERS_MODEL  # numbers of others are not compared with the paper's

    @property
    def parts(self) -> list[tuple[str, str, Sequence[Markup]]]:
        """Heading, conclusion and charts of each column that has any."""
        drawn = charts(self.group, self.table, self.colours)
        said = conclusions(self.group, self.gained)
        return [
            ("" if side == AVERAGE else side[:1].upper() + side[1:], said.get(side, ""), drawn.get(side, ()))
            for side in dict.fromkeys([*said, *drawn])
        ]

    @property
    def best(self) -> list[str | None]:
        """The highest number of each column as written, where it is an accuracy and there are several rows."""
        highest: list[str | None] = []
        for place, name in enumerate(self.table.columns):
            column = [cells[place] for _, cells in self.table.rows]
            top = max((cell for cell in column if cell is not None), key=lambda cell: cell.ours, default=None)
            compared = top is not None and name not in COSTS and len(column) > 1
            highest.append(number(top.ours, top.digits) if compared and top is not None else None)
        return highest

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.table.rows for cell in cells if cell is not None]

    @property
    def papers_model(self) -> bool:
        return self.PAPERS_MODEL in self.group.setting

    @property
    def conditions(self) -> dict[str, list[str]]:
        """What the numbers were measured on, and with which commands: each value once."""
        values: dict[str, list[str]] = {}
        for run in self.group.runs:
            conditions = run.conditions
            machine = conditions.environment
            packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
            facts = {
                "Processor": f"{machine.processor}, {machine.cores} cores, {machine.threads} threads",
                "Device": machine.device,
                "Software": f"Python {machine.python} on {machine.system}; {packages}",
                "Weights": conditions.weights,
                "Stream": conditions.stream_fingerprint,
                "Calibrated on": conditions.calibrated_on,
                "Seeds": str(run.experiment.seed),
                "Command": conditions.command,
            }
            for name, value in facts.items():
                if value and value not in values.setdefault(name, []):
                    values[name].append(value)
        return values


def _sides(group: Group) -> list[str]:
    """Columns that have charts and conclusions: none where there are many."""
    return group.columns if len(group.columns) <= MAX_COLUMNS else []


def charts(group: Group, table: Table, colours: Mapping[str, int]) -> dict[str, list[Markup]]:
    """Draw what there is to be seen of a group, by column of its table; charts that would be empty are left out."""
    axes = dict.fromkeys(run.experiment.axis for run in group.runs if run.experiment.x is not None)
    if axes:
        return {AVERAGE: [_sweep(group, table, axis) for axis in axes]}
    drawn = {}
    for side in _sides(group):
        runs = group.firsts(side)
        chart = over_stream(runs, colours, next(iter(runs.values())).experiment.stream.severity)
        drawn[side] = [chart] if chart else []
    return drawn


def windows(records: Sequence[BatchRecord]) -> tuple[list[float], list[float]]:
    """Accuracy in percent within windows of whole batches, none of which reaches into another domain.

    Each is given with the middle of its images in the stream.
    """
    domains = [list(batches) for _, batches in groupby(records, key=lambda record: record.domain)]
    most = WINDOWS if len({record.domain for record in records}) > 1 else 10 * WINDOWS
    middles = []
    shares = []
    seen = 0
    for batches in domains:
        images = sum(record.images for record in batches)
        count = max(1, min(most, len(batches), images // WINDOW_IMAGES))
        for window in np.array_split(np.arange(len(batches)), count):
            size = sum(batches[i].images for i in window)
            correct = sum(batches[i].correct for i in window)
            middles.append(seen + size / 2)
            shares.append(100 * correct / size)
            seen += size
    return middles, shares


def domain_spans(records: Sequence[BatchRecord], severity: int) -> list[Span]:
    """Say from which image to which the stream was in a domain; nothing where it is one all along."""
    spans: list[Span] = []
    seen = 0
    for name, batches in groupby(records, key=lambda record: record.domain):
        begin = seen
        seen += sum(record.images for record in batches)
        spans.append(Span(begin, seen, full_name(name, severity)))
    return spans if len(spans) > 1 else []


def over_stream(runs: Mapping[str, Run], colours: Mapping[str, int], severity: int) -> Markup:
    """Draw a curve for each row: the best rows and the base in front, the others faint behind them."""
    ranked = sorted(runs.keys() - {BASE}, key=lambda label: -runs[label].measures.average)
    front = {BASE, *ranked[: MAX_CURVES - 1]}
    series = []
    for label in sorted(runs, key=lambda label: label in front):
        middles, shares = windows(runs[label].records())
        dashed = runs[label].experiment.constants is not None
        series.append(Series(label, middles, shares, colours[label], dashed, faint=label not in front))
    spans = domain_spans(next(iter(runs.values())).records(), severity)
    if len(spans) > MAX_SPANS:  # a stream that comes back again and again
        spans = []
    return line_chart("Accuracy along the stream", series, "" if spans else "images", "accuracy (%)", spans=spans)


def _sweep(group: Group, table: Table, axis: str) -> Markup:
    position = {run.experiment.title: run.experiment.x for run in group.runs if run.experiment.axis == axis}
    column = table.columns.index(AVERAGE)
    points: list[tuple[float, Cell]] = []
    for label, cells in table.rows:
        x = position.get(label)
        cell = cells[column]
        if x is not None and cell is not None:
            points.append((x, cell))
    ours = Series("ours, with 95 % interval", [x for x, _ in points], [cell.ours for _, cell in points], 1)
    within = [cell.within for _, cell in points if cell.within]
    series = [replace(ours, low=[each.low for each in within], high=[each.high for each in within])]
    paper = [(x, cell.paper) for x, cell in points if cell.paper is not None]
    if paper:
        series.append(Series("paper", [x for x, _ in paper], [y for _, y in paper], 2, dashed=True))
    return line_chart(f"Accuracy against {axis}", series, axis, "accuracy (%)", dots=True)


def conclusions(group: Group, gained: Gained) -> dict[str, str]:
    """Say what the numbers of a column amount to, by column."""
    said = {}
    for side in _sides(group):
        rows = gained.get(side, {})
        sentences = [_best_row(group, side)]
        if len(rows) > 1:  # with one row the first sentence says it all
            sentences.append(_against_base(rows))
        if any(sentences):
            said[side] = " ".join(filter(None, sentences))
    return said


def _best_row(group: Group, side: str) -> str:
    rows = {label: group.of(label, side) for label in group.labels}
    averages = {label: fmean(run.measures.average for run in runs) for label, runs in rows.items() if runs}
    if len(averages) < 2:
        return ""
    best, second, *_ = sorted(averages, key=lambda label: -averages[label])
    value = f"{averages[best]:.1f} %"
    paired = gains(rows[best], rows[second])
    if paired is None or paired.mean.side <= 0:
        return f"{best} is highest with {value}, not significantly ahead of {second}."
    return f"{best} is best with {value}, {paired.mean} points ahead of {second}."


def _against_base(gained: Mapping[str, Gains]) -> str:
    sides: dict[str, list[str]] = {name: [] for name in (*SIDES.values(), UNKNOWN)}
    means = {label: rows.mean for label, rows in gained.items()}
    for label, gain in sorted(means.items(), key=lambda entry: -entry[1].value):
        side = UNKNOWN if gain.within is None else SIDES[gain.side]
        sides[side].append(f"{label} {signed(gain.value)}")
    said = (f"{side}: {few(labels)}" for side, labels in sides.items() if labels)
    return f"Points against {BASE}: {'; '.join(said)}."


def few(words: Sequence[str]) -> str:
    """List words, the first ones where there are many."""
    if len(words) <= MAX_NAMES + 1:
        return ", ".join(words)
    return ", ".join([*words[:MAX_NAMES], f"{len(words) - MAX_NAMES} more"])


def write_timeline(events: Path, out: Path) -> Path:
    check_output(out)
    write_page(out, timeline_page(events.name, read_events(events)))
    return out


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the lines; a torn last one is left out, any other damage is refused."""
    lines: list[dict[str, Any]] = []
    with open_regular(path) as file:
        while line := file.readline(MAX_LINE):
            try:
                payload = parse_json(line)
                _check_event(payload)
                if len(lines) == MAX_LINES:
                    raise ValueError("there are too many lines")
            except (TypeError, ValueError) as error:
                if not line.endswith(b"\n"):  # the watch was killed while it wrote
                    break
                raise FozoError(
                    f"line {len(lines) + 1} of {path} was not written by fozo watch ({error}); give its --events file"
                ) from error
            lines.append(payload)
    if not any(line["type"] == "reading" for line in lines):
        raise FozoError(f"{path} holds no reading; give what fozo watch --events wrote")
    return lines


def _check_event(line: Mapping[str, Any]) -> None:
    """Refuse a line that is neither a reading nor an event with a ValueError."""
    if line.get("type") not in ("reading", "event"):
        raise ValueError("it is neither a reading nor an event")
    if type(line.get("image")) is not int or not isinstance(line.get("time"), (int, float)):
        raise ValueError("it lacks the image or the time")
    if line["type"] == "event" and not all(isinstance(line.get(key), str) for key in ("name", "text")):
        raise ValueError("the event lacks a name or a text")
    for picture in dict(line.get("thumbnails") or {}).values():
        check_thumbnail(picture)


def timeline_page(name: str, lines: Sequence[dict[str, Any]]) -> str:
    readings = [line for line in lines if line["type"] == "reading"]
    events = [line for line in lines if line["type"] == "event"]
    return render(
        "timeline.html",
        title=f"fozo: drift and expected accuracy, {name}",
        name=name,
        images=readings[-1]["image"],
        sentence=str(readings[-1].get("sentence", "")),
        events=events,
        thumbnails=THUMBNAILS if any(event.get("thumbnails") for event in events) else (),
        clock=clock,
        charts=_timeline_charts(readings),
    )


def _timeline_charts(readings: Sequence[dict[str, Any]]) -> list[Markup]:
    charts = []
    accuracies = {
        "expected_accuracy": "Expected accuracy",
        "relative_accuracy": "Expected accuracy relative to clean images",
    }
    for key, title in accuracies.items():
        expected = _series("expected", readings, (key,), 100.0)
        low = _series("low", readings, (f"{key}_low",), 100.0)
        high = _series("high", readings, (f"{key}_high",), 100.0)
        if expected.x and expected.x == low.x == high.x:
            band = replace(expected, low=low.y, high=high.y)
            charts.append(line_chart(f"{title}, with its 95 % interval", [band], "images", "%"))
    ratio = _series("distance over threshold", readings, ("drift_ratio",))
    if ratio.x:
        threshold = replace(ratio, label="threshold", y=[1.0] * len(ratio.x), colour=0, dashed=True)
        charts.append(
            line_chart("Distance from clean images over its threshold", [ratio, threshold], "images", "ratio")
        )
    changes = [replace(_series(name, readings, ("quality", name)), colour=place) for place, name in enumerate(DRAWN)]
    if all(change.x for change in changes):
        units = "; ".join(f"{each.name}: {each.meaning}" for each in STATISTICS if each.name in DRAWN)
        title = "Change of image quality against clean images, in stops and natural logarithms"
        charts.append(line_chart(title, changes, f"images. {units}", "change"))
    return charts


def _series(label: str, readings: Sequence[dict[str, Any]], keys: tuple[str, ...], scale: float = 1.0) -> Series:
    points = []
    for line in readings:
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)):
            points.append((float(line["image"]), scale * float(value)))
    return Series(label, [x for x, _ in points], [y for _, y in points], 1)
