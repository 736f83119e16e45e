"""Finding finished runs and putting them in the order of their recipe: what every form of the report starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fozo.bench.folder import read_json
from fozo.bench.recipe import AVERAGE, Recipe, Row, from_facts
from fozo.bench.records import BatchRecord, Cost, read_costs, read_records
from fozo.bench.run import CONDITIONS, COSTS, RECORDS, RESULT
from fozo.errors import FozoError


@dataclass(frozen=True)
class Run:
    """One finished run: a row of a recipe with one seed."""

    row: Row
    seed: int
    result: Mapping[str, Any]
    conditions: Mapping[str, Any]
    folder: Path

    @property
    def measures(self) -> Mapping[str, Any]:
        """The measures, as plain values."""
        found: Mapping[str, Any] = self.result["measures"]
        return found

    def records(self) -> list[BatchRecord]:
        """Read the per-batch records."""
        return read_records(self.folder / RECORDS)

    def costs(self) -> list[Cost]:
        """Read the per-batch costs."""
        return read_costs(self.folder / COSTS)


@dataclass(frozen=True)
class Group:
    """The runs of a recipe that share model, severity and number of images, so that they may be compared."""

    recipe: Recipe
    setting: str
    runs: tuple[Run, ...]

    @property
    def labels(self) -> list[str]:
        """Rows that have been run, in the recipe's order."""
        return list(dict.fromkeys(run.row.label for run in self.runs))

    def of(self, label: str, column: str = AVERAGE) -> list[Run]:
        """All seeds of a row."""
        return [run for run in self.runs if run.row.label == label and run.row.column == column]

    def first(self, label: str) -> Run:
        """A row's run with the lowest seed, for curves."""
        return min((run for run in self.runs if run.row.label == label), key=lambda run: run.seed)


def collect(root: Path) -> list[Group]:
    """Find every finished run below a folder that ``fozo bench`` wrote."""
    files = sorted(root.glob("**/recipe.json"))
    if not files:
        raise FozoError(f"{root} holds no results of fozo bench; give the folder that was its --out")
    groups: list[Group] = []
    for file in files:
        recipe = from_facts(read_json(file), str(read_json(file).get("name", file.parent.name)))
        groups += _groups(recipe, file.parent)
    if not groups:
        raise FozoError(f"no run below {root} is finished yet; let fozo bench finish at least one")
    return groups


def _groups(recipe: Recipe, folder: Path) -> list[Group]:
    rows = {row.label if row.column == AVERAGE else f"{row.label} {row.column}": row for row in recipe.rows}
    found: dict[str, list[Run]] = {}
    for path in sorted(folder.glob(f"*/{RESULT}")):
        result = read_json(path)
        row = rows.get(str(result["label"]))
        if row is None:  # of an earlier version of the recipe
            continue
        conditions = read_json(path.with_name(CONDITIONS))
        run = Run(row, int(str(result["seed"])), result, conditions, path.parent)
        found.setdefault(_setting(result), []).append(run)
    order = list(rows.values())
    return [
        Group(recipe, setting, tuple(sorted(runs, key=lambda run: (order.index(run.row), run.seed))))
        for setting, runs in sorted(found.items())
    ]


def _setting(result: Mapping[str, Any]) -> str:
    plan = result["stream"]
    images = "all images" if plan["images"] is None else f"{plan['images']} images a domain"
    if plan["kinds"] == ["clean"]:
        return f"{result['model']}, {images}"
    made = "corrupted on the fly" if plan["data"] == "imagenet" else "ImageNet-C files"
    return f"{result['model']}, severity {plan['severity']}, {images}, {made}"
