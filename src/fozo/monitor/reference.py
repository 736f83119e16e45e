"""The monitor's reference: what it knows of clean images, of corruptions, and of a method's predictions on both.

:meth:`MonitorReference.collect` makes it from clean images: their looks; signatures of 15 corruptions, made by
corrupting some of them; and how often predictions are right on all of these. The file that keeps it holds no image and
no label.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from fozo.data.classes import match_classes
from fozo.data.corruptions import KINDS, corrupt
from fozo.data.images import Pixels
from fozo.data.sets.base import ImageSet
from fozo.data.sources import prepare
from fozo.errors import FozoError
from fozo.io import ArraySpec, load_arrays, save_arrays
from fozo.methods.base import Method
from fozo.monitor.accuracy import probabilities
from fozo.monitor.drift import CleanImages, Whitening
from fozo.monitor.quality import STATISTICS, QualityStatistics
from fozo.monitor.regression import Evidence, Regression
from fozo.monitor.signatures import SEVERITIES, Signatures
from fozo.types import Array, Floats, Spec, Tap

SAMPLE = 64
"""Images that are corrupted for each kind and severity, unless told; every one sees others, so that all get a turn."""
BATCH = 20
LARGEST = 1e12
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Part:
    """What was measured of some images under one corruption."""

    kind: str
    severity: int
    """0 for clean images."""
    indices: npt.NDArray[np.int64]
    """Which of the clean images they are."""
    features: Array
    plain: Floats
    """Logits of the plain model."""
    adapted: Floats
    """Logits of the method, which began anew."""


@dataclass(frozen=True)
class MonitorReference:
    """What a monitor compares with."""

    fingerprint: str
    model: str
    method: str
    """Name of the method whose predictions are judged."""
    clean: CleanImages
    signatures: Signatures | None
    """Where images could be corrupted."""
    adapted: Regression | None
    """For the predictions of the method."""
    plain: Regression | None
    """For those of the plain model."""
    unlabelled: bool
    """Whether there were no labels: then accuracy is expected as a part of that on clean images."""

    KIND = "monitor reference"
    VERSION = 2

    @classmethod
    def collect(
        cls,
        adapter: Method[Any],
        images: ImageSet | Pixels,
        labels: npt.NDArray[np.integer] | None = None,
        *,
        corruptions: bool = True,
        sample: int = SAMPLE,
        progress: Progress = lambda doing, done, total: None,
    ) -> MonitorReference:
        """Measure clean images, and some of them corrupted, with a fresh copy of an adapter.

        About 2 x (images + 75 x sample) forward passes, half of it where nothing is adapted.

        Args:
            adapter: what is going to be watched.
            images: a few hundred clean ones: :func:`fozo.open_images`, whose labels are used if it has more than one
                class, or ``uint8 [n, height, width, channels]`` at the model's size.
            labels: for an array, the right columns of the logits, if they are known.
            corruptions: whether to corrupt some of them, which needs the extra ``fozo[bench]``; without, the monitor
                tells drift, looks and camera faults, but guesses no kind and expects no accuracy.
            sample: images that are corrupted for each kind and severity.
            progress: is told what is done, how much of it, and how much there is.
        """
        spec = adapter.engine.spec
        if isinstance(images, ImageSet):
            if labels is None and len(images.classes) > 1:
                images = match_classes(images, spec)
                labels = np.array([sample.label for sample in images.samples])
            pixels = _read(images, spec, progress)
        else:
            pixels = images
        if labels is not None and (len(labels) != len(pixels) or not 0 <= labels.min() <= labels.max() < spec.classes):
            raise FozoError(
                f"{len(labels)} labels up to {labels.max()} were given for {len(pixels)} images and {spec.classes} "
                f"classes; give one column of the logits for each image, or no labels"
            )
        if sample < 2:
            raise FozoError(f"sample is {sample}; give at least 2 images for each corruption, such as {SAMPLE}")
        return cls.of(adapter, list(measure(adapter, pixels, sample if corruptions else 0, progress)), labels)

    @classmethod
    def of(
        cls, adapter: Method[Any], parts: list[Part], labels: npt.NDArray[np.integer] | None = None
    ) -> MonitorReference:
        """Learn from what :func:`measure` gave, the clean images first."""
        clean = CleanImages.of(parts[0].features)
        spec, name = adapter.engine.spec, adapter.info.name
        made = cls(spec.fingerprint, spec.name, name, clean, None, None, None, labels is None)
        if len(parts) == 1:
            return made
        corrupted = {(part.kind, part.severity): part.features for part in parts[1:]}
        signatures = Signatures.of(parts[0].features, corrupted)
        truth = probabilities(parts[0].plain)

        def regression(logits: Callable[[Part], Floats]) -> Regression:
            evidence = []
            for part in parts:
                told = logits(part)
                named = told.argmax(axis=1)
                right = None if labels is None else (named == labels[part.indices]).astype(np.float64)
                places = signatures.rows(part.features)
                evidence.append(Evidence(part.kind, told, places, truth[part.indices, named], right))
            return Regression.of(evidence)

        return replace(
            made,
            signatures=signatures,
            adapted=regression(lambda part: part.adapted),
            plain=regression(lambda part: part.plain),
        )

    @property
    def expects_accuracy(self) -> bool:
        """Whether an accuracy can be told, and not only a part of that on clean images, or nothing."""
        return self.adapted is not None and not self.unlabelled

    def check(self, adapter: Method[Any]) -> None:
        """Refuse to serve another model or method than the one it was collected with."""
        spec = adapter.engine.spec
        if self.fingerprint != spec.fingerprint or self.method != adapter.info.name:
            raise FozoError(
                f"this monitor reference is of {self.method} on {self.model} ({self.fingerprint[:12]}), not of "
                f"{adapter.info.name} on {spec.name} ({spec.fingerprint[:12]}); collect it again with this one"
            )
        if (width := QualityStatistics(spec).width) != len(self.clean.whitening.mean):
            raise FozoError(
                f"this monitor reference has {len(self.clean.whitening.mean)} features an image, where images of "
                f"{spec.name} have {width}; collect it again"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` (no pickle), atomically."""
        clean, white = self.clean, self.clean.whitening
        header: dict[str, object] = {
            "kind": self.KIND, "version": self.VERSION, "fingerprint": self.fingerprint, "model": self.model,
            "method": self.method, "images": clean.images, "looks": [look.name for look in STATISTICS],
            "unlabelled": self.unlabelled,
        }  # fmt: skip
        arrays: dict[str, npt.NDArray[np.generic]] = {
            "clean.mean": white.mean, "clean.std": white.std, "clean.centre": white.centre,
            "clean.matrix": white.matrix, "clean.scales": np.array([clean.length, clean.variance, clean.norm]),
        }  # fmt: skip
        if self.signatures is not None:
            s = self.signatures
            header |= {"kinds": list(s.kinds), "sample": s.images}
            arrays |= {"signatures.matrix": s.matrix, "signatures.points": s.points}
            arrays |= {"signatures.mean": s.mean, "signatures.std": s.std}
        for name, regression in (("adapted", self.adapted), ("plain", self.plain)):
            if regression is not None:
                arrays |= {f"{name}.{part}": array for part, array in regression.arrays().items()}
        save_arrays(path, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MonitorReference:
        """Read what :meth:`save` wrote; what no images can have given is refused here."""
        try:
            header, found = load_arrays(path, cls.KIND, partial(cls._check_specs, path))
            arrays = {name: array.astype(np.float64) for name, array in found.items()}
            for name, array in arrays.items():
                if not (np.abs(array) <= LARGEST).all():
                    raise ValueError(f"{name} has values that are not finite")
            facts: Any = header
            white = Whitening(*(arrays[f"clean.{name}"] for name in ("mean", "std", "centre", "matrix")))
            length, variance, norm = arrays["clean.scales"].tolist()
            images = int(facts["images"])
            if min(length, variance, norm, float(white.std.min())) <= 0 or images < 1:
                raise ValueError("its scales are not positive")
            signatures = None
            if "signatures.points" in arrays:
                signatures = Signatures(
                    tuple(map(str, facts["kinds"])), arrays["signatures.mean"], arrays["signatures.std"],
                    arrays["signatures.matrix"], arrays["signatures.points"], int(facts["sample"]),
                )  # fmt: skip
                signatures.check(len(white.mean))
            regressions = {name: _regression(name, arrays, len(white.mean)) for name in ("adapted", "plain")}
            clean = CleanImages(images, white, length, variance, norm)
            fingerprint, model, method = (str(facts[name]) for name in ("fingerprint", "model", "method"))
            judged = regressions["adapted"], regressions["plain"], bool(facts["unlabelled"])
            return cls(fingerprint, model, method, clean, signatures, *judged)
        except FozoError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise FozoError(
                f"{os.fspath(path)} holds a damaged monitor reference ({type(error).__name__}: {error}); collect it "
                f"again"
            ) from error

    @classmethod
    def _check_specs(
        cls, path: str | os.PathLike[str], header: Mapping[str, object], specs: Mapping[str, ArraySpec]
    ) -> None:
        """Refuse another version, and shapes that do not go together, before an array is read."""
        if header.get("version") != cls.VERSION or header.get("looks") != [look.name for look in STATISTICS]:
            raise FozoError(
                f"{os.fspath(path)} holds a monitor reference of another version "
                f"({json.dumps(header.get('version'))}); collect it again"
            )
        (width,) = specs["clean.mean"].shape
        wanted = {"clean.std": (width,), "clean.centre": (width,), "clean.matrix": (width, width), "clean.scales": (3,)}
        for name, shape in wanted.items():
            if specs[name].shape != shape or specs[name].dtype.kind != "f":
                raise ValueError(f"{name} is {specs[name].dtype} of shape {list(specs[name].shape)}")


def _regression(name: str, arrays: Mapping[str, Array], width: int) -> Regression | None:
    parts = {key.partition(".")[2]: array for key, array in arrays.items() if key.startswith(f"{name}.")}
    return Regression.from_arrays(parts, width) if parts else None


def _read(images: ImageSet, spec: Spec, progress: Progress) -> Pixels:
    """Read a set of images at the model's size."""
    found = []
    for index in range(len(images)):
        found.append(prepare(images, images.read(index), spec.image_size, spec.channels))
        progress("reading", index + 1, len(images))
    return np.stack(found)


def turns(count: int, kinds: tuple[str, ...], sample: int = SAMPLE) -> Iterator[tuple[str, int, npt.NDArray[np.int64]]]:
    """Say which images are corrupted how: every kind and severity gets others."""
    size = min(sample, count)
    for place, (kind, severity) in enumerate(product(kinds, SEVERITIES)):
        yield kind, severity, (place * size + np.arange(size)) % count


def measure(adapter: Method[Any], pixels: Pixels, sample: int, progress: Progress) -> Iterator[Part]:
    """Measure clean images, then ``sample`` corrupted ones of each kind and severity."""
    engine, fresh = adapter.engine, adapter.clone()
    looker = QualityStatistics(engine.spec)
    plan = [("clean", 0, np.arange(len(pixels))), *(turns(len(pixels), KINDS, sample) if sample else ())]
    total, done = sum(len(indices) for _, _, indices in plan), 0
    for kind, severity, indices in plan:
        fresh.reset()
        features, plain, adapted = list[Array](), list[Floats](), list[Floats]()
        for start in range(0, len(indices), BATCH):
            some = indices[start : start + BATCH]
            pictures = pixels[some]
            if severity:
                pairs = zip(pictures, map(str, some), strict=True)
                pictures = np.stack([corrupt(one, kind, severity, 0, image_id=name) for one, name in pairs])
            batch = engine.check(engine.spec.normalise(pictures))
            features.append(looker(batch.images))
            plain.append(engine.run(batch)[Tap.LOGITS][0])
            adapted.append(plain[-1] if fresh.info.name == "noadapt" else fresh(batch.images))
            done += len(some)
            progress("collecting the monitor's reference", done, total)
        yield Part(kind, severity, indices, np.concatenate(features), np.concatenate(plain), np.concatenate(adapted))
