"""From an experiment to the things it needs: image sets, the engine, source statistics, the method.

Resources keep what they have opened, so that the experiments of a recipe share one model and one set of statistics.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fozo.bench.plan import CLEAN, STORED, Experiment, StreamPlan
from fozo.core.statistics import Statistics
from fozo.data.sets import LAYOUTS, open_images, recognise, robustbench_list
from fozo.data.sets.base import ImageSet, shuffled
from fozo.data.sets.folder import Tree
from fozo.data.streams import Corrupting, DomainSource, in_order
from fozo.engines.load import LoadOptions, load_engine
from fozo.engines.onnx.schema import hash_file
from fozo.errors import FozoError
from fozo.io import disk_errors, locked, remove_temporary_files
from fozo.methods.common.measured import MEASURED, Savable
from fozo.methods.registry import AnyMethod, create, method_info
from fozo.public import calibrate
from fozo.types import Engine, Floats, Spec

CALIBRATION_SEED = 1
CALIBRATION_BATCH = 64
CACHE_VERSION = 5  # raised when what is measured on clean images changes, or its files do
IMAGENET = "imagenet"  # the data set whose images are clean ones, and calibrated on
QUANTISATION_IMAGES = 32  # clean images that PTQ4ViT searches its scales on, as published

Show = Callable[[str, int, int], None]  # what is being done, how much of it is done, and how much there is in all


def quiet(doing: str, done: int, total: int) -> None:
    """Show nothing."""


S = TypeVar("S", bound=Savable)
Make: TypeAlias = Callable[[Engine, Iterator[Floats]], S]


@dataclass(frozen=True)
class Paths:
    """Where image sets lie on this machine. No result depends on it."""

    data: Mapping[str, str] = field(default_factory=dict)
    """Folders by the name of the data set; ``imagenet`` are clean images: for calibration, and for streams that are
    corrupted as they are read."""
    image_list: str | None = None
    """RobustBench's list of 5000 images, to stream these instead of random ones."""
    pixels: str | None = None
    """A folder that keeps corrupted images, made once and not for every row."""

    def folder(self, data: str) -> str | None:
        """Where the images of a stream lie, whose ``data`` this is."""
        return self.data.get(IMAGENET if data == CLEAN else data)


def read_folders(assignments: Iterable[str]) -> dict[str, str]:
    """Read ``NAME=DIR`` of the command line."""
    folders: dict[str, str] = {}
    for text in assignments:
        name, _, folder = text.partition("=")
        if not folder:
            raise FozoError(f"--data is {text!r}; give NAME=DIR, such as imagenet=DIR")
        if name not in LAYOUTS:
            raise FozoError(f"--data has no set {name!r}; choose from {', '.join(LAYOUTS)}")
        folders[name] = folder
    return folders


