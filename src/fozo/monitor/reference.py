"""The monitor's reference: statistics of clean images, of corruptions, and of a method's predictions on both.

:meth:`MonitorReference.collect` makes it from clean images: their features, signatures of 18 corruptions, made by
corrupting some of them, and how often predictions are right on all of these. Its file holds no image and no label.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fozo.data.classes import match_classes
from fozo.data.corruptions import KINDS, corrupt
from fozo.data.images import Pixels
from fozo.data.inputs import leave_out
from fozo.data.sets.base import ImageSet
from fozo.data.streams import prepare
from fozo.errors import FozoError
from fozo.io import ArraySpec, load_statistics, refuse_damage, save_arrays
from fozo.methods.base import Method
from fozo.monitor.drift import RECENT, CleanImages, Whitening
from fozo.monitor.quality import NAMES, QualityStatistics
from fozo.monitor.regression import Estimate, Evidence, Regression, prediction_features
from fozo.types import Answer, Array, Floats

SAMPLE = 24  # images that are degraded for each kind and severity by default: 5 minutes for a ViT-Tiny on two cores
BATCH = 20
PARTS = ("clean", "signatures", "adapted", "plain")  # of a file; the last three are absent without corruptions
ADVICE = "make it again with fozo calibrate --monitor, or MonitorReference.collect"
Progress = Callable[[str, int, int], None]
Labels = npt.NDArray[np.integer]
SEVERITIES = (1, 2, 3, 4, 5)
MAX_DEVIATION = 12.0  # standard deviations at which a feature is clipped: corruptions differ by large shifts too
SHRINKAGE = 0.2  # fraction of each feature's variance that is added before whitening
ERROR = 0.05  # squared error of a signature for another stream's content, as a fraction of how images vary
LIKELIHOOD_RATIO = 20.0  # kinds whose likelihood is within this factor of the best are ambiguous with it
UNKNOWN = 3.0  # normalised distance to the nearest signature from which on the drift is unknown


@dataclass(frozen=True)
class Measurement:
    """What was measured of some images under one corruption."""

    kind: str
    severity: int  # 0 for clean images
    indices: npt.NDArray[np.int64]  # which of the clean images they are
    features: Array
    plain: Floats  # logits of the plain model
    adapted: Floats  # logits of the method, reset before these images


@dataclass(frozen=True)
class MonitorReference:
    """What a monitor compares with.

    Examples:
        >>> made = fozo.MonitorReference.collect(fozo.Align(model, source), images, corruptions=False)
        >>> made.save("camera.monitor.npz")
        >>> fozo.MonitorReference.load("camera.monitor.npz")
        <MonitorReference of align on vit-fashion: 32 clean images with labels, 0 corruptions>
    """

    fingerprint: str
    model: str
    method: str  # name of the method whose predictions are judged
    clean: CleanImages
    signatures: Signatures | None  # `None` if no images were corrupted
    adapted: Regression | None  # for the predictions of the method
    plain: Regression | None  # for those of the plain model
    unlabelled: bool  # whether there were no labels: then accuracy is expected as a fraction of that on clean images

    KIND = "monitor reference"
    VERSION = 3  # 2 had no entropies of clean images

    @classmethod
    def collect(
        cls,
        adapter: Method[Any],
        images: ImageSet | Pixels,
        labels: Labels | None = None,
        *,
        corruptions: bool = True,
        sample: int = SAMPLE,
        progress: Progress = lambda doing, done, total: None,
    ) -> MonitorReference:
        """Measure clean images, and some of them corrupted, with a fresh copy of an adapter.

        About 2 x (images + 90 x sample) forward passes; half of them for ``NoAdapt``.

        Args:
            adapter: what is going to be watched.
            images: a few hundred clean ones: :func:`fozo.open_images`, whose labels are used if it has more than one
                class, or ``uint8 [n, height, width, channels]`` at the model's size.
            labels: for an array, the right columns of the logits, if they are known.
            corruptions: whether to corrupt some of them, which needs the extra ``fozo[bench]``; without, the monitor
                reports drift, image quality and camera faults, but no diagnosis and no expected accuracy.
            sample: images that are corrupted for each kind and severity.
            progress: is called with what is done, how much of it, and how much there is.
        """
        spec = adapter.engine.spec
        if isinstance(images, ImageSet):
            if labels is None and len(images.classes) > 1:
                images = match_classes(images, spec)
                labels = np.array([sample.label for sample in images.samples])
            read = {}
            for index in range(len(images)):
                try:
                    read[index] = prepare(images, images.read(index), spec.image_size, spec.channels)
                except FozoError as error:
                    leave_out(error)
                progress("reading", index + 1, len(images))
            labels = None if labels is None else labels[list(read)]
            if not read:
                raise FozoError(f"none of the {len(images)} clean images can be read; replace them")
            images = np.stack(list(read.values()))
        if labels is not None and (len(labels) != len(images) or not 0 <= labels.min() <= labels.max() < spec.classes):
            raise FozoError(
                f"{len(labels)} labels up to {labels.max()} were given for {len(images)} images and {spec.classes} "
                f"classes; give one column of the logits for each image, or no labels"
            )
        if sample < 2:
            raise FozoError(f"sample is {sample}; give at least 2 images for each corruption, such as {SAMPLE}")
        return cls.of(adapter, list(measure(adapter, images, sample if corruptions else 0, progress)), labels)

    @classmethod
    def of(cls, adapter: Method[Any], measurements: list[Measurement], labels: Labels | None) -> MonitorReference:
        """Fit it to what :func:`measure` returned, the clean images first."""
        first, *corrupted = measurements
        spec, clean = adapter.engine.spec, CleanImages.of(first.features, prediction_features(first.adapted)[:, 2])
        made = cls(spec.fingerprint, spec.name, adapter.info.name, clean, None, None, None, labels is None)
        if not corrupted:
            return made
        signatures = Signatures.of(first.features, {(one.kind, one.severity): one.features for one in corrupted})
        if not first.plain.shape[1]:  # a detector, say: no logits, so no accuracy is expected
            return replace(made, signatures=signatures)
        clean_probabilities = softmax(first.plain.astype(np.float64), axis=1)

        def regression(outputs: list[Floats]) -> Regression:
            evidence = []
            for one, logits in zip(measurements, outputs, strict=True):
                predicted = logits.argmax(axis=1)
                correct = None if labels is None else (predicted == labels[one.indices]).astype(np.float64)
                soft_labels = clean_probabilities[one.indices, predicted]
                evidence.append(Evidence(one.kind, logits, signatures.coordinates(one.features), soft_labels, correct))
            return Regression.of(evidence)

        adapted, plain = ([getattr(one, name) for one in measurements] for name in ("adapted", "plain"))
        return replace(made, signatures=signatures, adapted=regression(adapted), plain=regression(plain))

    def __repr__(self) -> str:
        kinds = 0 if self.signatures is None else len(self.signatures.kinds)
        images = f"{self.clean.images:,} clean images {'without' if self.unlabelled else 'with'} labels"
        return f"<MonitorReference of {self.method} on {self.model}: {images}, {kinds} corruptions>"

    @cached_property
    def expects_accuracy(self) -> bool:
        """Whether it gives an accuracy, not only one relative to clean images."""
        return self.adapted is not None and not self.unlabelled

    def expect(self, predictions: Array, features: Array, *, outside: bool = False) -> Estimate | None:
        """Expected accuracy of predictions, by :func:`prediction_features`, of images with these features."""
        if self.adapted is None or self.signatures is None:
            return None
        coordinates = self.signatures.coordinates(features)
        return self.adapted.estimate(predictions, coordinates, outside=outside, relative=self.unlabelled)

    def check(self, adapter: Method[Any]) -> None:
        """Refuse another model or method than the one it was collected with."""
        spec = adapter.engine.spec
        if self.fingerprint != spec.fingerprint or self.method != adapter.info.name:
            raise FozoError(
                f"this monitor reference is of {self.method} on {self.model} ({self.fingerprint[:12]}), not of "
                f"{adapter.info.name} on {spec.name} ({spec.fingerprint[:12]}); collect it again with this one"
            )
        if (width := QualityStatistics(spec).width) != self.clean.width:
            raise FozoError(
                f"this monitor reference has {self.clean.width} features an image, but images of {spec.name} have "
                f"{width}; collect it again"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` (no pickle), atomically."""
        header: dict[str, object] = {
            "kind": self.KIND, "version": self.VERSION, "fingerprint": self.fingerprint, "model": self.model,
            "method": self.method, "images": self.clean.images, "statistics": NAMES, "unlabelled": self.unlabelled,
        }  # fmt: skip
        if self.signatures is not None:
            header |= {"kinds": self.signatures.kinds, "sample": self.signatures.images}
        parts = self.clean, self.signatures, self.adapted, self.plain
        known = {name: part.arrays() for name, part in zip(PARTS, parts, strict=True) if part is not None}
        arrays = {f"{name}.{key}": array for name, part in known.items() for key, array in part.items()}
        save_arrays(path, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MonitorReference:
        """Read what :meth:`save` wrote; values that no images can have given are refused."""
        read, arrays = load_statistics(path, cls.KIND, (cls.VERSION,), _shapes, ADVICE)
        header: dict[str, Any] = dict(read)
        if header.get("statistics") != list(NAMES):
            raise FozoError(f"{os.fspath(path)} has the image-quality statistics of another version; {ADVICE}")
        clean, signatures, adapted, plain = (
            {key.removeprefix(f"{part}."): array for key, array in arrays.items() if key.startswith(f"{part}.")}
            for part in PARTS
        )
        with refuse_damage(path, cls.KIND, ADVICE):
            kinds, sample = tuple(map(str, header.get("kinds", ()))), int(header.get("sample", 0))
            fingerprint, model, method = (str(header[name]) for name in ("fingerprint", "model", "method"))
            found = CleanImages.from_arrays(clean, int(header["images"]))
            known = Signatures.from_arrays(signatures, kinds, sample) if signatures else None
            first, second = (Regression.from_arrays(part) if part else None for part in (adapted, plain))
            return cls(fingerprint, model, method, found, known, first, second, bool(header["unlabelled"]))


def _shapes(specs: Mapping[str, ArraySpec]) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays in a file; with corruptions, all parts are there."""
    (width,) = specs["clean.mean"].shape
    shapes: dict[str, tuple[int, ...]] = {f"clean.{name}": (width,) for name in ("mean", "std", "centre")}
    shapes |= {"clean.matrix": (width, width), "clean.scales": (5,)}
    if len(specs) > len(shapes):
        kinds = specs["signatures.points"].shape[0]
        shapes |= {f"signatures.{name}": shapes[f"clean.{name}"] for name in ("mean", "std", "matrix")}
        shapes |= {"signatures.points": (kinds, len(SEVERITIES), width)}
        for part in ("adapted", "plain") if "adapted.dual" in specs else ():
            (groups,) = specs[f"{part}.dual"].shape
            shapes |= {f"{part}.{name}": shape for name, shape in Regression.shapes(groups, width).items()}
    return shapes


# Beside the corruptions of ImageNet-C, what cameras meet most, by severity: the light that haze lets through; the
# exponent of gamma; stops less light.
PHYSICAL = {
    "haze": (0.8, 0.65, 0.5, 0.38, 0.28), "gamma": (1.3, 1.7, 2.2, 2.8, 3.5), "low_light": (1.0, 2.0, 3.0, 4.0, 5.0),
}  # fmt: skip
AIRLIGHT = 0.85  # brightness of haze, as a fraction of full scale
PHOTONS = 1000.0  # that a white pixel counts in good light
GAMMA = 2.2


def degrade(image: Pixels, kind: str, severity: int, name: str) -> Pixels:
    """Corrupt an image by a kind of ImageNet-C's or by one of :data:`PHYSICAL`, always in the same way."""
    if kind not in PHYSICAL:
        return corrupt(image, kind, severity, 0, image_id=name)
    amount, x = PHYSICAL[kind][severity - 1], image / 255
    if kind == "haze":  # Koschmieder's law at one depth
        x = amount * x + (1 - amount) * AIRLIGHT
    elif kind == "gamma":
        x = x**amount
    else:  # fewer photons in linear light, which vary as Poisson's
        rng = np.random.default_rng([severity, *name.encode()])
        x = (rng.poisson(PHOTONS * 2**-amount * x**GAMMA) / PHOTONS) ** (1 / GAMMA)
    return np.asarray(255 * np.clip(x, 0, 1) + 0.5).astype(np.uint8)


def turns(count: int, kinds: tuple[str, ...], sample: int = SAMPLE) -> Iterator[tuple[str, int, npt.NDArray[np.int64]]]:
    """Which of ``count`` images to corrupt how: every kind and severity gets others."""
    size = min(sample, count)
    for turn, (kind, severity) in enumerate(product(kinds, SEVERITIES)):
        yield kind, severity, (turn * size + np.arange(size)) % count


def measure(adapter: Method[Any], pixels: Pixels, sample: int, progress: Progress) -> Iterator[Measurement]:
    """Measure clean images, then ``sample`` corrupted ones of each kind and severity."""
    engine, fresh = adapter.engine, adapter.clone()
    quality = QualityStatistics(engine.spec)
    plan = [("clean", 0, np.arange(len(pixels))), *(turns(len(pixels), (*KINDS, *PHYSICAL), sample) if sample else ())]
    total, done = sum(len(indices) for _, _, indices in plan), 0
    first = fresh.plain(engine.check(engine.spec.normalise(pixels[:1])))  # a detector is not run again
    for kind, severity, indices in plan:
        fresh.reset()
        features, plain, adapted = list[Array](), list[Floats](), list[Floats]()
        for start in range(0, len(indices), BATCH):
            some = indices[start : start + BATCH]
            pictures = pixels[some]
            if severity:
                pairs = zip(pictures, map(str, some), strict=True)
                pictures = np.stack([degrade(one, kind, severity, name) for one, name in pairs])
            batch = engine.check(engine.spec.normalise(pictures))
            features.append(quality(batch.images))
            found = first if isinstance(first, Answer) else fresh.plain(batch)
            plain.append(np.zeros((len(some), 0)) if isinstance(found, Answer) else found)
            same = isinstance(found, Answer) or fresh.info.name == "noadapt"
            adapted.append(plain[-1] if same else fresh(batch.images))
            done += len(some)
            progress("collecting the monitor's reference", done, total)
        logits = np.concatenate(plain), np.concatenate(adapted)
        yield Measurement(kind, severity, indices, np.concatenate(features), *logits)


@dataclass(frozen=True)
class Guess:
    """Which corruption a drift resembles."""

    kind: str  # the nearest corruption, or `clean`
    severity: float  # between 1 and 5; 0 for clean
    ambiguous_with: tuple[str, ...]  # other corruptions that cannot be distinguished from it
    known: bool  # whether it is near anything that was seen at calibration

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind, *self.ambiguous_with)

    @property
    def names(self) -> tuple[str, ...]:  # what it is called
        return self.kinds if self.known else ("unknown",)

    def __str__(self) -> str:
        names = " or ".join(name.replace("_", " ") for name in self.kinds)
        return f"like {names}" if self.known else f"unlike all that was seen at calibration, nearest to {names}"


