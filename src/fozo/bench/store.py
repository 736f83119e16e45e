"""Where results are saved: ``OUT/recipe/`` with a folder for each experiment, found again by the experiment's hash.

Layout of ``OUT/recipe/label-seed-hash/``:

    experiment.json   what is run, and the fingerprints of the model, the stream and the calibration images
    records.jsonl     one checksummed line a batch: all that was measured, times aside
    costs.jsonl       one checksummed line a batch: seconds and peak memory
    state-000123.safetensors  the method after 123 batches, while the run is unfinished
    conditions.json   machine, versions and total cost, once it is finished
    result.json       the measures, once it is finished: byte-equal however often the run was interrupted

``OUT/recipe/recipe.json`` holds the recipe as the latest command had it, with the rows that only earlier ones had. A
report shows all finished runs of these rows, one table for each setting (model, calibration, images, severity). A run
whose row has other options by now is *stale* and left out. So runs that differ in anything but the seed are never
averaged.
"""

import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from fozo.bench.measures import BatchRecord, Cost, Measures
from fozo.bench.plan import AVERAGE, STORED, Constants, Experiment, Recipe, read_recipe
from fozo.errors import FozoError
from fozo.io import as_dataclass, locked, read_json, read_log, remove_temporary_files, write_json
from fozo.io.system import processor_name, usable_cpus

PACKAGES = ("fozo", "numpy", "torch", "timm", "transformers", "onnxruntime", "openvino", "pillow", "scipy")
STATUS = Path("/proc/self/status")
L = TypeVar("L", BatchRecord, Cost)
RECIPE = "recipe.json"
EXPERIMENT = "experiment.json"
RESULT = "result.json"
CONDITIONS = "conditions.json"
RECORDS = "records.jsonl"
COSTS = "costs.jsonl"
CHOSEN = ("images", "severity", "data")  # what a command may choose of a row's stream
SHOWN = ("label", "constants", "column", "x", "axis", "paper")  # how tables show a row
IDENTITY = ("model", "method", "options", "stream", "seed", "calibration", "quantise", "code")
FINGERPRINTS = {
    "model_digest": "model weights or loading options",
    "weights": "model weights",
    "images_fingerprint": "images",
    "stream_fingerprint": "images",
    "calibrated_on": "calibration images",
}  # What an experiment's hash does not know of, and two runs in one folder must have in common


@dataclass(frozen=True)
class Environment:
    """The machine and its software."""

    packages: dict[str, str]
    """Versions of what matters, as far as it is installed."""
    python: str
    """Its version."""
    system: str
    """Operating system and architecture."""
    processor: str
    """Its model's name."""
    cores: int
    """Processors that this process may use."""
    threads: int
    """Threads that the model ran with."""
    device: str
    """Where it ran."""


def environment(threads: int, device: str) -> Environment:
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    if device.startswith("cuda"):
        import torch

        device = f"{device} ({torch.cuda.get_device_name(device)})"
    system = f"{platform.system()} {platform.machine()}"
    version = platform.python_version()
    return Environment(versions, version, system, processor_name(), usable_cpus(), threads, device)


def forget_peak(device: str) -> None:
    if device.startswith("cuda"):
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # not Linux, or not allowed: the peak is then that of the whole process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: str) -> int:
    """Peak of memory so far in bytes: the allocator's on CUDA, else the resident size of this process; 0 on Windows.

    Linux passes ru_maxrss on from the process that started this one; VmHWM is this process's alone.
    """
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    if STATUS.exists():
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM"):
                return 1024 * int(line.split()[1])
    try:
        import resource
    except ImportError:
        return 0
    scale = 1 if sys.platform == "darwin" else 1024
    return scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@dataclass(frozen=True)