@dataclass(frozen=True)
class Resources:
    """Makes what experiments need, once."""

    paths: Paths
    """Where image sets lie."""
    load: LoadOptions
    """How models are loaded; ``threads`` is also how many threads decode images."""
    cache_dir: Path
    """Keeps source statistics, scales and whatever else is measured from run to run."""
    _engines: dict[object, Engine] = field(default_factory=dict, repr=False)
    _sets: dict[object, ImageSet] = field(default_factory=dict, repr=False)
    _digests: dict[str, str] = field(default_factory=dict, repr=False)

    def images(self, plan: StreamPlan) -> ImageSet:
        if plan not in self._sets:
            whole = self._open(plan)
            images = whole
            if self.paths.image_list is not None:
                images = images.select(robustbench_list(self.paths.image_list))
            count = plan.images
            if plan.classes:
                images = _of_group(images, plan.classes, whole)
                count = min(count or len(images), len(images))
            self._sets[plan] = images if count is None else images.take(count)
        return self._sets[plan]

    def _open(self, plan: StreamPlan) -> ImageSet:
        path = self.paths.folder(plan.data)
        if path is None:
            name = IMAGENET if plan.data == CLEAN else plan.data
            raise FozoError(f"the folder of {name} is needed; give --data {name}=DIR")
        root = Path(path)
        layout = "auto" if plan.data == CLEAN else plan.data
        chosen: dict[str, Any] = {}
        if plan.data == STORED:
            levels = {domain.severity for segment in plan.order.segments() for domain in segment.domains}
            chosen = {"kinds": plan.kinds, "severities": tuple(sorted(levels))}
        key = (plan.data, *chosen.values())
        if key not in self._sets:
            if chosen and root.exists():  # a missing one is refused when it is opened
                tree, layout = recognise(Tree(root))
                root = tree.root
                if layout != STORED:
                    advice = f"give it as --data {IMAGENET}=DIR to corrupt them on the fly"
                    raise FozoError(f"{path} holds clean images ({layout}); {advice}")
            self._sets[key] = open_images(root, layout, **chosen)
        return self._sets[key]

    def pixels(self, images: ImageSet, spec: Spec) -> ImageSet | DomainSource:
        if self.paths.pixels is None or images.corrupted:
            return images
        corrupting = Corrupting(images, spec.image_size, channels=spec.channels)
        name = _hash(f"{images.fingerprint} {corrupting.describe(corrupting.domains)}")
        return replace(corrupting, folder=Path(self.paths.pixels) / name)

    def clean(self, count: int, streamed: ImageSet, group: str = "") -> ImageSet:
        """Choose clean images of all classes to calibrate on, none of which is in the stream in any form.

        For a stream of one ``group`` of classes they are the first images of all classes, which no such stream has: so
        all groups of a recipe share one set of statistics.
        """
        key = (count, bool(group), streamed.fingerprint)
        if key in self._sets:
            return self._sets[key]
        clean = self._open(StreamPlan(data=CLEAN, kinds=("clean",)))
        if clean.corrupted:
            folder = self.paths.folder(CLEAN)
            raise FozoError(f"{folder} holds corrupted images; give clean ones as --data {IMAGENET}=DIR")
        taken = {str(PurePosixPath(sample.path).with_suffix("")) for sample in streamed.samples}
        paths = [clean.samples[int(i)].path for i in shuffled(len(clean), CALIBRATION_SEED)]
        if group:
            firsts = _firsts(clean)
            paths = [path for path in paths if path in firsts]
        free = [path for path in paths if str(PurePosixPath(path).with_suffix("")) not in taken]
        if len(free) < 2:
            raise FozoError(
                f"all {len(clean)} clean images are in the stream, so none is left to calibrate on; "
                f"stream fewer with --images"
            )
        self._sets[key] = clean.select(sorted(free[:count]))
        return self._sets[key]

    def inputs(self, experiment: Experiment, streamed: ImageSet) -> dict[str, str | None]:
        """Fingerprint what an experiment's hash knows by name only, without loading a model."""
        if experiment.model not in self._digests:
            # Without an option that is newer than runs on file: they are found by the digest that they began with.
            options = repr(replace(self.load, device=None, threads=None, scales=None)).replace("channels=None, ", "")
            digest = hashlib.sha256(options.encode())
            for path in (experiment.model, self.load.scales):
                if path is not None and Path(path).is_file():
                    with Path(path).open("rb") as file:
                        hash_file(file, digest.update)
            self._digests[experiment.model] = digest.hexdigest()[:16]
        needed = needs(experiment.method, experiment.options)
        return {
            "model_digest": self._digests[experiment.model],
            "images_fingerprint": streamed.fingerprint,
            "calibrated_on": self._calibration(experiment, streamed).fingerprint if needed else None,
        }

    def _calibration(self, experiment: Experiment, streamed: ImageSet) -> ImageSet:
        return self.clean(experiment.calibration, streamed, experiment.stream.classes)

    def engine(self, model: str, classes: tuple[int, ...] | None = None, threads: int | None = None) -> Engine:
        """Load a model, with its head restricted to ``classes``; PyTorch's threads are the runner's to set."""
        key = (model, classes, threads)
        if key not in self._engines:
            session_threads = threads if model.endswith(".onnx") else None
            self._engines[key] = load_engine(model, replace(self.load, classes=classes, threads=session_threads))
        return self._engines[key]

    def quantised(self, experiment: Experiment, streamed: ImageSet, show: Show = quiet) -> Engine:
        """Quantise a model on clean images that are not in the stream, with cached scales where there are some."""
        from fozo.quant import Scales, ptq4vit, with_scales

        clean = self.clean(QUANTISATION_IMAGES, streamed, experiment.stream.classes)
        whole = self.engine(experiment.model)  # whatever classes the stream has, the scales are the model's

        def search(engine: Engine, batches: Iterator[Floats]) -> Scales:
            bits = int(experiment.quantise.removeprefix("ptq4vit"))
            return ptq4vit(engine, np.concatenate(list(batches)), bits, progress=partial(show, "quantising")).scales

        scales = self._cached(experiment.quantise, whole, clean, Scales.load, search, show)
        key = (f"{experiment.model} {experiment.quantise} {clean.fingerprint}", streamed.mask)
        if key not in self._engines:
            self._engines[key] = with_scales(self.engine(experiment.model, streamed.mask), scales)
        return self._engines[key]

    def method(self, experiment: Experiment, engine: Engine, streamed: ImageSet, show: Show = quiet) -> AnyMethod:
        options: dict[str, Any] = {"seed": experiment.seed, "batch_size": experiment.stream.batch_size}
        wanted = needs(experiment.method, experiment.options)
        for name in sorted(wanted & MEASURED.keys()):
            clean = self._calibration(experiment, streamed)
            how = MEASURED[name]
            options[name] = self._cached(name, engine, clean, how.load, how.measure, show)
        statistics = self.statistics(experiment, engine, streamed, show) if "statistics" in wanted else None
        return create(experiment.method, engine, statistics, **{**options, **experiment.options})

    def statistics(self, experiment: Experiment, engine: Engine, streamed: ImageSet, show: Show) -> Statistics:
        clean = self._calibration(experiment, streamed)
        return self._cached("statistics", engine, clean, Statistics.load, calibrate, show)

    def _cached(
        self, kind: str, engine: Engine, images: ImageSet, load: Callable[[Path], S], make: Make[S], show: Show
    ) -> S:
        """Load what was made before of this model and these images, or make and save it."""
        spec = engine.spec
        model = (spec.fingerprint, spec.subset, spec.image_size, spec.mean, spec.std)
        path = self.cache_dir / f"{kind}-{_hash(repr((CACHE_VERSION, model, images.fingerprint)))}.safetensors"
        with locked(self.cache_dir, wait=True):  # workers that need the same wait for the first to make it
            if path.exists():
                return load(path)
            remove_temporary_files(self.cache_dir)  # of a process that was killed while it saved
            seen = partial(show, "calibrating")
            batches = in_order(images, spec, batch_size=CALIBRATION_BATCH, workers=self.load.threads, show=seen)
            measured = make(engine, (batch.images for batch in batches))
            with disk_errors(path):
                measured.save(path)
        return measured


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _firsts(images: ImageSet) -> set[str]:
    """The first image of each class."""
    firsts: dict[int, str] = {}
    for path, label in sorted(images.samples):
        firsts.setdefault(label, path)
    return set(firsts.values())


def _of_group(images: ImageSet, group: str, whole: ImageSet) -> ImageSet:
    """Keep the images of a group's classes, without the first of each class in the whole set."""
    from fozo.data.groups import CLASSES, class_indices  # reads the groups of ImageNet's classes

    if len(images.classes) != CLASSES:
        raise FozoError(
            f"the {images.name} set has {len(images.classes)} classes, but the group {group!r} is of ImageNet's "
            f"{CLASSES}; give images of ImageNet, or run a recipe without groups of classes"
        )
    wanted = set(class_indices(group))
    firsts = _firsts(whole)
    chosen = tuple(sample for sample in images.samples if sample.label in wanted and sample.path not in firsts)
    if not chosen:
        raise FozoError(
            f"the {images.name} set has no images of {group!r} beside the first of each class, which is left to "
            f"calibration; give a set with more images of these classes"
        )
    return replace(images, samples=chosen)


def needs(method: str, options: Mapping[str, object]) -> frozenset[str]:
    """Say what has to be measured on clean images for a method: ``statistics``, or one of ``MEASURED``."""
    measured = method_info(method).needs & {"statistics", *MEASURED}
    return measured - {"fisher"} if options.get("fisher_weight") == 0 else measured
