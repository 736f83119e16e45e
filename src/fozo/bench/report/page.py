"""The report: one HTML page that needs no network and no script, and the same tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from fozo.bench.gains import BASE, Gains, over_base
from fozo.bench.plan import AVERAGE
from fozo.bench.report import colours
from fozo.bench.report.conclusions import conclusions
from fozo.bench.report.figures import charts
from fozo.bench.report.pictures import strip
from fozo.bench.report.tables import Cell, Table, comma_separated, latex, markdown, number, table_of
from fozo.bench.store import Group, collect, stores
from fozo.io import atomic_write, check_output, disk_errors

COSTS = ("ECE", "Passes", "Time (s)", "Memory (MiB)", "#Params")
CLOSE = 1.0
"""Points of accuracy within which a number counts as agreeing with the paper's."""
PAPERS_MODEL = "vit_base_patch16_224"
"""Numbers of other models are no better or worse than the paper's: they are shown without a verdict."""
MANY = 9
"""Columns of a table above which their headings are turned upright."""


def write_report(root: Path, out: Path, images: Path | None = None) -> tuple[list[Path], list[str]]:
    """Write the page to ``out`` and the tables beside it; return these files, and the stale runs below ``root``.

    With clean ``images`` the page shows one of them under each corruption; without, it shows no picture.
    """
    check_output(out)
    chapters = [Chapter.of(group) for group in collect(root)]
    tables = [chapter.table for chapter in chapters]
    stale = [str(path.relative_to(root)) for store in stores(root) for path in store.stale()]
    made = {
        out: page(chapters, stale, "" if images is None else strip(images, [chapter.group for chapter in chapters])),
        out.with_suffix(".md"): markdown(tables),
        out.with_suffix(".csv"): comma_separated(tables),
        out.with_suffix(".tex"): latex(tables),
    }
    for path, text in made.items():
        with disk_errors(path), atomic_write(path) as stream:
            stream.write(text.encode("utf-8", "backslashreplace"))  # folders and commands may hold any bytes
    return list(made), stale


@dataclass(frozen=True)
class Chapter:
    """A group of runs with what is computed of them once."""

    group: Group
    gained: Mapping[str, Mapping[str, Gains]]
    table: Table

    @classmethod
    def of(cls, group: Group) -> Chapter:
        """Compare its rows."""
        gained = over_base(group)
        return cls(group, gained, table_of(group, gained))


def document(title: str, body: str) -> str:
    """Put a page together that stands alone."""
    style = files("fozo.bench.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title><style>{style}{colours.css()}</style></head><body><main>{body}</main></body></html>\n"
    )


def page(chapters: Sequence[Chapter], stale: Sequence[str] = (), pictures: str = "") -> str:
    """Make the page; ``stale`` names folders of runs that are not on it."""
    groups = [chapter.group for chapter in chapters]
    names = [f"{group.recipe.name}-{number}" for number, group in enumerate(groups)]
    links = "".join(
        f'<li><a href="#{escape(name)}">{escape(group.recipe.title)}</a><small>{escape(group.setting)}</small></li>'
        for name, group in zip(names, groups, strict=True)
    )
    places = colours.assign(label for group in groups for label in group.labels)
    sections = "".join(section(name, one, places) for name, one in zip(names, chapters, strict=True))
    if stale:
        listed = "".join(f"<li><code>{escape(path)}</code></li>" for path in stale)
        sections += (
            f"<section><details><summary>Not shown: {len(stale)} runs of options or rows that the recipes do not have "
            f"any more</summary><ul>{listed}</ul></details></section>"
        )
    return document(
        "fozo: results",
        "<header><h1>fozo: results</h1><p>Accuracies are in percent. Differences are in points, of pairs: both methods "
        "saw the same images. Ranges are 95 % intervals; where one includes zero it is a tie.</p>"
        f"<nav><ul>{links}</ul></nav></header>{pictures}{sections}",
    )


