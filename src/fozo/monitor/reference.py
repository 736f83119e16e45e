"""The monitor's reference: statistics of clean images, of corruptions, and of a method's predictions on both.

:meth:`Reference.collect` makes it from clean images: their features, signatures of 18 corruptions, made by
corrupting some of them, and how often predictions are right. Its file holds no image and no label.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from fozo.data.classes import match_classes
from fozo.data.corruptions import KINDS, corrupt
from fozo.data.images import Pixels
from fozo.data.inputs import as_pixels, leave_out, open_clean
from fozo.data.sets.base import ImageSet
from fozo.data.streams import prepare
from fozo.errors import FozoError
from fozo.methods.method import Method
from fozo.monitor.accuracy import (
    ADAPTED_ERROR,
    PLAIN_ERROR,
    CleanConfidence,
    Estimate,
    different_pictures,
    prediction_features,
)
from fozo.monitor.drift import MIN_SCALE, RECENT, CleanImages, Whitening
from fozo.monitor.quality import NAMES, QualityStatistics
from fozo.monitor.scene import Views, views_of
from fozo.state import Measured, State
from fozo.types import Answer, Array, Floats, Spec, short

SAMPLE = 24  # images that are degraded for each kind and severity by default: 5 minutes for a ViT-Tiny on two cores
BATCH = 20
Progress = Callable[[str, int, int], None]
Labels = npt.NDArray[np.integer]
SEVERITIES = (1, 2, 3, 4, 5)
MAX_CORRUPTED_DEVIATION = 12.0  # standard deviations at which a feature is clipped: corruptions shift them far
SHRINKAGE = 0.2  # fraction of each feature's variance that is added before whitening
SIGNATURE_ERROR = 0.05  # squared error of a signature for another stream's content, as a fraction of how images vary
LIKELIHOOD_RATIO = 20.0  # kinds whose likelihood is within this factor of the best are ambiguous with it
UNKNOWN = 3.0  # normalised distance to the nearest signature from which on the drift is unknown


@dataclass(frozen=True)
class Reference(Measured):
    """What a monitor compares with.

    Examples:
        >>> made = fozo.Reference.collect(fozo.Align(model, statistics), images, corruptions=False)
        >>> made.save("camera.monitor")
        >>> fozo.Reference.load("camera.monitor")
        <Reference of align on vit-fashion: 32 clean images with labels, 0 corruptions>
    """

    fingerprint: str
    model: str
    method: str
    """Name of the method whose predictions are judged."""
    clean: CleanImages
    signatures: Signatures | None
    """``None`` if no images were corrupted."""
    adapted: CleanConfidence | None
    """For the predictions of the method; ``None`` if it gives no logits."""
    plain: CleanConfidence | None
    """For those of the plain model."""
    unlabelled: bool
    """Whether there were no labels: then accuracy is expected as a fraction of that on clean images."""
    views: Views | None = None
    """The scenes that several of the clean images show."""
    statistics: tuple[str, ...] = NAMES
    """The image-quality statistics that were measured."""

    KIND: ClassVar[str] = "monitor reference"
    ADVICE: ClassVar[str] = "make it again with fozo calibrate --reference, or Reference.collect"

    def __post_init__(self) -> None:
        if self.statistics != NAMES:
            raise ValueError("it has the image-quality statistics of another version")
        if self.signatures is not None and self.signatures.points.shape[-1] != self.clean.width:
            raise ValueError("its parts are of different features")

    @classmethod
    def collect(
        cls,
        adapter: Method[Any, Any],
        images: ImageSet | Pixels | str | os.PathLike[str] | Sequence[object],
        labels: Labels | None = None,
        *,
        corruptions: bool = True,
        sample: int = SAMPLE,
        progress: Progress = lambda doing, done, total: None,
    ) -> Reference:
        """Measure clean images, and some of them corrupted, with a fresh copy of an adapter.

        About 2 x images forward passes; half of them for ``NoAdapt``. Corrupted images are looked at, not predicted.

        Args:
            adapter: what is going to be watched.
            images: a few hundred clean ones: :func:`fozo.open_images`, whose labels are used if it has more than one
                class, or a folder, a video, ``uint8 [n, height, width, channels]``, or a list of pictures.
            labels: for an array, the right columns of the logits, if they are known.
            corruptions: whether to corrupt some of them, which needs the extra ``fozo[bench]``; without, the monitor
                does not say which corruption a drift resembles.
            sample: images that are corrupted for each kind and severity.
            progress: is called with what is done, how much of it, and how much there is.
        """
        spec = adapter.engine.spec
        if isinstance(images, (str, os.PathLike)):
            images = open_clean(images, spec, labelled=True)
        if not isinstance(images, ImageSet):
            images = as_pixels(images, spec)
        else:
            if labels is None and len(images.classes) > 1:
                images = match_classes(images, spec)
                labels = np.array([sample.label for sample in images.samples])
            pictures = _read(images, spec, progress)
            if labels is not None:
                labels = labels[list(pictures)]
            images = np.stack(list(pictures.values()))
        if labels is not None and (len(labels) != len(images) or not 0 <= labels.min() <= labels.max() < spec.classes):
            raise FozoError(
                f"{len(labels)} labels up to {labels.max()} were given for {len(images)} images and {spec.classes} "
                f"classes; give one column of the logits for each image, or no labels"
            )
        if sample < 2:
            raise FozoError(f"sample is {sample}; give at least 2 images for each corruption, such as {SAMPLE}")
        return cls._measured(adapter, images, labels, sample if corruptions else 0, progress)

    @classmethod
    def _measured(
        cls, adapter: Method[Any, Any], pixels: Pixels, labels: Labels | None, sample: int, progress: Progress
    ) -> Reference:
        """Measure clean images and predict them; then measure ``sample`` corrupted ones of each kind and severity."""
        engine = adapter.engine
        spec = engine.spec
        fresh = adapter.clone()
        fresh.reset()
        quality = QualityStatistics(spec)
        # A detector gives no logits: it is run once to find out, and not again.
        has_logits = not isinstance(fresh.plain(engine.check(spec.normalise(pixels[:1]))), Answer)
        adapts = fresh.info.name != "noadapt"
        features: dict[tuple[str, int], list[Array]] = {}
        plain: list[Floats] = []
        adapted: list[Floats] = []
        for kind, severity, pictures in _batches(pixels, sample, progress):
            batch = engine.check(spec.normalise(pictures))
            features.setdefault((kind, severity), []).append(quality(batch.images))
            if severity or not has_logits:
                continue
            logits = fresh.plain(batch)
            assert not isinstance(logits, Answer)
            plain.append(logits)
            adapted.append(fresh(batch.images) if adapts else logits)
        rows = {domain: np.concatenate(batches) for domain, batches in features.items()}
        clean = rows.pop(("clean", 0))
        entropies = prediction_features(np.concatenate(adapted))[:, 1] if has_logits else None
        return cls(
            fingerprint=spec.fingerprint,
            model=spec.name,
            method=adapter.info.name,
            clean=CleanImages.of(clean, entropies),
            signatures=Signatures.of(clean, rows) if rows else None,
            adapted=_confidence(adapted, labels, ADAPTED_ERROR if adapts else PLAIN_ERROR) if has_logits else None,
            plain=_confidence(plain, labels, PLAIN_ERROR) if has_logits else None,
            unlabelled=labels is None,
            views=views_of((quality.pixels(spec.normalise(picture[None]))[0] for picture in pixels), clean),
        )

    def __repr__(self) -> str:
        kinds = 0 if self.signatures is None else len(self.signatures.kinds)
        images = f"{self.clean.images:,} clean images {'without' if self.unlabelled else 'with'} labels"
        return f"<Reference of {self.method} on {self.model}: {images}, {kinds} corruptions>"

    @property
    def expects_accuracy(self) -> bool:
        """Whether it gives an accuracy, not only one relative to clean images."""
        return self.adapted is not None and not self.unlabelled

    def expect(self, predictions: Array, features: Array) -> Estimate | None:
        """Expected accuracy of predictions, by :func:`prediction_features`, of images with these features."""
        if self.adapted is None:
            return None
        pictures = different_pictures(self.clean.whitening(features), self.clean.length)
        return self.adapted.estimate(predictions, pictures, relative=self.unlabelled)

    def check(self, adapter: Method[Any, Any]) -> None:
        """Refuse another model or method than the one it was collected with."""
        spec = adapter.engine.spec
        if self.fingerprint != spec.fingerprint or self.method != adapter.info.name:
            raise FozoError(
                f"this monitor reference is of {self.method} on {self.model} ({short(self.fingerprint)}), not of "
                f"{adapter.info.name} on {spec.name} ({short(spec.fingerprint)}); collect it again with this one"
            )
        width = QualityStatistics(spec).width
        if width != self.clean.width:
            raise FozoError(
                f"this monitor reference has {self.clean.width} features an image, but images of {spec.name} have "
                f"{width}; collect it again"
            )


def _read(images: ImageSet, spec: Spec, progress: Progress) -> dict[int, Pixels]:
    """Read images at the model's size, by their numbers; what cannot be read is left out, with a warning."""
    pictures = {}
    for index in range(len(images)):
        try:
            pictures[index] = prepare(images, images.read(index), spec.image_size, spec.channels)
        except FozoError as error:
            leave_out(error)
        progress("reading", index + 1, len(images))
    if not pictures:
        raise FozoError(f"none of the {len(images)} clean images can be read; replace them")
    return pictures


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
    amount = PHYSICAL[kind][severity - 1]
    x = image / 255
    if kind == "haze":  # Koschmieder's law at one depth
        x = amount * x + (1 - amount) * AIRLIGHT
    elif kind == "gamma":
        x = x**amount
    else:  # fewer photons in linear light, which vary as Poisson's
        rng = np.random.default_rng([severity, *name.encode()])
        x = (rng.poisson(PHOTONS * 2**-amount * x**GAMMA) / PHOTONS) ** (1 / GAMMA)
    return np.asarray(255 * np.clip(x, 0, 1) + 0.5).astype(np.uint8)


