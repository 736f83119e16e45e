"""The report of ``fozo bench``: one page, and the same tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from markupsafe import Markup

from fozo.bench.gains import BASE, Gained, over_base
from fozo.bench.plan import AVERAGE
from fozo.bench.recipes.paper import PAPERS_MODEL
from fozo.bench.report.figures import charts, conclusions
from fozo.bench.report.render import assign_colours, render, write_page
from fozo.bench.report.tables import Cell, Table, comma_separated, number, table_of
from fozo.bench.store import Group, collect, stores
from fozo.io import check_output

COSTS = ("ECE", "Passes", "Time (s)", "Memory (MiB)", "#Params")


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
