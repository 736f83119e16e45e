"""What is to be run: streams, experiments, and recipes, which are named tables of experiments.

fozo's recipes are in ``fozo.bench.recipes``; a user's are TOML files:

    title = "More passes"

    [stream]                      # fields of StreamPlan
    kinds = ["fog", "contrast"]
    images = 500

    [[row]]
    label = "FOZO, {passes} passes"
    method = "fozo"
    options = { passes = 4, "schedule.decay" = 0.8 }
    paper = { Avg = 59.5 }        # optional: a number to compare with
    stream = { batch_size = 32 }  # optional: what differs from [stream]
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path, PurePath
from typing import Any, TypeAlias, cast

from fozo.bench import recipes
from fozo.core.noise import check_seed
from fozo.data.corruptions import KINDS
from fozo.data.groups import class_indices
from fozo.data.scenarios import SCENARIOS, Scenario
from fozo.engines.ptq4vit import BITS
from fozo.errors import FozoError
from fozo.io import as_dataclass, read_toml
from fozo.methods.registry import method_class
from fozo.types import Value

TUNED = " (tuned)"  # how the label of a row ends whose constants are not the published ones
OWN = " (authors)"  # how the label of a row ends that has its authors' constants, where others are the usual ones
IN_FOZO_PAPER = ("lame", "t3a", "foa", "zoa", "tent", "eata", "sar", "deyo")  # whose preset ``paper`` has its values
AVERAGE = "Avg"  # the column that every row has: accuracy averaged over the domains, in percent
# Image sets that a stream may be made of; ``clean`` images are corrupted as they are read.
DATA = ("imagenet-c", "clean", "imagenet-r", "imagenet-sketch", "imagenet-v2")
MEANING = 2  # raised when the same values come to mean another experiment: until 1, ``fozo`` was today's ``align``
QUANTISE = ("", *(f"ptq4vit{bits}" for bits in BITS))
NOT_IN_FILES: dict[str, Any] = {"model": "", "seed": 0, "calibration": 2000}  # set by a command
ADVICE = "see docs/bench.md for an example"


def published(label: str) -> str:
    """The label of the method's row with the usual constants."""
    return label.removesuffix(TUNED).removesuffix(OWN)


@dataclass(frozen=True)
class StreamPlan:
    """Which images a method sees, in which order; :class:`~fozo.bench.resources.Resources` makes a stream of it."""

    data: str = "imagenet-c"
    scenario: str = "continual"
    kinds: tuple[str, ...] = KINDS
    severity: int = 5
    images: int | None = None  # of each domain, drawn at random (the same for every seed); all of them by default
    batch_size: int = 64
    classes: str = ""
    """A group of :data:`fozo.data.groups.GROUPS`, of whose classes alone images are streamed: ``images`` of them, or
    all where there are fewer. The first image of each class is left to calibration, so that all groups share it."""
    freeze_after: int | None = None
    """After this many batches of each segment the method predicts with what it has learnt, and learns nothing."""

    def __post_init__(self) -> None:
        for what, value, known in (("data", self.data, DATA), ("scenario", self.scenario, SCENARIOS)):
            if value not in known:
                raise FozoError(f"there is no {what} {value!r}; choose from {', '.join(known)}")
        counts = {"batch_size": self.batch_size, "images": self.images, "freeze_after": self.freeze_after}
        for what, count in counts.items():
            if count is not None and count < 1:
                raise FozoError(f"{what} is {count}; give a whole number from 1 up")
        if not 1 <= self.severity <= 5:
            raise FozoError(f"severity is {self.severity}; give a whole number from 1 to 5")
        if self.classes:
            class_indices(self.classes)
        assert self.order is not None  # which refuses what the scenario cannot do

    @cached_property
    def order(self) -> Scenario:
        """The scenario; those that go through severities themselves (gradual) have no severity to set."""
        make = SCENARIOS[self.scenario]
        level = {"severity": self.severity} if hasattr(make, "severity") else {}
        return make(kinds=self.kinds, **level)


