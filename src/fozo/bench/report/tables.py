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
NUMBERS = ("ours", "low", "high", "std", "paper", "difference", "gain", "gain_low", "gain_high")  # columns of the CSV
SIDES = (LATENCY, ADAPTING, FROZEN)
FULL_BUDGET = 1400.0  # seconds of the last budget of Table C.1, which is one corruption's run of FOZO


@dataclass(frozen=True)
class Cell:
    """A number of ours, its interval, and the paper's."""

    ours: float
    within: Interval | None = None
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
    paper: str,
    value: Callable[[Run], float | None],
    digits: int = 1,
    interval: Callable[[Run], Interval] | None = None,
    gains: Mapping[str, Gain] | None = None,
) -> Column:
    """Average a number of each row over seeds; its interval reaches from the lowest to the highest of any seed's own.

    ``value`` is ``None`` of a run that lacks the number. ``paper`` is what the paper's number is found by.
    """
    column: Column = dict.fromkeys(group.labels)
    for label in column:
        found = [(run, number) for run in group.of(label, side) if (number := value(run)) is not None]
        if found:
            runs, numbers = zip(*found, strict=True)
            own = [interval(run) for run in runs] if interval else []
            within = Interval(min(each.low for each in own), max(each.high for each in own)) if own else None
            std, published = stdev(numbers) if len(numbers) > 1 else None, runs[0].experiment.paper.get(paper)
            column[label] = Cell(mean(numbers), within, std, published, digits, (gains or {}).get(label))
    return column


def table_of(group: Group, gained: Gained | None = None) -> Table:
    """Make the table that a recipe's paper counterpart has, with what else was measured to its right.

    Where there is one kind of stream, a column for each of its domains comes first, and what it cost last.
    ``gained`` is what :func:`fozo.bench.gains.over_base` gave, for tables that show it.
    """
    columns, budgets, gained = dict[str, Column](), _budgets(group), gained or {}
    alone = group.columns[0] if len(group.columns) == 1 else None
    if alone is not None and not budgets:  # Table C.1 has its budgets instead of domains
        columns |= _domains(group, alone, gained.get(alone, {}))
    for side in group.columns:
        means = {label: each.mean for label, each in gained.get(side, {}).items()}
        columns[side] = _column(
            group, side, side, lambda r: r.measures.average, 2, lambda r: r.measures.average_interval, means
        )
    columns |= budgets | _utilities(group)
    if alone is not None:
        columns |= _costs(group, alone)
    rows = tuple((label, tuple(column[label] for column in columns.values())) for label in group.labels)
    return Table(group.recipe.name, group.recipe.title, group.setting, tuple(columns), rows)


def _domains(group: Group, side: str, gained: Mapping[str, Gains]) -> dict[str, Column]:
    domains = list(dict.fromkeys(domain for run in group.runs for domain in run.measures.domains))
    usual = group.runs[0].experiment.stream.severity

    def column(domain: str) -> Column:
        gains = {label: each.of(domain) for label, each in gained.items() if domain in each.values}
        return _column(
            group, side, domain.partition("/")[0], lambda r: r.measures.domains.get(domain), 1,
            lambda r: r.measures.domain_intervals[domain], gains,
        )  # fmt: skip

    return {full_name(domain, usual): column(domain) for domain in domains} if len(domains) > 1 else {}


def _costs(group: Group, side: str) -> dict[str, Column]:
    whole = all(float(run.measures.passes_per_image).is_integer() for run in group.runs)
    return {
        "Top-5": _column(group, side, "", lambda r: r.measures.top5),
        "ECE": _column(group, side, "", lambda r: r.measures.ece),
        "Passes": _column(group, side, "", lambda r: r.measures.passes_per_image, 0 if whole else 2),
        "Time (s)": _column(group, side, "seconds", lambda r: r.conditions.seconds, 0),
        "Memory (MiB)": _column(group, side, "memory", lambda r: r.conditions.memory / 2**20, 0),
        "#Params": _column(group, side, "parameters", lambda r: r.conditions.parameters, 0),
    }


def _budgets(group: Group) -> dict[str, Column]:
    """Table C.1's columns: the accuracy at shares of the time that FOZO takes for one corruption."""
    firsts = {label: group.first(label) for label in group.labels}
    budgets = dict.fromkeys(name for run in firsts.values() for name in run.experiment.paper if name.endswith(" s"))
    # The paper's seconds are of FOZO itself, that is with its own schedule.
    fozo = [label for label, run in firsts.items() if run.experiment.method == "fozo"]
    own = [label for label in fozo if not any("schedule" in name for name in firsts[label].experiment.options)]
    if not budgets or not own:
        return {}
    curves = {label: within_domains(run.records(), run.costs()) for label, run in firsts.items()}
    full = mean(float(times[-1]) for times, _ in curves[own[0]])
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


def _utilities(group: Group) -> dict[str, Column]:
    runs = [{label: group.of(label, side)[0] for label in group.labels if group.of(label, side)} for side in SIDES]
    cells = {name: Cell(value) for name, value in utilities(*runs).items()}
    names = ("discrete", "continuous", "amortised") if cells else ()
    return {name: {label: cells.get(f"{label} {name}") for label in group.labels} for name in names}


def number(value: float, digits: int, sign: str = "") -> str:
    """Write a number, large ones with groups of three; a difference has the ``sign`` ``+`` where it is positive."""
    return f"{value:{sign},.{digits}f}"


def _ends(within: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if within is None else (within.low, within.high)


def comma_separated(tables: Sequence[Table]) -> str:
    """Write one line for each cell; ``gain`` is the difference to the row that nothing adapts in."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["recipe", "setting", "row", "column", *NUMBERS])
    for table in tables:
        for label, cells in table.rows:
            for column, cell in zip(table.columns, cells, strict=True):
                if cell is not None:
                    own = (cell.ours, *_ends(cell.within), cell.std, cell.paper, cell.difference)
                    gain = (None, None, None) if cell.gain is None else (cell.gain.value, *_ends(cell.gain.within))
                    plain = ["" if value is None else f"{value:.4f}" for value in (*own, *gain)]
                    writer.writerow([table.name, table.setting, label, column, *plain])
    return text.getvalue()


def tex(text: str) -> str:
    return re.sub("([&%#_])", r"\\\1", text)