def corruption_schedule(count: int, kinds: tuple[str, ...], sample: int = SAMPLE) -> Iterator[tuple[str, int, Labels]]:
    """Which of ``count`` images to corrupt how: every kind and severity gets others."""
    size = min(sample, count)
    for turn, (kind, severity) in enumerate(product(kinds, SEVERITIES)):
        yield kind, severity, (turn * size + np.arange(size)) % count


def _batches(pixels: Pixels, sample: int, progress: Progress) -> Iterator[tuple[str, int, Pixels]]:
    """All clean images in batches, with their kind and severity; then ``sample`` of each corruption."""
    domains: list[tuple[str, int, Labels]] = [("clean", 0, np.arange(len(pixels)))]
    if sample:
        domains += corruption_schedule(len(pixels), (*KINDS, *PHYSICAL), sample)
    total = sum(len(indices) for _, _, indices in domains)
    done = 0
    for kind, severity, indices in domains:
        for start in range(0, len(indices), BATCH):
            chunk = indices[start : start + BATCH]
            pictures = pixels[chunk]
            if severity:
                pairs = zip(pictures, map(str, chunk), strict=True)
                pictures = np.stack([degrade(picture, kind, severity, name) for picture, name in pairs])
            yield kind, severity, pictures
            done += len(chunk)
            progress("collecting the monitor's reference", done, total)


