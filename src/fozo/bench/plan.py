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
    constants = "tuned"           # optional: whose constants these are, for the row's title
    paper = { Avg = 59.5 }        # optional: a number to compare with
    stream = { batch_size = 32 }  # optional: what differs from [stream]
"""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias, cast

from fozo.bench import recipes
from fozo.core.noise import check_seed
from fozo.data.corruptions import KINDS
from fozo.data.scenarios import SCENARIOS, Scenario
from fozo.data.sets import LAYOUTS
from fozo.engines.ptq4vit import BITS
from fozo.errors import FozoError
from fozo.io import as_dataclass, read_toml
from fozo.methods.registry import import_methods, list_methods, method_class, method_info
from fozo.types import Value

Constants = Literal["paper", "authors", "tuned", "own", "varied"]
"""Whose constants a method has: those of a paper, of its authors' program, tuned ones, fozo's own, or others."""
OF_PRESETS: Mapping[str, Constants] = {"paper": "paper", "official": "authors"}
AVERAGE = "Avg"  # the column that every row has: accuracy averaged over the domains, in percent
CLEAN = "clean"  # images of the data set ``imagenet``, corrupted as they are read
STORED = "imagenet-c"
HASH_VERSION = 2  # raised when the same values come to mean another experiment: until 1, ``fozo`` was today's ``align``
QUANTISE = ("", *(f"ptq4vit{bits}" for bits in BITS))
NOT_IN_FILES: dict[str, Any] = {"model": "", "seed": 0, "calibration": 2000}  # set by a command
ADVICE = "see docs/bench.md for an example"
BASE_METHOD = "noadapt"


@dataclass(frozen=True)
class StreamPlan:
    """Which images a method sees, in which order; :class:`~fozo.bench.resources.Resources` makes a stream of it."""

    data: str = STORED
    """A data set by its name in :data:`fozo.data.sets.LAYOUTS`, or ``clean`` for images of ``imagenet`` that are
    corrupted as they are read."""
    scenario: str = "continual"
    """The order of the domains, by its name in :data:`fozo.data.scenarios.SCENARIOS`."""
    kinds: tuple[str, ...] = KINDS
    """The corruptions; ``clean`` may be among them."""
    severity: int = 5
    """From 1 to 5, where the scenario does not go through severities itself."""
    images: int | None = None
    """Images of each domain, drawn at random and the same for every seed; all by default."""
    batch_size: int = 64
    """Images of a batch; the last one of a domain may have fewer."""
    classes: str = ""
    """A group of :data:`fozo.data.groups.GROUPS`, of whose classes alone images are streamed: ``images`` of them, or
    all where there are fewer. The first image of each class is left to calibration, so that all groups share it."""
    freeze_after: int | None = None
    """After this many batches of each segment the method predicts with what it has learnt, and learns nothing."""

    def __post_init__(self) -> None:
        choices = {"data": (CLEAN, *LAYOUTS), "scenario": tuple(SCENARIOS)}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise FozoError(f"there is no {name} {value!r}; choose from {', '.join(known)}")
        for name in ("batch_size", "images", "freeze_after"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise FozoError(f"{name} is {count}; give a whole number from 1 up")
        if not 1 <= self.severity <= 5:
            raise FozoError(f"severity is {self.severity}; give a whole number from 1 to 5")
        if self.classes:
            from fozo.data.groups import class_indices  # reads the groups of ImageNet's classes

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
    """What its row is about, ``{passes}`` being replaced by the option; :attr:`title` adds whose constants it has."""
    method: str
    """A registered method by name, or one behind another: ``equalise+neo``."""
    options: Mapping[str, Value] = field(default_factory=dict)
    """Options of the method, ``preset`` among them."""
    stream: StreamPlan = StreamPlan()
    """The images and their order."""
    column: str = AVERAGE
    """Where its average goes, for tables with one stream a column."""
    x: float | None = None
    """Its position on the axis, for hyper-parameter curves."""
    axis: str = ""
    """What the axis is called."""
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's numbers by column: corruptions, Avg, seconds, memory."""
    quantise: str = ""
    """``ptq4vit8`` (or 6, 4) to quantise the model on clean images; an ``.onnx`` file is run as it is."""
    models: str = ""
    """How the names of the models begin that this row is for: its constants were tuned on them."""
    constants: Constants | None = None
    """Whose constants these are, where the row's title should say it."""
    code: str = ""
    """Hash of the file that the method was imported from; empty for an installed package."""
    model: str = ""
    """A weights file, an ``.onnx`` file, or ``timm:NAME``."""
    seed: int = 0
    """Of the order of the images and of the method's own draws."""
    calibration: int = 2000
    """Clean images that source statistics and Fisher information are measured on, at most."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", self.label.replace("{passes}", str(self.options.get("passes"))))
        check_seed(self.seed)
        if self.quantise not in QUANTISE:
            raise FozoError(f"quantise is {self.quantise!r}; choose from {', '.join(filter(None, QUANTISE))}")
        if self.calibration < 2:
            raise FozoError(f"calibration is {self.calibration}; source statistics need at least 2 clean images")

    def is_for(self, model: str) -> bool:
        """Whether the row is for a model, by its name."""
        return PurePath(model.removeprefix("timm:")).name.startswith(self.models)

    @property
    def title(self) -> str:
        """What tables call the row: ``TENT``, or ``TENT (tuned)``."""
        return f"{self.label} ({self.constants})" if self.constants else self.label

    @property
    def name(self) -> str:
        """The title, with the column where the recipe has several."""
        return self.title if self.column == AVERAGE else f"{self.title} {self.column}"

    def identity(self) -> dict[str, object]:
        """What is hashed, in plain values (JSON). The model is named without its folder."""
        stream = {**asdict(self.stream), "kinds": list(self.stream.kinds)}
        for name in ("classes", "freeze_after"):  # newer than runs on file, which keep the hash that they had
            if not stream[name]:
                del stream[name]
        values = {
            "model": self.model if self.model.startswith("timm:") else PurePath(self.model).name,
            "method": self.method,
            "options": dict(sorted(self.options.items())),
            "stream": stream,
            "seed": self.seed,
            "calibration": self.calibration,
        }
        later = {"quantise": self.quantise, "code": self.code}
        return values | {name: value for name, value in later.items() if value}

    @cached_property
    def hash(self) -> str:
        text = json.dumps({**self.identity(), "meaning": HASH_VERSION}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    def configuration(self) -> dict[str, object]:
        """The (last) method's preset and config, and whose constants these are, in plain values (JSON)."""
        method = method_class(self.method.rpartition("+")[2])
        changes = {name: value for name, value in self.options.items() if name not in ("preset", "journal")}
        for name in method.EXTRAS:
            changes.pop(name, None)
        preset = cast("str", self.options.get("preset", next(iter(method.PRESETS))))
        config = asdict(method.configure(preset, changes))
        constants = self.constants
        if constants is None and config:
            constants = "varied" if changes.keys() - {"passes"} else OF_PRESETS.get(preset, "own")
        plain = json.loads(json.dumps(config), parse_constant=str)  # JSON has no infinity
        return {"preset": preset, "config": plain, "constants": constants}

    def passes(self) -> float:
        """Forward passes of the whole stream, as the method says it; 0 where the number of images is not known."""
        chosen = self.options.get("passes")
        passes_per_image = chosen if isinstance(chosen, int) else method_info(self.method).cost
        domains = sum(len(segment.domains) for segment in self.stream.order.segments())
        return passes_per_image * domains * (self.stream.images or 0)


