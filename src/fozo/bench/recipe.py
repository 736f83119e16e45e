"""Recipes: a named table or figure, as rows to run and the paper's numbers to put beside them.

The paper's own are Python files in ``fozo.bench.recipes``; a user's are TOML files:

    title = "More passes"

    [stream]                      # fields of StreamPlan
    kinds = ["fog", "contrast"]
    images = 500

    [[row]]
    label = "FOZO, 4 passes"
    method = "fozo"
    options = { passes = 4, "schedule.decay" = 0.8 }
    paper = { Avg = 59.5 }        # optional: a number to compare with
    stream = { batch_size = 32 }  # optional: what differs from [stream]
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fozo.bench.experiment import Experiment, StreamPlan, Value, plan_from
from fozo.errors import FozoError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AVERAGE = "Avg"
"""The column that every row has: accuracy averaged over the domains, in percent."""


@dataclass(frozen=True)
class Row:
    """One experiment of a table, before model and seed are chosen."""

    label: str
    method: str
    options: Mapping[str, Value] = field(default_factory=dict)
    stream: StreamPlan = field(default_factory=StreamPlan)
    column: str = AVERAGE
    """Where its average goes, for tables with one stream a column."""
    x: float | None = None
    """Its place on the axis, for hyper-parameter curves."""
    axis: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's numbers by column: a corruption's name, ``Avg``, ``seconds``, ``memory`` (MiB), ``parameters``."""
    quantise: str = ""
    """How the model is quantised first (see :class:`Experiment`); an ``.onnx`` file is run as it is."""

    def at_passes(self, passes: int) -> Row:
        """Make the same row with other forward passes and a label that says so."""
        label = self.label.removesuffix(f", {self.options['passes']} passes")
        return replace(self, label=f"{label} at {passes} passes", options={**self.options, "passes": passes})


@dataclass(frozen=True)
class Recipe:
    """A table or figure."""

    name: str
    title: str
    rows: tuple[Row, ...]
    cost: str = ""
    """What the full size costs, in forward passes of one image."""
    note: str = ""
    """What a reader should know: where the paper is silent, or its numbers are not comparable."""
    calibration: int = 2000

    def __post_init__(self) -> None:
        """Refuse a recipe without rows, and rows that could not be told apart."""
        if not self.rows:
            raise FozoError(f"the recipe {self.name} has no rows; add at least one [[row]]")
        keys = [(row.label, row.column) for row in self.rows]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice:
            raise FozoError(f"the recipe {self.name} has two rows labelled {twice[0]!r}; give each its own label")

    def at_passes(self, passes: int) -> Recipe:
        """Make the same recipe with other forward passes, under a name of its own and with labels that say so."""
        own = sorted({str(row.options["passes"]) for row in self.rows if "passes" in row.options})
        if not own:
            raise FozoError(f"no row of {self.name} names its passes, so there is nothing for --passes to change")
        if own == [str(passes)]:
            return self
        note = f"Run at {passes} passes instead of {' or '.join(own)}, so compare shapes, not numbers."
        rows = tuple(row.at_passes(passes) if row.options.get("passes", passes) != passes else row for row in self.rows)
        return replace(
            self,
            name=f"{self.name}-{passes}passes",
            title=f"{self.title}, at {passes} passes",
            note=f"{note} {self.note}".strip(),
            rows=rows,
        )

    def experiments(
        self,
        model: str,
        *,
        seeds: Sequence[int] = (0,),
        methods: Sequence[str] | None = None,
        labels: Sequence[str] | None = None,
        calibration: int | None = None,
        **stream: object,
    ) -> tuple[Experiment, ...]:
        """List what is to run: all rows, or those of some methods or labels.

        ``stream`` are fields of StreamPlan to use instead of the recipe's.
        """
        chosen = {"method": methods, "label": labels}
        for what, wanted in chosen.items():
            known = dict.fromkeys(getattr(row, what) for row in self.rows)
            absent = [name for name in wanted or () if name not in known]
            if absent:
                raise FozoError(f"{self.name} has no row of the {what} {absent[0]!r}; it has {'; '.join(known)}")
        return tuple(
            Experiment(
                model,
                row.method,
                row.options,
                replace(row.stream, **stream),  # type: ignore[arg-type]
                seed,
                self.calibration if calibration is None else calibration,
                row.label if row.column == AVERAGE else f"{row.label} {row.column}",
                "" if model.endswith(".onnx") else row.quantise,
            )
            for row in self.rows
            for seed in seeds
            if all(wanted is None or getattr(row, what) in wanted for what, wanted in chosen.items())
        )

    def describe(self) -> dict[str, Any]:
        """Say in plain values (JSON) what the report needs."""
        facts = asdict(self)
        return {
            **facts,
            "rows": [
                {**row, "stream": dict(row["stream"], kinds=list(row["stream"]["kinds"]))} for row in facts["rows"]
            ],
        }


