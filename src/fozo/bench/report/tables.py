"""The tables of a report as values, and as CSV."""

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import TypeAlias

from fozo.bench.gains import ADAPTING, FROZEN, LATENCY, Gain, Gained, Gains, utilities
from fozo.bench.measures import Interval, at_budget, within_domains
from fozo.bench.store import Group, Run
from fozo.data.corruptions import KINDS

HEADINGS = "Gauss Shot Impul Defcs Gls Mtn Zm Snw Frst Fg Brt Cnt Els Px JPG"
SHORT = dict(zip(KINDS, HEADINGS.split(), strict=True))  # the paper's headings, for tables on paper
NUMBERS = ("ours", "low", "high", "std", "paper", "difference", "gain", "gain_low", "gain_high",
           "gain_over_domains_low", "gain_over_domains_high")  # fmt: skip  # columns of the CSV
SIDES = (LATENCY, ADAPTING, FROZEN)
FULL_BUDGET = 1400.0  # seconds of the last budget of Table C.1, which is one corruption's run of FOZO


@dataclass(frozen=True)
class Cell:
    """A number of ours, its interval, and the paper's."""

    ours: float
    """The mean over seeds."""
    within: Interval | None = None
    """From the lowest to the highest end of any seed's interval."""
    std: float | None = None
    """Standard deviation over seeds, where there are several."""
    paper: float | None = None
    """The paper's number."""
    digits: int = 1
    """How many are written behind the point."""
    gain: Gain | None = None
    """What was gained over the plain model, where it can be paired with it."""

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.ours - self.paper


@dataclass(frozen=True)
class Table:
    """Rows of cells; a cell is ``None`` where nothing was run."""

    name: str
    """Of the recipe."""
    title: str
    """What stands above it."""
    setting: str
    """Model, images, severity and calibration, in words."""
    columns: tuple[str, ...]
    """Their names."""
    rows: tuple[tuple[str, tuple[Cell | None, ...]], ...]
    """Titles and cells."""

    @property
    def headings(self) -> list[str]:
        short = {full_name(kind): heading for kind, heading in SHORT.items()}
        return [short.get(column, column) for column in self.columns]


def full_name(domain: str, severity: int | None = None) -> str:
    """Write a domain's name out: ``Gaussian noise``; with its severity, unless that is the usual one."""
    kind, _, level = domain.partition("/")
    name = kind.replace("_", " ").replace("jpeg", "JPEG")
    name = name[:1].upper() + name[1:]
    return f"{name}, severity {level}" if level and level != str(severity) else name


Column: TypeAlias = dict[str, Cell | None]  # by label of a row


def _column(
    group: Group,
    side: str,
    value: Callable[[Run], float | None],
    paper: str = "",
    digits: int = 1,
    interval: Callable[[Run], Interval] | None = None,
    gains: Mapping[str, Gain] | None = None,
) -> Column:
    """Average a number of each row over seeds; its interval reaches from the lowest to the highest of any seed's own.

    ``value`` is ``None`` of a run that lacks the number. ``paper`` is what the paper's number is found by.
    """
    column: Column = dict.fromkeys(group.labels)
    for label in column:
        runs = [run for run in group.of(label, side) if value(run) is not None]
        numbers = [number for run in runs if (number := value(run)) is not None]
        if numbers:
            within = [interval(run) for run in runs] if interval else []
            column[label] = Cell(
                mean(numbers),
                Interval(min(one.low for one in within), max(one.high for one in within)) if within else None,
                stdev(numbers) if len(numbers) > 1 else None,
                runs[0].experiment.paper.get(paper),
                digits,
                (gains or {}).get(label),
            )
    return column


def table_of(group: Group, gained: Gained | None = None) -> Table:
    """Make the table that a recipe's paper counterpart has, with what else was measured to its right.

    Where there is one kind of stream, a column for each of its domains comes first, and what it cost last.
    ``gained`` is what :func:`fozo.bench.gains.over_base` gave, for tables that show it.
    """
    gained = gained or {}
    budgets = _budgets(group)
    columns: dict[str, Column] = {}
    alone = len(group.columns) == 1
    for side in group.columns:
        gains = gained.get(side, {})
        if alone and not budgets:  # Table C.1 has its budgets instead of domains
            columns |= _domains(group, side, gains)
        columns[side] = _column(
            group,
            side,
            lambda run: run.measures.average,
            side,
            2,
            lambda run: run.measures.average_interval,
            {label: row.mean for label, row in gains.items()},
        )
    columns |= budgets | _utilities(group)
    if alone:
        columns |= _costs(group, group.columns[0])
    rows = tuple((label, tuple(column[label] for column in columns.values())) for label in group.labels)
    return Table(group.recipe.name, group.recipe.title, group.setting, tuple(columns), rows)


