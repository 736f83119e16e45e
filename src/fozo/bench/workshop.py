"""From an experiment to the things it needs: the engine, the stream, the source statistics, the method.

A workshop keeps what it has opened, so that the experiments of a recipe share one model and one set of statistics.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fozo.bench.experiment import Experiment, StreamPlan
from fozo.bench.folder import disk_errors, locked
from fozo.core.statistics import SourceStatistics
from fozo.data.scenarios import Continual
from fozo.data.sets import open_images, recognise, robustbench_list
from fozo.data.sets.base import ImageSet, shuffled
from fozo.data.streams import Stream
from fozo.engines.base import Engine
from fozo.engines.load import load_engine
from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.registry import create, methods, takes

if TYPE_CHECKING:
    from fozo.methods.eata import Fisher

CALIBRATION_SEED = 1
CALIBRATION_BATCH = 64
QUANTISATION_IMAGES = 32
"""Clean images that PTQ4ViT searches its scales on, as published."""


@dataclass(frozen=True)
class Places:
    """Where things lie on this machine. No result depends on it."""

    imagenet: str | None = None
    """Clean images: for calibration, and for streams that are corrupted as they are read."""
    imagenet_c: str | None = None
    imagenet_r: str | None = None
    imagenet_sketch: str | None = None
    imagenet_v2: str | None = None
    image_list: str | None = None
    """RobustBench's list of 5000 images, to stream these instead of random ones."""
    architecture: str | None = None
    """The model's timm name, where its file is called otherwise."""
    device: str | None = None
    threads: int | None = None
    """Processors for an exported model; all by default. PyTorch's threads are set by the runner."""

    def of(self, data: str) -> Path:
        """Say where a set lies."""
        path = getattr(self, data.replace("-", "_"))
        if path is None:
            raise FozoError(f"the folder of {data} is needed; give --{data} DIR")
        return Path(path)


def load_model(
    model: str, places: Places, classes: tuple[int, ...] | None = None, scales: Path | None = None
) -> Engine:
    """Load a weights file, or ``timm:NAME`` with timm's own download; quantised where ``scales`` are given."""
    if not model.startswith("timm:"):
        threads = places.threads if model.endswith(".onnx") else None
        return load_engine(
            model,
            architecture=places.architecture,
            classes=classes,
            device=places.device,
            threads=threads,
            scales=scales,
        )
    name = model.removeprefix("timm:")
    if "." not in name:
        raise FozoError(
            f"timm's {name!r} has meant different weights over time; name the full tag, such as "
            f"timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
        )
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        raise FozoError(f"cannot import timm ({error}); install it with pip install 'fozo[timm]'") from error
    try:
        module = timm.create_model(name, pretrained=True)
    except (RuntimeError, OSError) as error:
        raise FozoError(f"timm cannot give {name} ({error}); check the name and the connection") from error
    return load_engine(module.eval(), architecture=name, classes=classes, device=places.device, scales=scales)


def device_of(engine: Engine) -> str:
    """Name the device that an engine computes on."""
    return str(getattr(engine, "device", "cpu"))