@dataclass(frozen=True)
class Setting:
    """What a command may choose for all rows of a recipe at once.

    Runs of one recipe in different settings are never put in one table.
    """

    model: str
    """A weights file, an ``.onnx`` file, or ``timm:NAME``."""
    images: int | None = None
    """Images of each domain, instead of the recipe's own."""
    severity: int | None = None
    """Severity of all corruptions, instead of the recipe's own."""
    calibration: int | None = None
    """Clean images for calibration, instead of the recipe's own."""
    stored: bool = True
    """Whether corrupted images are ImageNet-C's files, or clean ones corrupted as they are read."""


@dataclass(frozen=True)
class Recipe:
    """A table or figure: rows to run, and the paper's numbers to put beside them."""

    name: str
    """How a command asks for it."""
    title: str
    """What the report calls it."""
    rows: tuple[Experiment, ...]
    """What is run, without model and seed."""
    cost: str = ""
    """What the full size costs, in forward passes of one image, where the rows do not tell."""
    note: str = ""
    """What a reader should know: where the paper is silent, or its numbers are not comparable."""
    calibration: int = 2000
    """Clean images that a method is calibrated on, at most."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise FozoError(f"the recipe {self.name} has no rows; add at least one [[row]]")
        names = [f"{row.name} {row.models}".rstrip() for row in self.rows]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise FozoError(f"the recipe {self.name} has two rows labelled {twice!r}; give each its own label")

    @property
    def passes(self) -> str:
        """What the full size costs in words, without rows for one model; a backward pass counts as two."""
        return self.cost or f"{sum(row.passes() for row in self.rows if not row.models):,.0f} passes"

    def in_setting(self, row: Experiment, setting: Setting) -> Experiment | None:
        """A row of this recipe as a setting has it; ``None`` where the row is for other models."""
        if not row.is_for(setting.model):
            return None
        chosen: dict[str, Any] = {"images": setting.images, "severity": setting.severity}
        if row.stream.data == STORED and not setting.stored:
            chosen["data"] = CLEAN
        stream = replace(row.stream, **{name: value for name, value in chosen.items() if value is not None})
        quantise = "" if setting.model.endswith(".onnx") else row.quantise
        calibration = self.calibration if setting.calibration is None else setting.calibration
        return replace(row, stream=stream, quantise=quantise, model=setting.model, calibration=calibration)

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
        rows = list(self.rows)
        filters = {"method": ("method", methods), "label": ("title", labels), "column": ("column", columns)}
        for what, (attribute, wanted) in filters.items():
            known = dict.fromkeys(getattr(row, attribute) for row in self.rows)
            absent = [name for name in wanted if name not in known]
            if absent:
                advice = f"; --method {absent[0]} adds one" if what == "method" else ""
                raise FozoError(
                    f"{self.name} has no row of the {what} {absent[0]!r}; it has {'; '.join(known)}{advice}"
                )
            rows = [row for row in rows if not wanted or getattr(row, attribute) in wanted]
        planned = [self.in_setting(row, setting) for row in rows]
        experiments = [replace(row, seed=seed) for row in planned if row is not None for seed in seeds]
        if not experiments:
            raise FozoError(f"no row of {self.name} is all of what was asked for; name fewer methods, labels, columns")
        return experiments

    def with_methods(self, methods: Mapping[str, str]) -> Recipe:
        """Add a row of each method on every stream, unless there is one; values are :attr:`Experiment.code`."""
        rows = [replace(row, code=methods.get(row.method, row.code)) for row in self.rows]
        known = {row.method for row in rows}
        first: dict[str, Experiment] = {}
        for row in rows:
            first.setdefault(row.column, row)
        streams = {column: row.stream for column, row in first.items()}
        for name, code in methods.items():
            if name not in known:
                added = grid(usual([name]), streams)
                rows += [replace(row, quantise=first[row.column].quantise, code=code) for row in added]
        return replace(self, rows=tuple(rows))

    def to_dict(self) -> dict[str, object]:
        """Plain values (JSON) that :func:`read_recipe` makes the same recipe of."""
        header = {"title": self.title, "cost": self.cost, "note": self.note, "calibration": self.calibration}
        rows = []
        for row in self.rows:
            stream = {name: value for name, value in asdict(row.stream).items() if value not in (None, "")}
            values = {name: value for name, value in asdict(row).items() if value is not None}
            values = {name: value for name, value in values.items() if name not in NOT_IN_FILES}
            rows.append({**values, "stream": {**stream, "kinds": list(row.stream.kinds)}})
        return {**header, "row": rows}


Methods: TypeAlias = Mapping[str, tuple[str, Mapping[str, Value]]]
"""Methods and their options, by label."""


def usual(names: Iterable[str]) -> Methods:
    """Methods with the options that they are compared with."""
    infos = map(method_info, names)
    return {info.label: (info.name, info.compared) for info in infos}


def every_method(most: float = float("inf")) -> Methods:
    """Every registered method of at most so many passes, the plain model first and then the cheap ones."""
    infos = [info for info in list_methods().values() if info.cost <= most]
    infos.sort(key=lambda info: (info.name != BASE_METHOD, info.cost))
    return usual(info.name for info in infos)


def grid(
    methods: Methods, streams: Mapping[str, StreamPlan], constants: Constants | None = None, models: str = ""
) -> tuple[Experiment, ...]:
    """Rows for every method (by label) on every stream (by column)."""
    return tuple(
        Experiment(label, method, options, stream, column, constants=constants, models=models)
        for label, (method, options) in methods.items()
        for column, stream in streams.items()
    )


def find_methods(named: Iterable[str]) -> dict[str, str]:
    """Import methods, named or in files, for :meth:`Recipe.with_methods`: by name the hash of the file, or nothing."""
    methods: dict[str, str] = {}
    for name in named:
        if name.endswith(".py"):
            names = import_methods(name)
            methods |= dict.fromkeys(names, hashlib.sha256(Path(name).read_bytes()).hexdigest()[:10])
        else:
            methods[method_info(name).name] = ""
    return methods


def _recipes() -> dict[str, Callable[[], Recipe]]:
    """What makes fozo's recipes, by name. Nothing is cached, because methods may have been registered since."""
    makers: dict[str, Callable[[], Recipe]] = {}
    for module in pkgutil.iter_modules(recipes.__path__):
        makers |= importlib.import_module(f"{recipes.__name__}.{module.name}").RECIPES
    return makers