def side_by_side(groups: Sequence[Group]) -> list[Table]:
    """Make a table of averages for each recipe that was run in several settings: a column for each of them."""
    by_recipe: dict[str, list[Group]] = {}
    for group in groups:
        by_recipe.setdefault(group.recipe.name, []).append(group)
    tables = []
    for name, some in by_recipe.items():
        if len(some) < 2:
            continue
        columns = [
            (
                f"{group.setting}: {side}" if len(group.columns) > 1 else group.setting,
                _column(group, side, lambda run: run.measures.average, digits=2),
            )
            for group in some
            for side in group.columns
        ]
        labels = dict.fromkeys(label for _, column in columns for label in column)
        rows = tuple((label, tuple(column.get(label) for _, column in columns)) for label in labels)
        title = f"{some[0].recipe.title}: side by side"
        tables.append(Table(name, title, "averages", tuple(heading for heading, _ in columns), rows))
    return tables


def _domains(group: Group, side: str, gained: Mapping[str, Gains]) -> dict[str, Column]:
    domains = list(dict.fromkeys(domain for run in group.runs for domain in run.measures.domains))
    usual = group.runs[0].experiment.stream.severity

    def column(domain: str) -> Column:
        return _column(
            group,
            side,
            lambda run: run.measures.domains.get(domain),
            domain.partition("/")[0],
            interval=lambda run: run.measures.domain_intervals[domain],
            gains={label: row.of(domain) for label, row in gained.items() if domain in row.values},
        )

    return {full_name(domain, usual): column(domain) for domain in domains} if len(domains) > 1 else {}


def _costs(group: Group, side: str) -> dict[str, Column]:
    whole = all(float(run.measures.passes_per_image).is_integer() for run in group.runs)
    return {
        "Top-5": _column(group, side, lambda run: run.measures.top5),
        "ECE": _column(group, side, lambda run: run.measures.ece),
        "Passes": _column(group, side, lambda run: run.measures.passes_per_image, digits=0 if whole else 2),
        "Time (s)": _column(group, side, lambda run: run.conditions.seconds, "seconds", 0),
        "Memory (MiB)": _column(group, side, lambda run: run.conditions.memory / 2**20, "memory", 0),
        "#Params": _column(group, side, lambda run: run.conditions.parameters, "parameters", 0),
    }


def _budgets(group: Group) -> dict[str, Column]:
    """Table C.1's columns: the accuracy at shares of the time that FOZO takes for one corruption."""
    runs = group.firsts(group.columns[0])
    budgets = dict.fromkeys(name for run in runs.values() for name in run.experiment.paper if name.endswith(" s"))
    if not budgets:
        return {}
    curves = {label: within_domains(run.records(), run.costs()) for label, run in runs.items()}
    # The paper's seconds are of FOZO itself, that is with its own schedule.
    schedule = {label: [name for name in run.experiment.options if "schedule" in name] for label, run in runs.items()}
    reference = [label for label, run in runs.items() if run.experiment.method == "fozo" and not schedule[label]]
    if not reference:
        return {}
    unit = mean(float(times[-1]) for times, _ in curves[reference[0]]) / FULL_BUDGET

    def cell(label: str, budget: str) -> Cell:
        seconds = unit * float(budget.removesuffix(" s"))
        return Cell(at_budget(curves[label], seconds), paper=runs[label].experiment.paper.get(budget))

    return {budget: {label: cell(label, budget) for label in runs} for budget in budgets}


def _utilities(group: Group) -> dict[str, Column]:
    measured = utilities(*(group.firsts(side) for side in SIDES))
    cells = {name: Cell(value) for name, value in measured.items()}
    names = ("discrete", "continuous", "amortised") if cells else ()
    return {name: {label: cells.get(f"{label} {name}") for label in group.labels} for name in names}


def number(value: float, digits: int, sign: str = "") -> str:
    """Write a number, large ones with groups of three; a difference has the ``sign`` ``+`` where it is positive."""
    return f"{value:{sign},.{digits}f}"


def comma_separated(tables: Sequence[Table]) -> str:
    """Write one line for each cell; ``gain`` is the difference to the row that nothing adapts in."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["recipe", "setting", "row", "column", *NUMBERS])
    for table in tables:
        for label, cells in table.rows:
            for column, cell in zip(table.columns, cells, strict=True):
                if cell is not None:
                    numbers = [cell.ours, *_ends(cell.within), cell.std, cell.paper, cell.difference]
                    gain = cell.gain
                    numbers += [gain.value, *_ends(gain.within), *_ends(gain.over_domains)] if gain else [None] * 5
                    plain = ["" if value is None else f"{value:.4f}" for value in numbers]
                    writer.writerow([table.name, table.setting, label, column, *plain])
    return text.getvalue()


def _ends(within: Interval | None) -> tuple[float | None, float | None]:
    return (within.low, within.high) if within else (None, None)


def tex(text: str) -> str:
    return re.sub("([&%#_])", r"\\\1", text)
