"""The report of ``fozo bench``: one page of tables, charts and sentences; the tables as Markdown, CSV and LaTeX too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from markupsafe import Markup

from fozo.bench.gains import BASE, Gain, Gained, Gains, gains, over_base, signed
from fozo.bench.measures import BatchRecord
from fozo.bench.plan import AVERAGE, TUNED
from fozo.bench.recipes.paper import PAPERS_MODEL
from fozo.bench.report.render import Series, Span, assign_colours, line_chart, render, write_page
from fozo.bench.report.tables import Cell, Table, comma_separated, full_name, number, table_of
from fozo.bench.store import Group, Run, collect, stores
from fozo.errors import FozoError
from fozo.io import check_output, open_regular, parse_json
from fozo.monitor.monitor import clock
from fozo.monitor.quality import STATISTICS
from fozo.monitor.state import check_thumbnail

COSTS = ("ECE", "Passes", "Time (s)", "Memory (MiB)", "#Params")
MAX_COLUMNS = 8  # columns of a table that have charts and conclusions of their own
STRONG = 6  # curves that a reader can follow: the best ones and the base; others are drawn behind them
WINDOW = 128  # fewest images that a point of an accuracy over time is of, in whole batches
WINDOWS = 4  # points of a domain, at most
MAX_NAMES = 5  # rows that a sentence names of those on one side
SIDES = {1: "significantly above", 0: "not significantly different", -1: "significantly below"}
UNKNOWN = "without an interval"
MAX_LINE = 1 << 20  # bytes of a line
MAX_LINES = 200_000  # lines of a file: at 8 images a batch, more than a million images
DRAWN = ("brightness", "contrast", "saturation", "fine detail", "noise", "blockiness")  # of image quality
THUMBNAILS = ("camera", "equalised")  # pictures that an event may have: what the camera saw, and what the model read


def write_report(root: Path, out: Path) -> tuple[list[Path], list[str]]:
    """Write the page to ``out`` and the tables beside it; return these files, and the stale runs below ``root``."""
    check_output(out)
    made = chapters({f"{group.recipe.name}-{number}": group for number, group in enumerate(collect(root))})
    tables = [chapter.table for chapter in made]
    stale = [str(path.relative_to(root)) for store in stores(root) for path in store.stale()]
    texts = {
        out: render("report.html", title="fozo: results", chapters=made, stale=stale),
        out.with_suffix(".md"): render("tables.md", tables=tables),
        out.with_suffix(".csv"): comma_separated(tables),
        out.with_suffix(".tex"): render("tables.tex", tables=tables),
    }
    for path, text in texts.items():
        write_page(path, text)
    return list(texts), stale


def chapters(groups: Mapping[str, Group]) -> list[Chapter]:
    """Compare the rows of groups by id; a method has the same colour in all of them."""
    places = assign_colours(label for group in groups.values() for label in group.labels)
    gained = {id: over_base(group) for id, group in groups.items()}
    return [Chapter(id, each, gained[id], table_of(each, gained[id]), places) for id, each in groups.items()]


@dataclass(frozen=True)
class Chapter:
    """A group of runs with what the page shows of it."""

    id: str
    group: Group
    gained: Gained
    table: Table
    colours: Mapping[str, int]
    base: ClassVar[str] = BASE
    PAPERS_MODEL: ClassVar[str] = PAPERS_MODEL  # numbers of others are not compared with the paper's

    @property
    def parts(self) -> list[tuple[str, str, Sequence[Markup]]]:
        drawn = charts(self.group, self.table, self.colours)
        said = conclusions(self.group, self.gained)
        return [
            ("" if side == AVERAGE else side[:1].upper() + side[1:], said.get(side, ""), drawn.get(side, ()))
            for side in dict.fromkeys([*said, *drawn])
        ]

    @property
    def best(self) -> list[str | None]:
        """The highest number of each column as written, where it is an accuracy and there are several rows."""
        found: list[str | None] = []
        for index, name in enumerate(self.table.columns):
            column = [cell for _, cells in self.table.rows if (cell := cells[index]) is not None]
            top = max(column, key=lambda cell: cell.ours, default=None)
            compared = top is not None and name not in COSTS and len(self.table.rows) > 1
            found.append(number(top.ours, top.digits) if compared and top is not None else None)
        return found

    @property
    def cells(self) -> list[Cell]:
        return [cell for _, cells in self.table.rows for cell in cells if cell is not None]

    @property
    def papers_model(self) -> bool:
        return self.PAPERS_MODEL in self.group.setting

    @property
    def conditions(self) -> dict[str, list[str]]:
        """What the numbers were measured on, and with which commands: each value once."""
        found: dict[str, list[str]] = {}
        for run in self.group.runs:
            had, machine = run.conditions, run.conditions.environment
            packages = ", ".join(f"{name} {version}" for name, version in machine.packages.items())
            for name, value in (
                ("Processor", f"{machine.processor}, {machine.cores} cores, {machine.threads} threads"),
                ("Device", machine.device),
                ("Software", f"Python {machine.python} on {machine.system}; {packages}"),
                ("Weights", had.weights),
                ("Stream", had.stream_fingerprint),
                ("Calibrated on", had.calibrated_on),
                ("Seeds", str(run.experiment.seed)),
                ("Command", had.command),
            ):
                if value and value not in found.setdefault(name, []):
                    found[name].append(value)
        return found


def charts(group: Group, table: Table, colours: Mapping[str, int]) -> dict[str, list[Markup]]:
    """Draw what there is to be seen of a group, by column of its table; charts that would be empty are left out."""
    sweeps = list(dict.fromkeys(run.experiment.axis for run in group.runs if run.experiment.x is not None))
    if sweeps:
        return {AVERAGE: [_sweep(group, table, axis) for axis in sweeps]}
    found = {}
    for side in group.columns if len(group.columns) <= MAX_COLUMNS else ():
        runs = {label: group.of(label, side)[0] for label in group.labels if group.of(label, side)}
        drawn = over_stream(runs, colours, next(iter(runs.values())).experiment.stream.severity)
        found[side] = [drawn] if drawn else []
    return found


def windows(records: Sequence[BatchRecord]) -> tuple[list[float], list[float]]:
    """Accuracy in percent within windows of whole batches, none of which reaches into another domain.

    Each is given with the middle of its images in the stream.
    """
    middles, shares, seen = [], [], 0
    most = WINDOWS if len({record.domain for record in records}) > 1 else 10 * WINDOWS
    for _, run in groupby(records, key=lambda record: record.domain):
        own = list(run)
        count = max(1, min(most, len(own), sum(record.images for record in own) // WINDOW))
        for part in np.array_split(np.arange(len(own)), count):
            size = sum(own[i].images for i in part)
            middles.append(seen + size / 2)
            shares.append(100 * sum(own[i].correct for i in part) / size)
            seen += size
    return middles, shares


def domain_spans(records: Sequence[BatchRecord], severity: int) -> list[Span]:
    """Say from which image to which the stream was in a domain; nothing where it is one all along."""
    spans, seen = [], 0
    for name, run in groupby(records, key=lambda record: record.domain):
        images = sum(record.images for record in run)
        spans.append(Span(seen, seen + images, full_name(name, severity)))
        seen += images
    return spans if len(spans) > 1 else []


def over_stream(runs: Mapping[str, Run], colours: Mapping[str, int], severity: int) -> Markup:
    """Draw a curve for each row: the best rows and the base in front, the others faint behind them."""
    ranked = sorted(runs, key=lambda label: -runs[label].measures.average)
    front = {BASE, *[label for label in ranked if label != BASE][: STRONG - 1]}
    series = [
        Series(label, *windows(runs[label].records()), colours[label], label.endswith(TUNED), faint=label not in front)
        for label in sorted(runs, key=lambda label: label in front)
    ]
    spans = domain_spans(next(iter(runs.values())).records(), severity)
    if len(spans) > 40:  # a stream that comes back again and again: names would not be read
        spans = []
    return line_chart("Accuracy along the stream", series, "" if spans else "images", "accuracy (%)", spans=spans)


def _sweep(group: Group, table: Table, axis: str) -> Markup:
    places = {run.experiment.label: run.experiment.x for run in group.runs if run.experiment.axis == axis}
    cells = {label: row[table.columns.index(AVERAGE)] for label, row in table.rows}
    points = [(x, cell) for label, x in places.items() if x is not None and (cell := cells[label]) is not None]
    x, ours, within = [x for x, _ in points], [c.ours for _, c in points], [c.within for _, c in points if c.within]
    low, high = [each.low for each in within], [each.high for each in within]
    series = [Series("ours, with 95 % interval", x, ours, 1, low=low, high=high)]
    paper = [(x, cell.paper) for x, cell in points if cell.paper is not None]
    if paper:
        series.append(Series("paper", [x for x, _ in paper], [y for _, y in paper], 2, dashed=True))
    return line_chart(f"Accuracy against {axis}", series, axis, "accuracy (%)", dots=True)


def conclusions(group: Group, gained: Gained) -> dict[str, str]:
    found = {}
    for side in group.columns if len(group.columns) <= MAX_COLUMNS else ():
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


def write_timeline(events: Path, out: Path) -> Path:
    check_output(out)
    write_page(out, timeline_page(events.name, read_events(events)))
    return out


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read the lines; a torn last one is left out, any other damage is refused."""
    found: list[dict[str, Any]] = []
    with open_regular(path) as file:
        while line := file.readline(MAX_LINE):
            try:
                payload = parse_json(line)
                if payload.get("type") not in ("reading", "event") or len(found) == MAX_LINES:
                    raise ValueError("it is neither a reading nor an event, or there are too many lines")
                if type(payload.get("image")) is not int or not isinstance(payload.get("time"), (int, float)):
                    raise ValueError("it lacks the image or the time")
                if payload["type"] == "event" and not all(
                    isinstance(payload.get(key), str) for key in ("name", "text")
                ):
                    raise ValueError("the event lacks a name or a text")
                for picture in dict(payload.get("thumbnails") or {}).values():
                    check_thumbnail(picture)
            except (TypeError, ValueError) as error:
                if not line.endswith(b"\n"):  # the watch was killed while it wrote
                    break
                raise FozoError(
                    f"line {len(found) + 1} of {path} was not written by fozo watch ({error}); give its --events file"
                ) from error
            found.append(payload)
    if not any(line["type"] == "reading" for line in found):
        raise FozoError(f"{path} holds no reading; give what fozo watch --events wrote")
    return found


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
    for title, key, unit in (
        ("Expected accuracy, with its 95 % interval", "expected_accuracy", "accuracy (%)"),
        ("Expected accuracy relative to clean images, with its 95 % interval", "relative_accuracy", "relative (%)"),
    ):
        expected, low, high = (_series("expected", readings, (key + end,), 100.0, 1) for end in ("", "_low", "_high"))
        if list(expected.x) == list(low.x) == list(high.x) != []:
            charts.append(line_chart(title, [replace(expected, low=low.y, high=high.y)], "images", unit))
    ratio = _series("distance over threshold", readings, ("drift_ratio",), 1.0, 1)
    if ratio.x:
        threshold = replace(ratio, label="threshold", y=[1.0] * len(ratio.x), colour=0, dashed=True)
        charts.append(
            line_chart("Distance from clean images over its threshold", [ratio, threshold], "images", "ratio")
        )
    changes = [_series(name, readings, ("quality", name), 1.0, i) for i, name in enumerate(DRAWN)]
    if all(each.x for each in changes):
        units = "; ".join(f"{each.name}: {each.meaning}" for each in STATISTICS if each.name in DRAWN)
        title = "Change of image quality against clean images, in stops and natural logarithms"
        charts.append(line_chart(title, changes, f"images. {units}", "change"))
    return charts


def _series(label: str, readings: Sequence[dict[str, Any]], keys: tuple[str, ...], scale: float, colour: int) -> Series:
    points = []
    for line in readings:
        value: Any = line
        for key in keys:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, (int, float)):
            points.append((float(line["image"]), scale * float(value)))
    return Series(label, [x for x, _ in points], [y for _, y in points], colour)
