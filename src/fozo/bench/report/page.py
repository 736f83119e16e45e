"""The report: one HTML page that needs no network and no script, and the same tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np

from fozo.bench.measures import over_time, within_domains
from fozo.bench.plan import AVERAGE
from fozo.bench.report.charts import Series, bar_chart, line_chart
from fozo.bench.report.tables import SHORT, Cell, Table, comma_separated, latex, markdown, number, table_of
from fozo.bench.store import Group, collect, stores
from fozo.io import atomic_write, check_output, disk_errors

COLOURS = 17
COSTS = ("ECE", "Passes", "Time (s)", "Memory (MiB)", "#Params")
CLOSE = 1.0
"""Points of accuracy within which a number counts as agreeing with the paper's."""


def write_report(root: Path, out: Path) -> tuple[list[Path], list[str]]:
    """Write the page to ``out`` and the tables beside it; return these files, and the stale runs below ``root``."""
    check_output(out)
    groups = collect(root)
    tables = [table_of(group) for group in groups]
    stale = [str(path.relative_to(root)) for store in stores(root) for path in store.stale()]
    made = {
        out: page(groups, tables, stale),
        out.with_suffix(".md"): markdown(tables),
        out.with_suffix(".csv"): comma_separated(tables),
        out.with_suffix(".tex"): latex(tables),
    }
    for path, text in made.items():
        with disk_errors(path), atomic_write(path) as stream:
            stream.write(text.encode("utf-8", "backslashreplace"))  # folders and commands may hold any bytes
    return list(made), stale


def page(groups: Sequence[Group], tables: Sequence[Table], stale: Sequence[str] = ()) -> str:
    """Make the page; ``stale`` names folders of runs that are not on it."""
    style = files("fozo.bench.report").joinpath("report.css").read_text(encoding="utf-8")
    names = [f"{group.recipe.name}-{number}" for number, group in enumerate(groups)]
    links = "".join(
        f'<li><a href="#{escape(name)}">{escape(group.recipe.title)}</a><small>{escape(group.setting)}</small></li>'
        for name, group in zip(names, groups, strict=True)
    )
    sections = "".join(_section(*one) for one in zip(names, groups, tables, strict=True))
    if stale:
        listed = "".join(f"<li><code>{escape(path)}</code></li>" for path in stale)
        sections += (
            f"<section><details><summary>Not shown: {len(stale)} runs of options or rows that the recipes do not have "
            f"any more</summary><ul>{listed}</ul></details></section>"
        )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>fozo: results</title><style>{style}</style></head><body><main>"
        "<header><h1>fozo: results</h1><p>Each cell shows our number, below it the paper's and the difference, where "
        "the paper has one. Accuracies are in percent; hover over a number for its 95 % interval.</p>"
        f"<nav><ul>{links}</ul></nav></header>{sections}</main></body></html>\n"
    )


def _section(name: str, group: Group, table: Table) -> str:
    note = f'<p class="note">{escape(group.recipe.note)}</p>' if group.recipe.note else ""
    return (
        f'<section id="{escape(name)}"><h2>{escape(group.recipe.title)}</h2>'
        f'<p class="setting">{escape(group.setting)}</p>{note}{_table(table)}'
        f'<div class="charts">{"".join(_charts(group, table))}</div>'
        f"{_conditions(group)}</section>"
    )


