"""The tables of a report as values, and their Markdown, CSV and LaTeX forms."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from fozo.bench.collect import Group, Run
from fozo.bench.measures import at_budget, within_domains
from fozo.bench.recipe import AVERAGE
from fozo.data.corruptions import KINDS

HEADINGS = (
    "Gauss",
    "Shot",
    "Impul",
    "Defcs",
    "Gls",
    "Mtn",
    "Zm",
    "Snw",
    "Frst",
    "Fg",
    "Brt",
    "Cnt",
    "Els",
    "Px",
    "JPG",
)
SHORT = dict(zip(KINDS, HEADINGS, strict=True))
"""The paper's headings."""
FULL_BUDGET = 1400.0
"""Seconds of the last budget of Table C.1, which is one corruption's run of FOZO."""


@dataclass(frozen=True)
class Cell:
    """A number of ours, how sure it is, and the paper's."""

    ours: float
    low: float | None = None
    high: float | None = None
    spread: float | None = None
    """Standard deviation over seeds, where there are several."""
    paper: float | None = None
    digits: int = 1

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        return None if self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Table:
    """Rows of cells; a cell is ``None`` where nothing was run."""

    name: str
    title: str
    setting: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]


def _cell(
    runs: Sequence[Run], value: Callable[[Run], float], paper: float | None = None, digits: int = 1
) -> Cell | None:
    if not runs:
        return None
    values = [value(run) for run in runs]
    return Cell(mean(values), spread=stdev(values) if len(values) > 1 else None, paper=paper, digits=digits)


def _sure(cell: Cell | None, runs: Sequence[Run], key: str, name: str | None = None) -> Cell | None:
    """Add the interval: from the lowest to the highest that any seed's own interval reaches."""
    if cell is None:
        return None
    found = [run.measures[key] if name is None else run.measures[key][name] for run in runs]
    low, high = min(i["low"] for i in found), max(i["high"] for i in found)
    return Cell(cell.ours, low, high, cell.spread, cell.paper, cell.digits)


def table_of(group: Group) -> Table:
    """Make the table that a recipe's paper counterpart has, with what else was measured to its right."""
    columns: dict[str, dict[str, Cell | None]] = {}
    labels = group.labels
    sides = list(dict.fromkeys(run.row.column for run in group.runs))
    domains = (
        list(dict.fromkeys(d for run in group.runs for d in run.measures["domains"])) if sides == [AVERAGE] else []
    )
    budgets = _budgets(group)
    if len(domains) > 1 and not budgets:  # Table C.1 has its budgets instead
        for domain in domains:
            kind = domain.split("/")[0]
            name = SHORT.get(kind, kind) if domain.endswith(f"/{_level(group)}") else domain
            columns[name] = {}
            for label in labels:
                paper = group.of(label)[0].row.paper.get(kind)
                runs = [run for run in group.of(label) if domain in run.measures["domains"]]
                cell = _cell(runs, lambda run, d=domain: run.measures["domains"][d], paper)  # type: ignore[misc]
                columns[name][label] = _sure(cell, runs, "domain_intervals", domain)
    for side in sides:
        columns[side] = {}
        for label in labels:
            runs = group.of(label, side)
            paper = runs[0].row.paper.get(side) if runs else None
            cell = _cell(runs, lambda run: run.measures["average"], paper, 2)
            columns[side][label] = _sure(cell, runs, "average_interval")
    columns.update(budgets)
    if sides == [AVERAGE]:
        columns.update(_costs(group))
    rows = tuple((label, tuple(columns[name][label] for name in columns)) for label in labels)
    return Table(group.recipe.name, group.recipe.title, group.setting, tuple(columns), rows)


def _level(group: Group) -> int:
    return int(group.runs[0].result["stream"]["severity"])


def _digits(group: Group) -> int:
    """Passes are whole numbers unless a method chooses them batch by batch."""
    return 0 if all(float(run.result["passes"]).is_integer() for run in group.runs) else 2


def _costs(group: Group) -> dict[str, dict[str, Cell | None]]:
    """What it took, and calibration: the paper's figures where it has them."""
    facts: dict[str, tuple[Callable[[Run], float], str, int]] = {
        "Top-5": (lambda run: run.measures["top5"], "", 1),
        "ECE": (lambda run: run.measures["ece"], "", 1),
        "Passes": (lambda run: run.result["passes"], "", _digits(group)),
        "Time (s)": (lambda run: run.conditions["seconds"], "seconds", 0),
        "Memory (MiB)": (lambda run: run.conditions["memory"] / 2**20, "memory", 0),
        "#Params": (lambda run: run.result["parameters"], "parameters", 0),
    }
    return {
        name: {
            label: _cell(group.of(label), value, group.of(label)[0].row.paper.get(key), digits)
            for label in group.labels
        }
        for name, (value, key, digits) in facts.items()
    }