class Conditions:
    """What a run was measured on, and what it cost."""

    weights: str
    """Fingerprint of the model."""
    stream_fingerprint: str
    """Fingerprint of the images and their order."""
    calibrated_on: str | None
    """Fingerprint of the calibration images, where the method needs some."""
    parameters: int
    """How many numbers the method adapts."""
    environment: Environment
    """The machine."""
    seconds: float
    """Time inside the method."""
    memory: int
    """Peak in bytes."""
    command: str
    """What the user typed."""
    finished: str
    """When, in UTC."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    try:
        yield
    except FozoError as error:
        raise FozoError(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class Run:
    """One finished experiment."""

    experiment: Experiment
    """What was run, as its row of the recipe shows it."""
    measures: Measures
    """What the records amount to."""
    conditions: Conditions
    """Where it ran, and what it cost."""
    folder: Path
    """Where its files are."""

    def records(self) -> list[BatchRecord]:
        return self._records

    @cached_property
    def _records(self) -> list[BatchRecord]:
        return self._read(RECORDS, BatchRecord.read)

    def costs(self) -> list[Cost]:
        return self._read(COSTS, Cost.read)

    def _read(self, name: str, read: Callable[[Mapping[str, Any]], L]) -> list[L]:
        path = self.folder / name
        with naming(path):
            lines = [read(line) for line in read_log(path)]
            if len(lines) != self.measures.batches:
                raise FozoError(
                    f"it holds {len(lines)} batches, and the result is of {self.measures.batches}; run it again"
                )
            return lines


@dataclass(frozen=True)
class RunFolder:
    """The folder of one experiment, while this process has it to itself."""

    path: Path
    """The folder."""
    experiment: Experiment
    """What is run in it."""
    begun: Mapping[str, Any]
    """What it was begun with; empty where it is new."""

    def check(self, identity: Mapping[str, object]) -> None:
        """Refuse to go on with other weights or images than the folder was begun with."""
        for key, what in FINGERPRINTS.items():
            if key in identity and self.begun.get(key) != identity[key]:
                raise FozoError(f"{self.path} was begun with other {what}; choose another --out for these")

    def finished(self) -> Run | None:
        if not (self.path / RESULT).exists():
            return None
        return _finished(self.path, self.experiment, read_json(self.path / RESULT))

    def finish(self, identity: Mapping[str, object], measures: Measures, conditions: Conditions, digest: str) -> Run:
        """Write the result; ``digest`` is of the records."""
        counts = {"parameters": conditions.parameters, "passes": measures.passes_per_image}
        result = {**identity, "measures": asdict(measures), **counts, "digest": digest}
        here = {name: value for name, value in asdict(conditions).items() if name not in result}
        write_json(self.path / CONDITIONS, here)
        write_json(self.path / RESULT, result)
        return Run(self.experiment, measures, conditions, self.path)


def _finished(folder: Path, experiment: Experiment, result: Mapping[str, Any]) -> Run:
    shared = {name: result[name] for name in Conditions.__dataclass_fields__ if name in result}
    with naming(folder):
        conditions = as_dataclass(Conditions, shared | read_json(folder / CONDITIONS), "the conditions")
        return Run(experiment, Measures.read(result.get("measures")), conditions, folder)


@dataclass(frozen=True)
class Group:
    """The finished runs of a recipe in one setting: those that may stand in one table."""

    recipe: Recipe
    """The rows and the paper's numbers."""
    setting: str
    """Model, images, severity and calibration, in words."""
    runs: tuple[Run, ...]
    """In the order of the recipe, then of the seeds."""

    @property
    def labels(self) -> list[str]:
        """Titles of the rows that have been run, in the recipe's order, but those of one label together."""
        rows = [run.experiment for run in self.runs]
        places = {row.label: place for place, row in reversed(list(enumerate(rows)))}
        return list(dict.fromkeys(row.title for row in sorted(rows, key=lambda row: places[row.label])))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(run.experiment.column for run in self.runs))

    def of(self, label: str, column: str = AVERAGE) -> list[Run]:
        return [run for run in self.runs if (run.experiment.title, run.experiment.column) == (label, column)]

    def firsts(self, column: str) -> dict[str, Run]:
        """The first seed's run of every row that has one in a column."""
        rows = {label: self.of(label, column) for label in self.labels}
        return {label: runs[0] for label, runs in rows.items() if runs}


@dataclass(frozen=True)
class Store:
    """The results of one recipe."""

    folder: Path
    """The folder ``OUT/recipe``."""

    @contextmanager
    def open(self, experiment: Experiment) -> Iterator[RunFolder]:
        """Keep an experiment's folder to this process, without what a killed one left half-written.

        The folder is found by the hash, whatever its row was called when it was made.
        """
        readable = re.sub(r"[^a-z0-9]+", "-", experiment.name.lower()).strip("-")
        new = self.folder / f"{readable}-s{experiment.seed}-{experiment.hash}"
        path = next(self.folder.glob(f"*-{experiment.hash}"), new)
        with locked(path):
            remove_temporary_files(path)
            begun = read_json(path / EXPERIMENT) if (path / EXPERIMENT).exists() else {}
            yield RunFolder(path, experiment, begun)

    def write(self, recipe: Recipe) -> None:
        """Write down the recipe of the latest command, with the rows that only earlier ones had.

        The caller holds the folder's lock.
        """
        remove_temporary_files(self.folder)
        if (self.folder / RECIPE).exists():
            names = {row.name for row in recipe.rows}
            contents = {row.hash for row in recipe.rows}  # without model and seed
            earlier = (row for row in self.recipe().rows if row.name not in names and row.hash not in contents)
            recipe = replace(recipe, rows=(*recipe.rows, *earlier))
        write_json(self.folder / RECIPE, {"name": recipe.name, **recipe.to_dict()})

    def recipe(self) -> Recipe:
        payload = read_json(self.folder / RECIPE)
        name = str(payload.pop("name", self.folder.name))
        old = payload.pop("asked", None) is not None  # the settings that commands of 0.2 had asked for
        with naming(self.folder / RECIPE):
            recipe = read_recipe(payload, name)
        return replace(recipe, rows=tuple(map(_from_old, recipe.rows))) if old else recipe

    def read(self) -> tuple[list[Group], list[Path]]:
        """Read what is finished, a group for each setting; and name the folders of stale runs."""
        recipe = self.recipe()
        stale = []
        placed: list[tuple[_Setting, int, Run]] = []
        settings: set[_Setting] = set()
        by_hash = {path.parent.name.rpartition("-")[2]: path for path in sorted(self.folder.glob(f"*/{RESULT}"))}
        for digest, path in by_hash.items():
            folder = path.parent
            result = read_json(path)
            with naming(folder):
                values = {name: result[name] for name in IDENTITY if name in result}
                done = as_dataclass(Experiment, values, "the result", label="")
            rows = _rows_of(recipe, done) if digest == done.hash else []
            if not rows:
                stale.append(folder)
                continue
            # Of rows that differ in what a command may choose, it was run for those where least was chosen.
            least = min(len(setting.chosen) for setting, _, _ in rows)
            settings |= {setting for setting, _, _ in rows if len(setting.chosen) == least}
            placed += [(setting, place, _finished(folder, row, result)) for setting, place, row in rows]
        groups = []
        for setting in settings:
            numbered = [(place, run) for known, place, run in placed if known == setting]
            numbered.sort(key=lambda entry: (entry[0], entry[1].experiment.seed))
            runs = tuple(run for _, run in numbered)
            groups.append(Group(recipe, describe([run.experiment for run in runs]), runs))
        return sorted(groups, key=lambda group: (group.setting, len(group.runs))), stale

    def groups(self) -> list[Group]:
        return self.read()[0]

    def stale(self) -> list[Path]:
        return self.read()[1]