@dataclass(frozen=True)
class Experiment:
    """One method on one stream with one model and one seed: a row of a recipe, once model and seed are chosen.

    It says *what* is measured, never *where* things lie. Its hash is of all that its records depend on (except the
    bytes of model and images, whose fingerprints are saved beside the results), so the same experiment is found under
    the same hash on every machine, and a changed option gets a new one. How a table shows it is not part of the hash.
    """

    label: str
    method: str
    options: Mapping[str, Value] = field(default_factory=dict)
    stream: StreamPlan = StreamPlan()
    column: str = AVERAGE  # where its average goes, for tables with one stream a column
    x: float | None = None  # its position on the axis, for hyper-parameter curves
    axis: str = ""
    paper: Mapping[str, float] = field(default_factory=dict)  # its numbers by column: corruptions, Avg, seconds, memory
    quantise: str = (
        ""  # ``ptq4vit8`` (or 6, 4) to quantise the model on clean images; an ``.onnx`` file is run as it is
    )
    models: str = ""  # how the names of the models begin that this row is for: its constants were tuned on them
    model: str = ""  # a weights file, an ``.onnx`` file, or ``timm:NAME``
    seed: int = 0  # of the order of the images and of the method's own draws
    calibration: int = 2000  # clean images that source statistics and Fisher information are measured on, at most

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label.replace("{passes}", str(self.options.get("passes"))))
        check_seed(self.seed)
        if self.quantise not in QUANTISE:
            raise FozoError(f"quantise is {self.quantise!r}; choose from {', '.join(filter(None, QUANTISE))}")
        if self.calibration < 2:
            raise FozoError(f"calibration is {self.calibration}; source statistics need at least 2 clean images")

    def identity(self) -> dict[str, object]:
        """What is hashed, in plain values (JSON). The model is named without its folder."""
        stream = {**asdict(self.stream), "kinds": list(self.stream.kinds)}
        for name in ("classes", "freeze_after"):  # newer than runs on file, which keep the hash that they had
            if not stream[name]:
                del stream[name]
        return {
            "model": self.model if self.model.startswith("timm:") else PurePath(self.model).name,
            "method": self.method,
            "options": dict(sorted(self.options.items())),
            "stream": stream,
            "seed": self.seed,
            "calibration": self.calibration,
            **({"quantise": self.quantise} if self.quantise else {}),
        }

    @cached_property
    def hash(self) -> str:
        text = json.dumps({**self.identity(), "meaning": MEANING}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def constants(self) -> dict[str, object]:
        """The method's config, its preset's name, and whose constants these are, in plain values (JSON)."""
        made = method_class(self.method)
        own = {key: value for key, value in self.options.items() if key not in ("preset", "journal", *made.EXTRAS)}
        preset = cast("str", self.options.get("preset", next(iter(made.PRESETS))))
        config = asdict(made.configure(preset, own))
        plain = json.loads(json.dumps(config), parse_constant=str)  # JSON has no infinity
        papers = "FOZO paper" if self.method in IN_FOZO_PAPER else "own paper"
        source = {"paper": papers, "official": "authors' program"}.get(preset, "fozo" if plain else "")
        source = "varied" if own.keys() - {"passes"} else source
        source = next((end.strip(" ()") for end in (TUNED, OWN) if self.label.endswith(end)), source)
        return {"preset": preset, "constants": plain, "source": source}

    @property
    def name(self) -> str:
        """The label, with the column where the recipe has several."""
        return self.label if self.column == AVERAGE else f"{self.label} {self.column}"


@dataclass(frozen=True)
class Setting:
    """What a command may choose for all rows of a recipe at once.

    Runs of one recipe in different settings are never put in one table.
    """

    model: str
    images: int | None = None
    severity: int | None = None
    calibration: int | None = None  # all three: instead of the recipe's own
    stored: bool = True  # whether corrupted images are ImageNet-C's files, or clean ones corrupted as they are read


@dataclass(frozen=True)
class Recipe:
    """A table or figure: rows to run, and the paper's numbers to put beside them."""

    name: str
    title: str
    rows: tuple[Experiment, ...]
    cost: str = ""  # what the full size costs, in forward passes of one image
    note: str = ""  # what a reader should know: where the paper is silent, or its numbers are not comparable
    calibration: int = 2000

    def __post_init__(self) -> None:
        if not self.rows:
            raise FozoError(f"the recipe {self.name} has no rows; add at least one [[row]]")
        names = [f"{row.name} {row.models}".rstrip() for row in self.rows]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise FozoError(f"the recipe {self.name} has two rows labelled {twice!r}; give each its own label")

    def experiments(
        self,
        setting: Setting,
        *,
        seeds: Sequence[int] = (0,),
        methods: Sequence[str] = (),
        labels: Sequence[str] = (),
        columns: Sequence[str] = (),
    ) -> list[Experiment]:
        """List what is to run in a setting: all rows, or those of some methods, labels or columns, with every seed."""
        filters = {"method": methods, "label": labels, "column": columns}
        for what, wanted in filters.items():
            known = dict.fromkeys(getattr(row, what) for row in self.rows)
            absent = [name for name in wanted if name not in known]
            if absent:
                raise FozoError(f"{self.name} has no row of the {what} {absent[0]!r}; it has {'; '.join(known)}")
        chosen: dict[str, Any] = {"images": setting.images, "severity": setting.severity}
        chosen = {name: value for name, value in chosen.items() if value is not None}
        calibration = self.calibration if setting.calibration is None else setting.calibration
        found = []
        for row in self.rows:
            if any(wanted and getattr(row, what) not in wanted for what, wanted in filters.items()):
                continue
            if not PurePath(setting.model.removeprefix("timm:")).name.startswith(row.models):
                continue
            data = "clean" if row.stream.data == "imagenet-c" and not setting.stored else row.stream.data
            stream = replace(row.stream, data=data, **chosen)
            quantise = "" if setting.model.endswith(".onnx") else row.quantise
            made = replace(row, stream=stream, quantise=quantise, model=setting.model, calibration=calibration)
            found += [replace(made, seed=seed) for seed in seeds]
        if not found:
            raise FozoError(f"no row of {self.name} is all of what was asked for; name fewer methods, labels, columns")
        return found

    def to_dict(self) -> dict[str, object]:
        """Plain values (JSON) that :func:`read_recipe` makes the same recipe of."""
        header = {"title": self.title, "cost": self.cost, "note": self.note, "calibration": self.calibration}
        rows = []
        for row in self.rows:
            stream = {name: value for name, value in asdict(row.stream).items() if value not in (None, "")}
            own = {name: value for name, value in asdict(row).items() if value is not None}
            own = {name: value for name, value in own.items() if name not in NOT_IN_FILES}
            rows.append({**own, "stream": {**stream, "kinds": list(row.stream.kinds)}})
        return {**header, "row": rows}


Methods: TypeAlias = Mapping[str, tuple[str, Mapping[str, Value]]]  # methods and their options, by label


def grid(methods: Methods, streams: Mapping[str, StreamPlan]) -> tuple[Experiment, ...]:
    """Rows for every method (by label) on every stream (by column)."""
    return tuple(
        Experiment(label, method, options, stream, column)
        for label, (method, options) in methods.items()
        for column, stream in streams.items()
    )


@cache
def _recipes() -> dict[str, Recipe]:
    files = (module.name for module in pkgutil.iter_modules(recipes.__path__))
    found = (importlib.import_module(f"{recipes.__name__}.{file}").RECIPES for file in files)
    return {recipe.name: recipe for listed in found for recipe in listed}


def names() -> list[str]:
    return sorted(_recipes())


def load_recipe(name: str) -> Recipe:
    """Find one of fozo's recipes by name, or read a user's TOML file, which is called by the file's name."""
    path = Path(name)
    if path.suffix == ".toml":
        return read_recipe(read_toml(path), path.stem)
    by_lower = {recipe.lower(): recipe for recipe in names()} | {"tablec1": "figure1"}
    if name.lower() not in by_lower:
        raise FozoError(f"there is no recipe {name!r}; choose from {', '.join(names())}, or give a .toml file")
    return _recipes()[by_lower[name.lower()]]


def read_recipe(payload: Mapping[str, Any], name: str) -> Recipe:
    """Make a recipe of plain values: of TOML, or of :meth:`Recipe.to_dict`."""
    top = dict(payload)
    base, entries = top.pop("stream", {}), top.pop("row", [])
    if not isinstance(base, Mapping) or not isinstance(entries, list):
        raise FozoError(f"the recipe {name} should have [stream] and a list of [[row]]; {ADVICE}")
    rows = []
    for number, entry in enumerate(entries, 1):
        what = f"row {number} of {name}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("stream", {}), Mapping):
            raise FozoError(f"{what} should be a table, its stream another; {ADVICE}")
        own = {key: value for key, value in entry.items() if key != "stream"}
        stream = {**base, **entry.get("stream", {})}
        plan = as_dataclass(StreamPlan, stream, f"the stream of {what}", advice=ADVICE)
        rows.append(as_dataclass(Experiment, own, what, advice=ADVICE, stream=plan, **NOT_IN_FILES))
    titled = {"title": name, **top}
    return as_dataclass(Recipe, titled, f"the recipe {name}", advice=ADVICE, name=name, rows=tuple(rows))