def _budgets(group: Group) -> dict[str, dict[str, Cell | None]]:
    """Table C.1's columns: the accuracy at shares of the time that FOZO takes for one corruption."""
    wanted = list(dict.fromkeys(key for run in group.runs for key in run.row.paper if key.endswith(" s")))
    whole = next((label for label in group.labels if label.partition(" at ")[0] == "FOZO"), None)
    if not wanted or whole is None:
        return {}
    curves = {label: within_domains(group.first(label).records(), group.first(label).costs()) for label in group.labels}
    full = mean(float(times[-1]) for times, _, _ in curves[whole])
    return {
        budget: {
            label: Cell(
                at_budget(curves[label], float(budget.removesuffix(" s")) / FULL_BUDGET * full),
                paper=group.first(label).row.paper.get(budget),
            )
            for label in group.labels
        }
        for budget in wanted
    }


def number(value: float, digits: int) -> str:
    """Write a number; large ones with thin groups of three."""
    return f"{value:,.{digits}f}"


def signed(value: float, digits: int) -> str:
    """Write a difference with its sign."""
    return f"{value:+,.{digits}f}"


def words(cell: Cell | None) -> str:
    """Write a cell in plain text: ours ± spread (paper's, difference)."""
    if cell is None:
        return "-"
    text = number(cell.ours, cell.digits)
    if cell.spread is not None:
        text += f" ± {number(cell.spread, max(1, cell.digits))}"
    if cell.paper is not None and cell.difference is not None:
        text += f" (paper {number(cell.paper, cell.digits)}, {signed(cell.difference, cell.digits)})"
    return text


def markdown(tables: Sequence[Table]) -> str:
    """All tables in Markdown."""
    parts = []
    for table in tables:
        lines = [f"## {table.title}", "", table.setting, "", "| | " + " | ".join(table.columns) + " |"]
        lines.append("|---|" + "---:|" * len(table.columns))
        lines += [f"| {label} | " + " | ".join(map(words, cells)) + " |" for label, cells in table.rows]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def comma_separated(tables: Sequence[Table]) -> str:
    """All cells, one a line."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["recipe", "setting", "row", "column", "ours", "low", "high", "spread", "paper", "difference"])
    for table in tables:
        for label, cells in table.rows:
            for column, cell in zip(table.columns, cells, strict=True):
                if cell is not None:
                    numbers = (cell.ours, cell.low, cell.high, cell.spread, cell.paper, cell.difference)
                    plain = ["" if value is None else f"{value:.4f}" for value in numbers]
                    writer.writerow([table.name, table.setting, label, column, *plain])
    return text.getvalue()


def _tex(text: str) -> str:
    for character in "&%#_":
        text = text.replace(character, "\\" + character)
    return text


def latex(tables: Sequence[Table]) -> str:
    """All tables in LaTeX with booktabs; the paper's numbers in gray below ours."""
    parts = ["% \\usepackage{booktabs,xcolor}"]
    for table in tables:
        lines = [
            "\\begin{table*}[t]\\centering\\small",
            f"\\begin{{tabular}}{{@{{}}l*{{{len(table.columns)}}}{{r}}@{{}}}}",
            "\\toprule",
            " & ".join(["", *map(_tex, table.columns)]) + " \\\\",
            "\\midrule",
        ]
        for label, cells in table.rows:
            ours = ["--" if cell is None else number(cell.ours, cell.digits) for cell in cells]
            lines.append(" & ".join([_tex(label), *ours]) + " \\\\")
            if any(cell is not None and cell.paper is not None for cell in cells):
                theirs = [
                    ""
                    if cell is None or cell.paper is None
                    else f"\\textcolor{{gray}}{{{number(cell.paper, cell.digits)}}}"
                    for cell in cells
                ]
                lines.append(" & ".join(["\\quad paper", *theirs]) + " \\\\")
        caption = f"{table.title}. {table.setting}."
        lines += ["\\bottomrule", "\\end{tabular}", f"\\caption{{{_tex(caption)}}}", "\\end{table*}"]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"