class Workshop:
    """Makes what experiments need, once."""

    def __init__(self, places: Places, shelf: Path) -> None:
        """Look for things at ``places``; keep calibrations in the folder ``shelf``."""
        self.places = places
        self.shelf = shelf
        self._engines: dict[tuple[str, tuple[int, ...] | None], Engine] = {}
        self._quantised: dict[tuple[str, tuple[int, ...] | None], Engine] = {}
        self._sets: dict[object, ImageSet] = {}

    def images(self, plan: StreamPlan) -> ImageSet:
        """Open the images that a plan streams."""
        images = self._open(plan)
        if self.places.image_list is not None:
            images = images.select(robustbench_list(self.places.image_list))
        return images if plan.images is None else images.take(plan.images)

    def _open(self, plan: StreamPlan) -> ImageSet:
        domains = [domain for segment in plan.order().segments() for domain in segment.domains]
        levels = tuple(sorted({domain.severity for domain in domains}))
        key = (plan.data, *((plan.kinds, levels) if plan.data == "imagenet-c" else ()))
        if key in self._sets:
            return self._sets[key]
        path = self.places.of(plan.data)
        if plan.data == "imagenet-c":
            if not path.exists():
                raise FozoError(f"there is no file or folder {path}; check the path")
            root, layout = recognise(path)
            if layout not in ("imagenet-c", "cifar-c"):
                raise FozoError(
                    f"{path} holds clean images ({layout}); give it as --imagenet to corrupt them on the fly"
                )
            images = open_images(root, layout, kinds=plan.kinds, severities=levels)
        else:
            images = open_images(path, "auto" if plan.data == "imagenet" else plan.data)
        self._sets[key] = images
        return images

    def engine(self, model: str, classes: tuple[int, ...] | None = None) -> Engine:
        """Load a model, with its head restricted to ``classes``."""
        key = (model, classes)
        if key not in self._engines:
            self._engines[key] = load_model(model, self.places, classes)
        return self._engines[key]

    def stream(self, experiment: Experiment) -> tuple[Engine, Stream]:
        """Make the engine and the stream of an experiment."""
        plan = experiment.stream
        images = self.images(plan)
        engine = self.engine(experiment.model, images.mask)
        if experiment.quantise:
            engine = self.quantised(experiment, engine, images)
        stream = Stream(images, engine.spec, plan.order(), batch_size=plan.batch_size, seed=experiment.seed)
        return engine, stream

    def quantised(self, experiment: Experiment, engine: Engine, test: ImageSet) -> Engine:
        """Quantise a model on clean images that are not in the stream, with scales kept from before where possible."""
        from fozo.quant import Scales, ptq4vit, with_scales

        clean = self.calibration(replace(experiment, calibration=QUANTISATION_IMAGES), test)
        whole = self.engine(experiment.model)  # whatever classes the stream has, the scales are the model's
        path = self._kept(whole, clean, experiment.quantise)
        with locked(self.shelf, wait=True):
            if not path.exists():
                images = np.concatenate(list(self._batches(whole, clean)))
                bits = int(experiment.quantise.removeprefix("ptq4vit"))
                scales = ptq4vit(whole, images, bits, progress=preparing("quantising, layers searched")).scales
                with disk_errors(path):
                    scales.save(path)
        key = (path.name, engine.spec.subset)
        if key not in self._quantised:
            self._quantised[key] = with_scales(engine, Scales.load(path))
        return self._quantised[key]

    def calibration(self, experiment: Experiment, test: ImageSet) -> ImageSet:
        """Choose clean images to calibrate on, none of which is in the stream in any form."""
        clean = self._open(StreamPlan(data="imagenet", kinds=("clean",)))
        if clean.corrupted:
            raise FozoError(f"{self.places.imagenet} holds corrupted images; give clean ones as --imagenet")
        streamed = {str(PurePosixPath(sample.path).with_suffix("")) for sample in test.samples}
        order = shuffled(len(clean), CALIBRATION_SEED)
        paths = [clean.samples[int(i)].path for i in order]
        free = [path for path in paths if str(PurePosixPath(path).with_suffix("")) not in streamed]
        if len(free) < 2:
            raise FozoError(
                f"all {len(clean)} clean images are in the stream, so none is left to calibrate on; "
                f"stream fewer with --images"
            )
        return clean.select(sorted(free[: experiment.calibration]))

    def _batches(self, engine: Engine, images: ImageSet) -> Iterator[npt.NDArray[np.float32]]:
        plain = replace(engine.spec, subset=images.mask, classes=len(images.classes))
        order = Continual(kinds=("clean",), shuffle=False)
        tell, done = preparing("calibrating on clean images"), 0
        for batch in Stream(images, plain, order, batch_size=CALIBRATION_BATCH).batches():
            yield batch.images
            done += len(batch.images)
            tell(done, len(images))

    def _kept(self, engine: Engine, images: ImageSet, kind: str) -> Path:
        spec = engine.spec
        text = f"{spec.fingerprint} {spec.subset} {spec.image_size} {spec.mean} {spec.std} {images.fingerprint}"
        return self.shelf / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.npz"

    def source(self, engine: Engine, images: ImageSet) -> SourceStatistics:
        """Measure the source statistics, or load them where that was done before."""
        path = self._kept(engine, images, f"source{SourceStatistics.VERSION}")
        with locked(self.shelf, wait=True):  # workers that need the same statistics wait for the first to make them
            if not path.exists():
                statistics = SourceStatistics.collect(engine, self._batches(engine, images))
                with disk_errors(path):
                    statistics.save(path)
        return SourceStatistics.load(path)

    def fisher(self, engine: Engine, images: ImageSet) -> Fisher:
        """Measure EATA's Fisher information, or load it where that was done before."""
        from fozo.methods.eata import Fisher, fisher

        path = self._kept(engine, images, "fisher")
        with locked(self.shelf, wait=True):
            if not path.exists():
                measured = fisher(engine, self._batches(engine, images))
                with disk_errors(path):
                    measured.save(path)
        return Fisher.load(path)

    def method(self, experiment: Experiment, engine: Engine, test: ImageSet) -> tuple[Method, str | None]:
        """Make an experiment's method, and name what it was calibrated on (``None`` where it needs nothing)."""
        name = experiment.method
        if name not in methods():
            create(name, engine)  # which knows the right words
        info = methods()[name]
        options = _nested(name, dict(experiment.options))
        if takes(name, "seed"):
            options.setdefault("seed", experiment.seed)
        if info.needs_gradient:
            options.setdefault("batch_size", experiment.stream.batch_size)
        wants_fisher = takes(name, "fisher") and options.get("fisher_weight", 1)
        if not info.needs_source and not wants_fisher:
            return create(name, engine, None, **options), None
        clean = self.calibration(experiment, test)
        if wants_fisher:
            options["fisher"] = self.fisher(engine, clean)
        source = self.source(engine, clean) if info.needs_source else None
        return create(name, engine, source, **options), clean.fingerprint


def preparing(doing: str) -> Callable[[int, int], None]:
    """Make a line on a terminal that says how far a preparation is; nothing into a pipe."""

    def tell(done: int, total: int) -> None:
        if sys.stderr.isatty():
            text = f"{doing}: {done}/{total}" if done < total else ""
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return tell


def _nested(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """Turn ``schedule.decay = 0.5`` into a schedule: options in recipes are plain values, some of FOZO's are not."""
    from fozo.core.recall import Rule
    from fozo.core.schedule import Schedule
    from fozo.methods.prompt_fozo import PRESETS

    preset = str(options.get("preset", ""))
    # A preset that does not exist is refused by FOZO itself, in the right words.
    schedule = PRESETS[preset].schedule if preset in PRESETS else Schedule()
    for group, base in (("schedule", schedule), ("recall", Rule())):
        inner = {key.partition(".")[2]: options.pop(key) for key in list(options) if key.startswith(f"{group}.")}
        if not inner:
            continue
        known = type(base).__dataclass_fields__
        unknown = [key for key in inner if key not in known]
        if name != "fozo" or unknown:
            raise FozoError(
                f"{name} has no option {group}.{next(iter(unknown or inner))}; only fozo has a {group}, with "
                f"{', '.join(known)}"
            )
        options[group] = replace(base, **inner)
    return options