def _table(table: Table) -> str:
    """Write a table; the best of each column of accuracies is marked, where there are several rows."""
    best = np.argmax([[-1.0 if cell is None else cell.ours for cell in cells] for _, cells in table.rows], axis=0)
    marked = [name not in COSTS and len(table.rows) > 1 for name in table.columns]
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in table.columns)
    body = ""
    for place, (label, cells) in enumerate(table.rows):
        shown = "".join(_cell(cell, marked[i] and best[i] == place) for i, cell in enumerate(cells))
        body += f'<tr><th scope="row">{escape(label)}</th>{shown}</tr>'
    return f'<div class="scroll"><table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(cell: Cell | None, best: bool) -> str:
    if cell is None:
        return '<td class="none">–</td>'
    hint = "" if cell.low is None or cell.high is None else f' title="95 % interval: {cell.low:.2f} to {cell.high:.2f}"'
    std = "" if cell.std is None else f"<small> ± {number(cell.std, max(1, cell.digits))}</small>"
    ours = f'<span class="ours{" best" if best else ""}">{number(cell.ours, cell.digits)}</span>{std}'
    theirs = ""
    if cell.paper is not None and cell.difference is not None:
        kind = "near" if abs(cell.difference) <= CLOSE else "above" if cell.difference > 0 else "below"
        accuracy = cell.digits > 0  # seconds and megabytes of another machine are no better or worse
        gap = f' <span class="{kind}">{number(cell.difference, cell.digits, "+")}</span>' if accuracy else ""
        theirs = f'<span class="paper">{number(cell.paper, cell.digits)}{gap}</span>'
    return f"<td{hint}>{ours}{theirs}</td>"


def _charts(group: Group, table: Table) -> list[str]:
    labels = group.labels
    colours = {label: i % COLOURS for i, label in enumerate(labels)}
    sweeps = list(dict.fromkeys(run.experiment.axis for run in group.runs if run.experiment.x is not None))
    if sweeps:
        return [_sweep(group, table, axis) for axis in sweeps]
    if any(run.experiment.column != AVERAGE for run in group.runs):
        return []
    time, passes = [], []
    for label in labels:
        run = group.first(label)
        records = run.records()
        images, accuracy = over_time(records)
        time.append(Series(label, images.tolist(), accuracy.tolist(), colours[label]))
        curves = within_domains(records, run.costs())
        length = min(len(spent) for _, spent, _ in curves)
        spent = np.mean([spent[:length] for _, spent, _ in curves], axis=0)
        reached = np.mean([accuracy[:length] for _, _, accuracy in curves], axis=0)
        passes.append(Series(label, spent.tolist(), reached.tolist(), colours[label]))
    charts = [
        line_chart("Accuracy of all images so far", time, "images", "accuracy (%)"),
        line_chart(
            "Accuracy within a domain against forward passes spent on it, mean over domains",
            passes, "forward passes (logarithmic)", "accuracy (%)", log=True,
        ),
    ]  # fmt: skip
    domains = list(group.first(labels[0]).measures.domains)
    if len(domains) > 1 and all(list(group.first(label).measures.domains) == domains for label in labels):
        bars = [
            Series(label, [], [group.first(label).measures.domains[d] for d in domains], colours[label])
            for label in labels
        ]
        names = [SHORT.get(domain.split("/")[0], domain) for domain in domains]
        charts.append(bar_chart("Accuracy under each corruption", names, bars, "accuracy (%)"))
    return charts


def _sweep(group: Group, table: Table, axis: str) -> str:
    """Draw accuracy against a hyper-parameter, ours and the paper's."""
    places = {run.experiment.label: run.experiment.x for run in group.runs if run.experiment.axis == axis}
    cells = {label: row[table.columns.index(AVERAGE)] for label, row in table.rows}
    points = [(x, cell) for label, x in places.items() if x is not None and (cell := cells[label]) is not None]
    paper = [(x, cell.paper) for x, cell in points if cell.paper is not None]
    series = [Series("ours", [x for x, _ in points], [cell.ours for _, cell in points], 0)]
    if paper:
        series.append(Series("paper", [x for x, _ in paper], [y for _, y in paper], 1, dashed=True))
    return line_chart(f"Accuracy against {axis}", series, axis, "accuracy (%)", dots=True)


def _conditions(group: Group) -> str:
    """Say what the numbers were measured on, and with which commands."""
    facts: dict[str, list[str]] = {}
    for run in group.runs:
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
            listed = facts.setdefault(name, [])
            if value and value not in listed:
                listed.append(value)
    rows = "".join(
        f"<dt>{escape(name)}</dt><dd>{'<br>'.join(f'<code>{escape(value)}</code>' for value in values)}</dd>"
        for name, values in facts.items()
        if values
    )
    return f"<details><summary>Conditions and commands</summary><dl>{rows}</dl></details>"