def _from_old(row: Experiment) -> Experiment:
    """Read whose constants a row has from the end of its label, where 0.2 wrote it."""
    label, _, constants = row.label.removesuffix(")").rpartition(" (")
    if constants not in ("paper", "authors", "tuned"):
        return row
    return replace(row, label=label, constants=cast("Constants", constants))


class _Setting(NamedTuple):
    """What the runs of one table have in common."""

    model: str
    calibration: int
    chosen: tuple[tuple[str, object], ...]
    """What the command chose instead of the rows' own."""


def _rows_of(recipe: Recipe, done: Experiment) -> list[tuple[_Setting, int, Experiment]]:
    """Rows of a recipe that an experiment may be of, with their places and the setting in which they are."""
    rows = []
    for place, row in enumerate(recipe.rows):
        if row.method != done.method or row.options != done.options or not row.is_for(done.model):
            continue
        values = {name: getattr(done.stream, name) for name in CHOSEN}
        chosen = {name: value for name, value in values.items() if value != getattr(row.stream, name)}
        shown = {name: getattr(row, name) for name in SHOWN}
        quantise = "" if done.model.endswith(".onnx") else row.quantise
        stream = replace(row.stream, **chosen)
        planned = replace(done, **shown, stream=stream, quantise=quantise, code=row.code)
        if planned.hash == done.hash:
            rows.append((_Setting(done.model, done.calibration, tuple(chosen.items())), place, planned))
    return rows


def describe(experiments: Sequence[Experiment]) -> str:
    first = experiments[0]
    plans = [experiment.stream for experiment in experiments]
    corrupted = [plan for plan in plans if plan.kinds != ("clean",)]
    groups = sorted({plan.classes for plan in plans if plan.classes})
    parts = [str(first.identity()["model"])]
    if corrupted:
        parts.append(f"severity {_either({plan.severity for plan in corrupted})}")
    counts = _either({plan.images for plan in plans if plan.images is not None})
    images = f"{counts} images a domain" if counts else "all images"
    parts.append(f"{images} at most" if counts and groups else images)  # a group may have fewer
    if groups:
        parts.append(f"{len(groups)} groups of classes" if groups[1:] else f"classes: {groups[0]}")
    if corrupted:
        parts.append("ImageNet-C files" if corrupted[0].data == STORED else "corrupted on the fly")
    return ", ".join([*parts, f"calibrated on {first.calibration} clean images at most"])


def _either(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def stores(root: Path) -> list[Store]:
    found = [Store(file.parent) for file in sorted(root.glob(f"**/{RECIPE}"))]
    if not found:
        raise FozoError(f"{root} holds no results of fozo bench; give the folder that was its --out")
    return found


def read_runs(root: Path) -> tuple[list[Group], list[Path]]:
    """Find every finished run below a folder, in groups that may be compared; and the folders of stale runs."""
    groups: list[Group] = []
    stale: list[Path] = []
    for store in stores(root):
        finished, left_out = store.read()
        groups += finished
        stale += left_out
    if not groups:
        raise FozoError(f"no run below {root} is finished yet; let fozo bench finish at least one")
    return groups, stale


def collect(root: Path) -> list[Group]:
    return read_runs(root)[0]
