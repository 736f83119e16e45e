"""Where results are saved: ``OUT/recipe/`` with a folder for each experiment, found again by the experiment's hash.

Layout of ``OUT/recipe/label-seed-hash/``:

    experiment.json   what is run, and the fingerprints of the model, the stream and the calibration images
    records.jsonl     one checksummed line a batch: all that was measured, times aside
    costs.jsonl       one checksummed line a batch: seconds and peak memory
    state-000123.npz  the method after 123 batches, while the run is unfinished
    conditions.json   machine, versions and total cost, once it is finished
    result.json       the measures, once it is finished: byte-equal however often the run was interrupted

``OUT/recipe/recipe.json`` holds the recipe as the latest command had it, and what all commands asked of it so far:
settings (model, images, severity, calibration) and the seeds of each. Rows x seeds in a setting give hashes, and a
report shows the finished runs of exactly these, one table a setting. A folder with another hash is *stale*: an option
was changed since, or its row is gone. So runs that differ in anything but the seed are never averaged.
"""

import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from fozo.bench.measures import BatchRecord, Cost, Measures
from fozo.bench.plan import AVERAGE, Experiment, Recipe, Setting, published, read_recipe
from fozo.errors import FozoError
from fozo.io import as_dataclass, locked, read_json, read_log, remove_temporary_files, write_json
from fozo.io.system import usable_cpus

PACKAGES = ("fozo", "numpy", "torch", "timm", "transformers", "onnxruntime", "openvino", "pillow", "scipy")
STATUS = Path("/proc/self/status")
L = TypeVar("L", BatchRecord, Cost)
RECIPE, EXPERIMENT, RESULT, CONDITIONS = "recipe.json", "experiment.json", "result.json", "conditions.json"
RECORDS, COSTS = "records.jsonl", "costs.jsonl"
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

    packages: dict[str, str]  # versions of what matters, as far as it is installed
    python: str
    system: str
    processor: str
    cores: int  # processors that this process may use
    threads: int
    device: str


def environment(threads: int, device: str) -> Environment:
    versions = {}
    for name in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    if device.startswith("cuda"):
        import torch

        device = f"{device} ({torch.cuda.get_device_name(device)})"
    system = f"{platform.system()} {platform.machine()}"
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    processor = next(named, platform.processor())
    return Environment(versions, platform.python_version(), system, processor, usable_cpus(), threads, device)


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
    stream_fingerprint: str
    calibrated_on: str | None
    parameters: int  # how many numbers the method adapts
    environment: Environment
    seconds: float
    memory: int
    command: str
    finished: str


@contextmanager
def naming(path: Path) -> Iterator[None]:
    try:
        yield
    except FozoError as error:
        raise FozoError(f"{path} cannot be read: {error}") from error


@dataclass(frozen=True)
class _Request(Setting):
    """A setting and the seeds that were asked for in it."""

    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Asked:
    asked: tuple[_Request, ...]


@dataclass(frozen=True)
class Run:
    """One finished experiment."""

    experiment: Experiment
    measures: Measures
    conditions: Conditions
    folder: Path

    def records(self) -> list[BatchRecord]:
        return self._records

    @cached_property
    def _records(self) -> list[BatchRecord]:
        return self._read(RECORDS, BatchRecord.read)

    def costs(self) -> list[Cost]:
        return self._read(COSTS, Cost.read)

    def _read(self, name: str, read: Callable[[Mapping[str, Any]], L]) -> list[L]:
        with naming(self.folder / name):
            lines, batches = [read(line) for line in read_log(self.folder / name)], self.measures.batches
            if len(lines) != batches:
                raise FozoError(f"it holds {len(lines)} batches, and the result is of {batches}; run it again")
            return lines


@dataclass(frozen=True)
class RunFolder:
    """The folder of one experiment, while this process has it to itself."""

    path: Path
    experiment: Experiment
    begun: Mapping[str, Any]  # what the folder was begun with; empty where it is new

    def check(self, identity: Mapping[str, object]) -> None:
        """Refuse to go on with other weights or images than the folder was begun with."""
        for key, what in FINGERPRINTS.items():
            if key in identity and self.begun.get(key) != identity[key]:
                raise FozoError(f"{self.path} was begun with other {what}; choose another --out for these")

    def finished(self) -> Run | None:
        if not (self.path / RESULT).exists():
            return None
        result, cost = read_json(self.path / RESULT), read_json(self.path / CONDITIONS)
        shared = {name: value for name, value in result.items() if name in Conditions.__dataclass_fields__}
        with naming(self.path):
            conditions = as_dataclass(Conditions, shared | cost, "the conditions")
            return Run(self.experiment, Measures.read(result.get("measures")), conditions, self.path)

    def finish(self, identity: Mapping[str, object], measures: Measures, conditions: Conditions, digest: str) -> Run:
        """Write the result; ``digest`` is of the records."""
        counts = {"parameters": conditions.parameters, "passes": measures.passes_per_image}
        result = {**identity, "measures": asdict(measures), **counts, "digest": digest}
        here = {name: value for name, value in asdict(conditions).items() if name not in result}
        write_json(self.path / CONDITIONS, here)
        write_json(self.path / RESULT, result)
        return Run(self.experiment, measures, conditions, self.path)