def names() -> list[str]:
    return sorted(_recipes())


def load_recipe(name: str) -> Recipe:
    """Find one of fozo's recipes by name, or read a user's TOML file, which is called by the file's name."""
    path = Path(name)
    if path.suffix == ".toml":
        return read_recipe(read_toml(path), path.stem)
    makers = {known.lower(): make for known, make in _recipes().items()}
    makers["tablec1"] = makers["figure1"]
    if name.lower() not in makers:
        raise FozoError(f"there is no recipe {name!r}; choose from {', '.join(names())}, or give a .toml file")
    return makers[name.lower()]()


def read_recipe(payload: Mapping[str, Any], name: str) -> Recipe:
    """Make a recipe of plain values: of TOML, or of :meth:`Recipe.to_dict`."""
    header = dict(payload)
    base = header.pop("stream", {})
    entries = header.pop("row", [])
    if not isinstance(base, Mapping) or not isinstance(entries, list):
        raise FozoError(f"the recipe {name} should have [stream] and a list of [[row]]; {ADVICE}")
    rows = []
    for number, entry in enumerate(entries, 1):
        what = f"row {number} of {name}"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("stream", {}), Mapping):
            raise FozoError(f"{what} should be a table, its stream another; {ADVICE}")
        values = {key: value for key, value in entry.items() if key != "stream"}
        stream = {**base, **entry.get("stream", {})}
        plan = as_dataclass(StreamPlan, stream, f"the stream of {what}", advice=ADVICE)
        rows.append(as_dataclass(Experiment, values, what, advice=ADVICE, stream=plan, **NOT_IN_FILES))
    titled = {"title": name, **header}
    return as_dataclass(Recipe, titled, f"the recipe {name}", advice=ADVICE, name=name, rows=tuple(rows))