def _confidence(logits: list[Floats], labels: Labels | None, error: float) -> CleanConfidence:
    joined = np.concatenate(logits)
    correct = None if labels is None else (joined.argmax(axis=1) == labels).astype(np.float64)
    return CleanConfidence.of(prediction_features(joined), correct, error)


@dataclass(frozen=True)
class Guess:
    """Which corruption a drift resembles."""

    kind: str
    """The nearest corruption, or ``clean``."""
    severity: float
    """Between 1 and 5; 0 for clean."""
    ambiguous_with: tuple[str, ...]
    """Other corruptions that cannot be distinguished from it."""
    known: bool
    """Whether it is near anything that was seen at calibration."""

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind, *self.ambiguous_with)

    @property
    def names(self) -> tuple[str, ...]:
        """What it is called: by its kinds, or ``unknown``."""
        return self.kinds if self.known else ("unknown",)

    def __str__(self) -> str:
        names = " or ".join(name.replace("_", " ") for name in self.kinds)
        return f"like {names}" if self.known else f"unlike all that was seen at calibration, nearest to {names}"


@dataclass(frozen=True)
class Signatures(State):
    """What some kinds of corruptions do to the features of clean images, and which one a stream resembles.

    The signature of a kind is the polyline through the mean standardised features at severities 1 to 5. Features are
    whitened by how images vary within one corruption. So for n images of a kind whose signature was made from m, the
    squared distance of their mean to its polyline is at most about (1/n + 1/m + error) for each feature.

    A guess is the nearest polyline. Kinds that are nearly as near (by the likelihood ratio) are ambiguous with it and
    named beside it. What is near no polyline is reported as unknown.
    """

    kinds: tuple[str, ...]
    coordinates: Whitening
    """Gives the coordinates of images ``[n, features]``: features whitened within a corruption."""
    points: Array
    """``[kinds, severities, features]``: coordinates of means."""
    images: int
    """How many images each of them was made from."""

    def __post_init__(self) -> None:
        shape = (len(self.kinds), len(SEVERITIES), *self.coordinates.mean.shape)
        if self.points.shape != shape or self.images < 1:
            raise ValueError(f"{len(self.points)} signatures and {len(self.kinds)} kinds do not fit together")

    @classmethod
    def of(cls, clean: Array, corrupted: Mapping[tuple[str, int], Array]) -> Signatures:
        """Fit them to features of clean images, and of corrupted ones by (kind, severity)."""
        kinds = tuple(dict.fromkeys(kind for kind, _ in corrupted))
        mean = clean.mean(axis=0)
        std = np.maximum(clean.std(axis=0), MIN_SCALE)
        standardised = Whitening(mean, std, 0 * mean, np.eye(len(mean)), MAX_CORRUPTED_DEVIATION)
        rows = {domain: standardised(features) for domain, features in corrupted.items()}
        within = np.concatenate([features - features.mean(axis=0) for features in rows.values()])
        covariance = within.T @ within / max(len(within) - len(rows), 1)
        variances = np.maximum(np.diag(covariance), MIN_SCALE)
        values, vectors = np.linalg.eigh(covariance + SHRINKAGE * np.diag(variances))
        matrix = vectors / np.sqrt(values)
        points = np.array([[rows[kind, severity].mean(axis=0) @ matrix for severity in SEVERITIES] for kind in kinds])
        return cls(kinds, replace(standardised, matrix=matrix), points, min(map(len, rows.values())))

    def guess(self, features: Array) -> Guess:
        """Name the corruption that images ``[n, features]`` resemble most."""
        mean = self.coordinates(features).mean(axis=0)
        expected = 1 / len(features) + 1 / self.images + SIGNATURE_ERROR
        nearest = {kind: _nearest(line, mean) for kind, line in zip(self.kinds, self.points, strict=True)}
        nearest["clean"] = (float(np.square(mean).sum()), 0.0)
        best = min(nearest, key=nearest.__getitem__)
        distance, severity = nearest[best]
        limit = distance + 2 * expected * np.log(LIKELIHOOD_RATIO)
        others = sorted((other, kind) for kind, (other, _) in nearest.items() if kind != best and other < limit)
        known = distance / len(mean) / expected < UNKNOWN
        return Guess(best, severity, tuple(kind for _, kind in others), known)

    def changed(self, features: Array) -> bool:
        """Whether the latest 16 images, and the latest 8, resemble another corruption than those before."""
        if len(features) < 2 * RECENT:
            return False
        latest = self.guess(features[-RECENT:])
        if not latest.known or latest.kind == "clean":
            return False
        last = self.guess(features[-RECENT // 2 :])
        return latest.kind in last.kinds and latest.kind not in self.guess(features[:-RECENT]).kinds


def _nearest(line: Array, point: Array) -> tuple[float, float]:
    """Squared distance of a point to the polyline through the severities, and the severity there."""
    nearest = []
    for start, end, severity in zip(line[:-1], line[1:], SEVERITIES[:-1], strict=True):
        way = end - start
        fraction = float(np.clip((point - start) @ way / max(float(way @ way), 1e-12), 0, 1))
        nearest.append((float(np.square(point - start - fraction * way).sum()), severity + fraction))
    return min(nearest)
