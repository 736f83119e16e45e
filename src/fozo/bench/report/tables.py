"""The tables of a report as values, and their Markdown, CSV and LaTeX forms."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TypeAlias

from fozo.bench.gains import Gain, Gains
from fozo.bench.measures import Interval, at_budget, within_domains
from fozo.bench.store import Group, Run
from fozo.data.corruptions import KINDS

HEADINGS = "Gauss Shot Impul Defcs Gls Mtn Zm Snw Frst Fg Brt Cnt Els Px JPG"
SHORT = dict(zip(KINDS, HEADINGS.split(), strict=True))  # the paper's headings, for tables on paper
GAINS = ("gain", "gain_low", "gain_high")
"""What the CSV calls the difference to the row that nothing adapts in, and the ends of its interval."""
FULL_BUDGET = 1400.0  # seconds of the last budget of Table C.1, which is one corruption's run of FOZO


@dataclass(frozen=True)
class Cell:
    """A number of ours, its interval, and the paper's."""

    ours: float
    low: float | None = None
    high: float | None = None
    std: float | None = None  # standard deviation over seeds, where there are several
    paper: float | None = None
    digits: int = 1
    gain: Gain | None = None  # over the row that nothing adapts in, where it can be paired with it

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Table:
    """Rows of cells; a cell is ``None`` where nothing was run."""

    name: str
    title: str
    setting: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]

    @property
    def headings(self) -> list[str]:
        """The columns, corruptions by the paper's short names."""
        short = {full_name(kind): heading for kind, heading in SHORT.items()}
        return [short.get(column, column) for column in self.columns]


def full_name(domain: str, severity: int | None = None) -> str:
    """Write a domain's name out: ``Gaussian noise``; with its severity, unless that is the usual one."""
    kind, _, level = domain.partition("/")
    name = kind.replace("_", " ").replace("jpeg", "JPEG")
    name = name[:1].upper() + name[1:]
    return f"{name}, severity {level}" if level and level != str(severity) else name


Columns: TypeAlias = dict[str, dict[str, Cell | None]]  # cells by column and row
Number: TypeAlias = Callable[[Run], float]


def _cell(
    runs: Sequence[Run],
    value: Number,
    paper: str,
    digits: int = 1,
    interval: Callable[[Run], Interval] | None = None,
    gain: Gain | None = None,
) -> Cell | None:
    """Average a number over seeds; its interval reaches from the lowest to the highest of any seed's own."""
    if not runs:
        return None
    values = [value(run) for run in runs]
    within = [interval(run) for run in runs] if interval else []
    return Cell(
        mean(values),
        min((each.low for each in within), default=None),
        max((each.high for each in within), default=None),
        stdev(values) if len(values) > 1 else None,
        runs[0].experiment.paper.get(paper),
        digits,
        gain,
    )


def table_of(group: Group, gained: Mapping[str, Mapping[str, Gains]] | None = None) -> Table:
    """Make the table that a recipe's paper counterpart has, with what else was measured to its right.

    Where there is one kind of stream, a column for each of its domains comes first, and what it cost last.
    ``gained`` is what :func:`fozo.bench.gains.over_base` gave, for tables that show it.
    """
    gained = gained or {}
    sides = list(dict.fromkeys(run.experiment.column for run in group.runs))
    budgets = _budgets(group)
    # Table C.1 has its budgets instead of domains.
    alone = sides[0] if len(sides) == 1 else None
    columns: Columns = {} if alone is None or budgets else _domains(group, alone, gained.get(alone, {}))
    for side in sides:
        found = gained.get(side, {})
        columns[side] = {
            label: _cell(
                group.of(label, side), lambda r: r.measures.average, side, 2, lambda r: r.measures.average_interval,
                found[label].mean if label in found else None,
            )
            for label in group.labels
        }  # fmt: skip
    columns |= budgets
    if alone is not None:
        columns |= _costs(group, alone)
    rows = tuple((label, tuple(columns[name][label] for name in columns)) for label in group.labels)
    return Table(group.recipe.name, group.recipe.title, group.setting, tuple(columns), rows)