def grid(methods: Mapping[str, tuple[str, dict[str, Value]]], streams: Mapping[str, StreamPlan]) -> tuple[Row, ...]:
    """Rows for every method (by label) on every stream (by column)."""
    return tuple(
        Row(label, method, options, stream, column)
        for label, (method, options) in methods.items()
        for column, stream in streams.items()
    )


def names() -> list[str]:
    """List the paper's recipes."""
    package = importlib.import_module("fozo.bench.recipes")
    found = (module.name for module in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in found if not name.startswith("_"))


def load_recipe(name: str) -> Recipe:
    """Find one of the paper's recipes by name, or read a user's TOML file."""
    if name.endswith(".toml"):
        return read_toml(Path(name))
    known = names()
    by_lower = {recipe.lower(): recipe for recipe in known} | {"tablec1": "figure1"}
    if name.lower() not in by_lower:
        raise FozoError(f"there is no recipe {name!r}; choose from {', '.join(known)}, or give a .toml file")
    recipe: Recipe = importlib.import_module(f"fozo.bench.recipes.{by_lower[name.lower()]}").RECIPE
    return recipe


def from_facts(facts: Mapping[str, Any], name: str) -> Recipe:
    """Make a recipe of plain values: of TOML, or of what :meth:`Recipe.describe` gave."""
    base = facts.get("stream", {})
    rows = []
    for entry in _listed(facts, "row") + _listed(facts, "rows"):
        if not isinstance(entry.get("label"), str) or not isinstance(entry.get("method"), str):
            raise FozoError(f"every row of {name} needs a label and a method, but one is {dict(entry)!r}")
        for key in ("options", "paper", "stream"):
            if not isinstance(entry.get(key, {}), Mapping):
                raise FozoError(f"{key} of {entry['label']!r} in {name} should be a table such as {{ a = 1 }}")
        unknown = [key for key in entry if key not in Row.__dataclass_fields__]
        if unknown:
            raise FozoError(f"a row of {name} has no {unknown[0]!r}; it has {', '.join(Row.__dataclass_fields__)}")
        rows.append(Row(**{**entry, "stream": plan_from({**base, **entry.get("stream", {})})}))
    extra = {key: facts[key] for key in ("cost", "note", "calibration") if key in facts}
    return Recipe(name, str(facts.get("title", name)), tuple(rows), **extra)


def _listed(facts: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = facts.get(key, [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FozoError(f"{key} should be written as [[{key}]] tables")
    return entries


def read_toml(path: Path) -> Recipe:
    """Read a user's recipe; it is called by the file's name."""
    try:
        facts = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FozoError(f"cannot read the recipe {path}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FozoError(f"{path} is not TOML ({error}); see docs/bench.md for an example") from error
    unknown = [key for key in facts if key not in ("title", "stream", "row", "cost", "note", "calibration")]
    if unknown:
        raise FozoError(
            f"{path} has an unknown {unknown[0]!r}; a recipe has title, note, cost, calibration, stream and row"
        )
    return from_facts(facts, path.stem)