@dataclass(frozen=True)
class Signatures:
    """What some kinds of corruptions do to the features of clean images, and which one a stream resembles.

    The signature of a kind is the polyline through the mean standardised features at severities 1 to 5. Features are
    whitened by how images vary within one corruption. So for n images of a kind whose signature was made from m, the
    squared distance of their mean to its polyline is at most about (1/n + 1/m + error) for each feature.

    A guess is the nearest polyline. Kinds that are nearly as near (by the likelihood ratio) are ambiguous with it and
    named beside it. What is near no polyline is reported as unknown.
    """

    kinds: tuple[str, ...]
    coordinates: Whitening  # gives the coordinates of images `[n, features]`: features whitened within a corruption
    points: Array  # `[kinds, severities, features]`: coordinates of means
    images: int  # that each of them was made from

    @classmethod
    def of(cls, clean: Array, corrupted: Mapping[tuple[str, int], Array]) -> Signatures:
        """Fit them to features of clean images, and of corrupted ones by (kind, severity)."""
        kinds = tuple(dict.fromkeys(kind for kind, _ in corrupted))
        mean, std = clean.mean(axis=0), np.maximum(clean.std(axis=0), 1e-6)
        standardised = Whitening(mean, std, 0 * mean, np.eye(len(mean)), MAX_DEVIATION)
        rows = {key: standardised(value) for key, value in corrupted.items()}
        within = np.concatenate([value - value.mean(axis=0) for value in rows.values()])
        covariance = within.T @ within / max(len(within) - len(rows), 1)
        variances = np.maximum(np.diag(covariance), 1e-6)
        values, vectors = np.linalg.eigh(covariance + SHRINKAGE * np.diag(variances))
        matrix = vectors / np.sqrt(values)
        points = np.array([[rows[kind, severity].mean(axis=0) @ matrix for severity in SEVERITIES] for kind in kinds])
        return cls(kinds, replace(standardised, matrix=matrix), points, min(len(value) for value in rows.values()))

    def arrays(self) -> dict[str, Array]:
        white = self.coordinates
        return {"mean": white.mean, "std": white.std, "matrix": white.matrix, "points": self.points}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], kinds: tuple[str, ...], images: int) -> Signatures:
        """Read what :meth:`arrays` returned; raises a ``ValueError`` if damaged."""
        mean, std, matrix, points = (arrays[name] for name in ("mean", "std", "matrix", "points"))
        if len(points) != len(kinds) or images < 1 or not (std > 0).all():
            raise ValueError(f"{len(points)} signatures and {len(kinds)} kinds do not fit together")
        return cls(kinds, Whitening(mean, std, 0 * mean, matrix, MAX_DEVIATION), points, images)

    def guess(self, features: Array) -> Guess:
        """Name the corruption that images ``[n, features]`` resemble most."""
        mean, expected = self.coordinates(features).mean(axis=0), 1 / len(features) + 1 / self.images + ERROR
        found = {kind: _nearest(line, mean) for kind, line in zip(self.kinds, self.points, strict=True)}
        found["clean"] = float(np.square(mean).sum()), 0.0
        best = min(found, key=found.__getitem__)
        near = found[best][0] + 2 * expected * np.log(LIKELIHOOD_RATIO)
        others = sorted((distance, kind) for kind, (distance, _) in found.items() if kind != best and distance < near)
        known = found[best][0] / len(mean) / expected < UNKNOWN
        return Guess(best, found[best][1], tuple(kind for _, kind in others), known)

    def changed(self, features: Array) -> bool:
        """Whether the latest 16 images, and the latest 8, resemble another corruption than those before."""
        if len(features) < 2 * RECENT:
            return False
        late, last = self.guess(features[-RECENT:]), self.guess(features[-RECENT // 2 :])
        return (
            late.known and late.kind in last.kinds and late.kind not in ("clean", *self.guess(features[:-RECENT]).kinds)
        )


def _nearest(line: Array, point: Array) -> tuple[float, float]:
    """Squared distance of a point to the polyline through the severities, and the severity there."""
    found = []
    for start, end, low in zip(line[:-1], line[1:], SEVERITIES[:-1], strict=True):
        way = end - start
        part = float(np.clip((point - start) @ way / max(float(way @ way), 1e-12), 0, 1))
        found.append((float(np.square(point - start - part * way).sum()), low + part))
    return min(found)