def _domains(group: Group, side: str, gained: Mapping[str, Gains]) -> Columns:
    """A column for each domain, where there are several, under its full name."""
    domains = list(dict.fromkeys(domain for run in group.runs for domain in run.measures.domains))
    usual = group.runs[0].experiment.stream.severity
    columns: Columns = {}
    for domain in domains if len(domains) > 1 else ():
        columns[full_name(domain, usual)] = {
            label: _domain_cell(group.of(label, side), domain, gained.get(label)) for label in group.labels
        }
    return columns


def _domain_cell(runs: Sequence[Run], domain: str, gained: Gains | None) -> Cell | None:
    return _cell(
        [run for run in runs if domain in run.measures.domains],
        lambda r: r.measures.domains[domain],
        domain.partition("/")[0],
        interval=lambda r: r.measures.domain_intervals[domain],
        gain=gained.of(domain) if gained is not None and domain in gained.values else None,
    )


def _costs(group: Group, side: str) -> Columns:
    whole = all(float(run.measures.passes_per_image).is_integer() for run in group.runs)
    columns: dict[str, tuple[Number, str, int]] = {
        "Top-5": (lambda r: r.measures.top5, "", 1),
        "ECE": (lambda r: r.measures.ece, "", 1),
        "Passes": (lambda r: r.measures.passes_per_image, "", 0 if whole else 2),
        "Time (s)": (lambda r: r.conditions.seconds, "seconds", 0),
        "Memory (MiB)": (lambda r: r.conditions.memory / 2**20, "memory", 0),
        "#Params": (lambda r: r.conditions.parameters, "parameters", 0),
    }
    return {
        name: {label: _cell(group.of(label, side), value, key, digits) for label in group.labels}
        for name, (value, key, digits) in columns.items()
    }


def _budgets(group: Group) -> Columns:
    """Table C.1's columns: the accuracy at shares of the time that FOZO takes for one corruption."""
    firsts = {label: group.first(label) for label in group.labels}
    budgets = dict.fromkeys(name for run in firsts.values() for name in run.experiment.paper if name.endswith(" s"))
    # The paper's seconds are of FOZO itself, that is with its own schedule.
    fozo = [label for label, run in firsts.items() if run.experiment.method == "fozo"]
    own = [label for label in fozo if not any("schedule" in name for name in firsts[label].experiment.options)]
    if not budgets or not own:
        return {}
    curves = {label: within_domains(run.records(), run.costs()) for label, run in firsts.items()}
    full = mean(float(times[-1]) for times, _, _ in curves[own[0]])
    return {
        budget: {
            label: Cell(
                at_budget(curves[label], float(budget.removesuffix(" s")) / FULL_BUDGET * full),
                paper=run.experiment.paper.get(budget),
            )
            for label, run in firsts.items()
        }
        for budget in budgets
    }


def number(value: float, digits: int, sign: str = "") -> str:
    """Write a number, large ones with groups of three; a difference has the ``sign`` ``+`` where it is positive."""
    return f"{value:{sign},.{digits}f}"


def words(cell: Cell | None) -> str:
    """Write a cell in plain text: ours ± std (paper's, difference)."""
    if cell is None:
        return "-"
    text = number(cell.ours, cell.digits)
    if cell.std is not None:
        text += f" ± {number(cell.std, max(1, cell.digits))}"
    if cell.paper is not None and cell.difference is not None:
        text += f" (paper {number(cell.paper, cell.digits)}, {number(cell.difference, cell.digits, '+')})"
    return text


def comma_separated(tables: Sequence[Table]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["recipe", "setting", "row", "column", "ours", "low", "high", "std", "paper", "difference", *GAINS])
    for table in tables:
        for label, cells in table.rows:
            for column, cell in zip(table.columns, cells, strict=True):
                if cell is not None:
                    within = None if cell.gain is None else cell.gain.within
                    ends = (None, None) if within is None else (within.low, within.high)
                    own = (cell.ours, cell.low, cell.high, cell.std, cell.paper, cell.difference)
                    numbers = (*own, None if cell.gain is None else cell.gain.value, *ends)
                    plain = ["" if value is None else f"{value:.4f}" for value in numbers]
                    writer.writerow([table.name, table.setting, label, column, *plain])
    return text.getvalue()


def tex(text: str) -> str:
    return re.sub("([&%#_])", r"\\\1", text)