def section(name: str, chapter: Chapter, places: Mapping[str, int]) -> str:
    """Make a section: what it says, its charts, its table, and how it was measured."""
    group, gained, table = chapter.group, chapter.gained, chapter.table
    note = f'<p class="note">{escape(group.recipe.note)}</p>' if group.recipe.note else ""
    said, drawn = conclusions(group, gained), charts(group, table, gained, places)
    body = ""
    for side in dict.fromkeys([*said, *drawn]):
        head = "" if side == AVERAGE else f"<h3>{escape(side[:1].upper() + side[1:])}</h3>"
        text = f'<p class="conclusion">{escape(said[side])}</p>' if side in said else ""
        pictures = "".join(drawn.get(side, ()))
        body += head + text + (f'<div class="charts">{pictures}</div>' if pictures else "")
    return (
        f'<section id="{escape(name)}"><h2>{escape(group.recipe.title)}</h2>'
        f'<p class="setting">{escape(group.setting)}</p>{note}{body}'
        f"{_table(group, table)}{_conditions(group)}</section>"
    )


def _table(group: Group, table: Table) -> str:
    """Write a table; all that share the highest accuracy of a column are marked, where there are several rows."""
    shown = [[None if cell is None else number(cell.ours, cell.digits) for cell in cells] for _, cells in table.rows]
    best: list[str | None] = []
    for place, name in enumerate(table.columns):
        column = [(cell.ours, text) for (_, cells), texts in zip(table.rows, shown, strict=True)
                  if (cell := cells[place]) is not None and (text := texts[place]) is not None]  # fmt: skip
        best.append(max(column)[1] if column and name not in COSTS and len(table.rows) > 1 else None)
    upright = ' class="upright"' if len(table.columns) > MANY else ""
    head = "".join(f'<th scope="col"><span>{escape(column)}</span></th>' for column in table.columns)
    papers = PAPERS_MODEL in group.setting
    body = ""
    for (label, cells), texts in zip(table.rows, shown, strict=True):
        row = "".join(
            _cell(cell, text is not None and text == best[i], papers)
            for i, (cell, text) in enumerate(zip(cells, texts, strict=True))
        )
        body += f'<tr><th scope="row">{escape(label)}</th>{row}</tr>'
    listed = [cell for _, cells in table.rows for cell in cells if cell is not None]
    hints = ["Bold: the highest of a column."] if any(best) else []
    if any(cell.gain is not None and cell.gain.side for cell in listed):
        hints.append(
            f'<span class="up">Green</span>: above {BASE} for sure, <span class="down">red</span>: below it, by the '
            "95 % interval of the paired difference; no colour: a tie."
        )
    if any(cell.paper is not None for cell in listed):
        own = "" if papers else f", which is of {PAPERS_MODEL} and is not to be compared with another model's"
        hints.append(f"Small: the paper's number{own}.")
    return (
        f'<div class="scroll"><table{upright}><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'
        f'</div><p class="hint">{" ".join(hints)}</p>'
    )


def _cell(cell: Cell | None, best: bool, papers: bool) -> str:
    if cell is None:
        return '<td class="none">–</td>'
    hint = "" if cell.low is None or cell.high is None else f"95 % interval: {cell.low:.1f} to {cell.high:.1f}"
    std = "" if cell.std is None else f"<small> ± {number(cell.std, max(1, cell.digits))}</small>"
    ours = f'<span class="ours{" best" if best else ""}">{number(cell.ours, cell.digits)}</span>{std}'
    side, below = "", ""
    if cell.gain is not None:
        side = {1: ' class="up"', -1: ' class="down"', 0: ""}[cell.gain.side]
        if cell.digits > 1:  # an average: there is room for the interval
            below = f'<span class="gain">{cell.gain}</span>'
        else:
            hint += f"; over {BASE}: {cell.gain}"
    elif cell.digits > 1 and cell.low is not None and cell.high is not None:
        below = f'<span class="gain">{cell.low:.1f} to {cell.high:.1f}</span>'
    if cell.paper is not None and cell.difference is not None:
        kind = "near" if abs(cell.difference) <= CLOSE else "above" if cell.difference > 0 else "below"
        accuracy = cell.digits > 0 and papers  # seconds and megabytes of another machine are no better or worse
        gap = f' <span class="{kind}">{number(cell.difference, cell.digits, "+")}</span>' if accuracy else ""
        below += f'<span class="paper">{number(cell.paper, cell.digits)}{gap}</span>'
    title = f' title="{escape(hint)}"' if hint else ""
    return f"<td{side}{title}>{ours}{below}</td>"


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