@dataclass(frozen=True)
class Group:
    """The finished runs of a recipe in one setting: those that may stand in one table."""

    recipe: Recipe
    setting: str
    runs: tuple[Run, ...]  # in the order of the recipe, then of the seeds

    @property
    def labels(self) -> list[str]:
        """Rows that have been run, in the recipe's order, but tuned ones behind those with the published constants."""
        found = list(dict.fromkeys(run.experiment.label for run in self.runs))
        return sorted(found, key=lambda label: found.index(published(label) if published(label) in found else label))

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(run.experiment.column for run in self.runs))

    def of(self, label: str, column: str = AVERAGE) -> list[Run]:
        return [run for run in self.runs if (run.experiment.label, run.experiment.column) == (label, column)]

    def first(self, label: str) -> Run:
        return min((run for run in self.runs if run.experiment.label == label), key=lambda run: run.experiment.seed)


@dataclass(frozen=True)
class Store:
    """The results of one recipe."""

    folder: Path

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

    def ask(self, recipe: Recipe, setting: Setting, seeds: Iterable[int]) -> None:
        """Write down that these seeds of a recipe are wanted in this setting, beside what was asked before.

        The caller holds the folder's lock.
        """
        file = self.folder / RECIPE
        remove_temporary_files(self.folder)
        model = str(recipe.experiments(setting)[0].identity()["model"])
        new = _Request(**asdict(replace(setting, model=model)), seeds=tuple(seeds))
        # Settings that come to the same, such as the recipe's own number of images named or not, are one.
        asked: dict[tuple[str, ...], _Request] = {}
        for each in [*(self._asked(read_json(file)) if file.exists() else ()), new]:
            key = tuple(e.hash for e in recipe.experiments(each))
            known = asked.get(key, each)
            asked[key] = replace(known, seeds=tuple(dict.fromkeys([*known.seeds, *each.seeds])))
        listed = [asdict(each) for each in asked.values()]
        write_json(file, {"name": recipe.name, **recipe.to_dict(), "asked": listed})

    def _asked(self, payload: Mapping[str, Any]) -> tuple[_Request, ...]:
        with naming(self.folder / RECIPE):
            listed = as_dataclass(_Asked, {"asked": payload.get("asked", [])}, "the list of settings").asked
            if not all(each.seeds for each in listed):
                raise FozoError("a setting has no seeds; give fozo bench once more")
            return listed

    def plans(self) -> tuple[Recipe, list[list[Experiment]]]:
        """Read back the recipe and the experiments that were asked for, a list for each setting."""
        payload = read_json(self.folder / RECIPE)
        asked = self._asked(payload)
        plain = {name: value for name, value in payload.items() if name not in ("name", "asked")}
        with naming(self.folder / RECIPE):
            recipe = read_recipe(plain, str(payload.get("name", self.folder.name)))
            return recipe, [recipe.experiments(each, seeds=sorted(each.seeds)) for each in asked]

    def stale(self) -> list[Path]:
        wanted = {experiment.hash for plan in self.plans()[1] for experiment in plan}
        found = sorted(path.parent for path in self.folder.glob(f"*/{EXPERIMENT}"))
        return [path for path in found if path.name.rpartition("-")[2] not in wanted]

    def groups(self) -> list[Group]:
        """Read what is finished of what was asked, a group for each setting."""
        recipe, plans = self.plans()
        folders = {path.name.rpartition("-")[2]: path for path in self.folder.glob("*-*")}
        found = []
        for plan in plans:
            every = (RunFolder(folders[each.hash], each, {}).finished() for each in plan if each.hash in folders)
            runs = tuple(run for run in every if run is not None)
            if runs:
                found.append(Group(recipe, describe([run.experiment for run in runs]), runs))
        return sorted(found, key=lambda group: group.setting)


def describe(experiments: Sequence[Experiment]) -> str:
    plans = [experiment.stream for experiment in experiments]
    corrupted = [plan for plan in plans if plan.kinds != ("clean",)]
    counts = " or ".join(map(str, sorted({plan.images for plan in plans if plan.images is not None})))
    groups = sorted({plan.classes for plan in plans if plan.classes})
    parts = [str(experiments[0].identity()["model"]), f"{counts} images a domain" if counts else "all images"]
    if groups:  # a group may have fewer images
        parts[-1] += " at most" if counts else ""
        parts.append(f"{len(groups)} groups of classes" if groups[1:] else f"classes: {groups[0]}")
    if corrupted:
        parts.insert(1, "severity " + " or ".join(map(str, sorted({plan.severity for plan in corrupted}))))
        parts.append("ImageNet-C files" if corrupted[0].data == "imagenet-c" else "corrupted on the fly")
    return ", ".join([*parts, f"calibrated on {experiments[0].calibration} clean images at most"])


def stores(root: Path) -> list[Store]:
    found = [Store(file.parent) for file in sorted(root.glob(f"**/{RECIPE}"))]
    if not found:
        raise FozoError(f"{root} holds no results of fozo bench; give the folder that was its --out")
    return found


def collect(root: Path) -> list[Group]:
    """Find every finished run below a folder that was asked for, in groups that may be compared."""
    groups = [group for store in stores(root) for group in store.groups()]
    if not groups:
        raise FozoError(f"no run below {root} is finished yet; let fozo bench finish at least one")
    return groups
