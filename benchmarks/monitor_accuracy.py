"""How well the accuracy of a model is expected without labels, by ten estimates on the same logits.

    python -m benchmarks.monitor_accuracy IMAGES WEIGHTS... --cache DIR -o results/expected-accuracy.csv

IMAGES has a folder for each class. Of these, 512 are clean ones with labels, and the others are corrupted: by the four
extra kinds, on which constants are chosen, by the fifteen, and by the kinds of :mod:`fozo.data.corruptions.unseen`.
Logits are kept in DIR, so an interrupted run goes on. The file has a row for each model, corruption and estimate; a
summary is printed.

The lines (DoC, COT, nuclear norm, agreement) are fitted for each model to the extra four with their labels. All others
know labels of clean images only.
"""

import argparse
import csv
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment, minimize
from scipy.special import expit, logit, softmax

import fozo
from benchmarks.common import markdown
from fozo.data.corruptions import EXTRA_KINDS, KINDS, UNSEEN_KINDS, corrupt
from fozo.data.images import Pixels
from fozo.data.streams import prepare
from fozo.methods.registry import AnyMethod
from fozo.monitor.accuracy import ADAPTED_ERROR, PLAIN_ERROR, CleanConfidence, prediction_features
from fozo.types import Array, Floats

CLEAN = 512
BATCH = 32
IMAGES = {1: 64, 3: 128, 5: 64}
"""Images of each severity."""
SETS = {"extra": EXTRA_KINDS, "fifteen": KINDS, "unseen": UNSEEN_KINDS}
SIZES = (64, 128)
CELL = ("images", "kinds", "predictions", "model")
Row = dict[str, Any]


class Predictions(NamedTuple):
    """Logits of both models for the same images."""

    plain: Floats
    adapted: Floats
    labels: npt.NDArray[np.integer]

    def first(self, count: int) -> "Predictions":
        return Predictions(self.plain[:count], self.adapted[:count], self.labels[:count])

    def logits(self, mode: str) -> Array:
        return (self.plain if mode == "plain" else self.adapted).astype(np.float64)

    def correct(self, mode: str) -> Array:
        return np.asarray(self.logits(mode).argmax(axis=1) == self.labels, dtype=np.float64)


class Models:
    """Predicts images, or reads what was predicted before."""

    def __init__(self, images: Path, weights: list[Path], cache: Path) -> None:
        self.images = fozo.open_images(images)
        order = np.random.default_rng(0).permutation(len(self.images))
        self.clean = order[:CLEAN]
        self.rest = order[CLEAN:]
        self.labels = np.array([sample.label for sample in self.images.samples])
        self.cache = cache
        self.adapters: dict[str, AnyMethod] = {}
        for path in weights:
            engine = fozo.load_engine(path, dtype="bfloat16")
            folder = cache / engine.spec.name
            folder.mkdir(parents=True, exist_ok=True)
            statistics = folder / "source.safetensors"
            if not statistics.exists():
                parts = [engine.spec.normalise(self.pixels(part)) for part in np.split(self.clean, 16)]
                fozo.calibrate(engine, parts).save(statistics)
            self.adapters[engine.spec.name] = fozo.adapter(engine, fozo.Statistics.load(statistics))

    def pixels(self, indices: npt.NDArray[np.integer], kind: str = "clean", severity: int = 0) -> Pixels:
        pictures = []
        for index in indices:
            picture = prepare(self.images, self.images.read(int(index)), (224, 224), 3)
            if severity:
                picture = corrupt(picture, kind, severity, 0, image_id=str(index))
            pictures.append(picture)
        return np.stack(pictures)

    def predict(self, model: str, kind: str = "clean", severity: int = 0, count: int = CLEAN) -> Predictions:
        """Predictions of a kind's images, by an adapter that begins with them; of those calibrated on if clean."""
        path = self.cache / model / f"{kind}-{severity}-{count}.npz"
        if not path.exists():
            indices = self.clean
            if severity:
                indices = np.random.default_rng([*kind.encode(), severity]).permutation(self.rest)[:count]
            self._run(model, self.pixels(indices, kind, severity), indices, path)
        with np.load(path) as arrays:
            return Predictions(*(arrays[name] for name in Predictions._fields))

    def _run(self, model: str, pixels: Pixels, indices: npt.NDArray[np.integer], path: Path) -> None:
        adapter = self.adapters[model]
        adapter.reset()
        plain = []
        adapted = []
        for start in range(0, len(pixels), BATCH):
            batch = adapter.engine.check(adapter.engine.spec.normalise(pixels[start : start + BATCH]))
            plain.append(adapter.engine.run(batch)[fozo.Tap.LOGITS][0])
            adapted.append(adapter(batch.images))
        logits = [np.concatenate(parts).astype(np.float16) for parts in (plain, adapted)]
        part = path.with_suffix(".part.npz")
        np.savez(part, plain=logits[0], adapted=logits[1], labels=self.labels[indices])
        part.rename(path)


def transported(probabilities: Array) -> float:
    """COT (Lu et al., 2023): mean probability of the classes that images would have if all classes were as frequent.

    There are fewer images than classes: each image is shared among several.
    """
    count, classes = probabilities.shape
    shares = np.diff(np.linspace(0, classes, count + 1).round().astype(int))
    images = np.repeat(np.arange(count), shares)
    gains = probabilities[images]
    rows, columns = linear_sum_assignment(-gains)
    return float(gains[rows, columns].mean())


def statistics(predictions: Predictions, mode: str) -> dict[str, float]:
    """What lines are drawn through."""
    probabilities = softmax(predictions.logits(mode), axis=1)
    same = predictions.plain.argmax(axis=1) == predictions.adapted.argmax(axis=1)
    return {
        "DoC line": float(probabilities.max(axis=1).mean()),
        "COT line": transported(probabilities),
        "nuclear norm line": float(np.linalg.norm(probabilities, "nuc")) / len(probabilities),
        "agreement line": float(same.mean()),
    }


class CleanOnly:
    """Estimates that know labels of clean images only, or none."""

    def __init__(self, clean: Predictions, mode: str) -> None:
        self.mode = mode
        correct = clean.correct(mode)
        features = prediction_features(clean.logits(mode))
        error = ADAPTED_ERROR if mode == "adapted" else PLAIN_ERROR
        self.labelled = CleanConfidence.of(features, correct, error)
        self.unlabelled = CleanConfidence.of(features, None, error)
        self.hard = float(np.quantile(features[:, 0], 1 - self.labelled.accuracy))

        def loss(line: Array) -> float:
            p = calibrated(features[:, 0], line)
            return float(-np.log(np.where(correct > 0, p, 1 - p) + 1e-12).mean())

        self.platt = minimize(loss, np.array([0.0, 1.0])).x

    def estimates(self, predictions: Predictions) -> dict[str, float]:
        features = prediction_features(predictions.logits(self.mode))
        confidences = features[:, 0]
        ours = self.labelled.estimate(features, len(features))
        unlabelled = self.unlabelled.estimate(features, len(features), relative=True)
        assert ours is not None and unlabelled is not None
        confidence = float(confidences.mean())
        return {
            "low": ours.low,
            "high": ours.high,
            "fozo": ours.value,
            "fozo, no labels": self.labelled.accuracy * unlabelled.value,
            "average confidence": confidence,
            "ATC": float((confidences > self.hard).mean()),
            "DoC": self.labelled.accuracy - self.labelled.confidence + confidence,
            "CBPE": float(calibrated(confidences, self.platt).mean()),
        }


def calibrated(confidences: Array, line: Array) -> Array:
    """Platt's scaling of confidences."""
    return np.asarray(expit(line[0] + line[1] * logit(np.clip(confidences, 1e-4, 1 - 1e-4))))


def fitted_lines(known: list[Predictions], mode: str, count: int) -> dict[str, npt.NDArray[np.float64]]:
    groups = [predictions.first(count) for predictions in known if len(predictions.labels) >= count]
    points = [statistics(group, mode) for group in groups]
    accuracies = [group.correct(mode).mean() for group in groups]
    return {name: np.polyfit([point[name] for point in points], accuracies, 1) for name in points[0]}


def judge(models: Models, model: str, mode: str) -> Iterator[Row]:
    """Expect the accuracy of every stream, of its first 64 and 128 images."""
    clean = models.predict(model)
    known = CleanOnly(clean, mode)
    streams = {}
    for kinds, severity in product(SETS, IMAGES):
        for kind in SETS[kinds] if severity > 1 or kinds == "extra" else ():
            streams[kinds, kind, severity] = models.predict(model, kind, severity, IMAGES[severity])
    extra = [predictions for (kinds, _, _), predictions in streams.items() if kinds == "extra"]
    for count in SIZES:
        lines = fitted_lines([clean, *extra], mode, count)
        for stream, predictions in streams.items():
            if len(predictions.labels) < count:
                continue
            some = predictions.first(count)
            row = dict(zip(CELL, (count, stream[0], mode, model), strict=True)) | {"kind": stream[1]}
            row |= {"severity": stream[2], "accuracy": some.correct(mode).mean(), **known.estimates(some)}
            for line, value in statistics(some, mode).items():
                row[line] = np.clip(np.polyval(lines[line], value), 0, 1)
            yield row


def summary(rows: list[Row]) -> str:
    """Mean errors in points by images, kinds, predictions and model."""
    lines: list[list[object]] = []
    names = [name for name in rows[0] if name not in (*CELL, "kind", "severity", "accuracy", "low", "high")]
    for cell in dict.fromkeys(tuple(row[name] for name in CELL) for row in rows):
        some = [row for row in rows if tuple(row[name] for name in CELL) == cell]
        inside = np.mean([row["low"] <= row["accuracy"] <= row["high"] for row in some])
        half = 50 * np.mean([row["high"] - row["low"] for row in some])
        errors = [100 * np.mean([abs(row[name] - row["accuracy"]) for row in some]) for name in names]
        lines.append([*cell, len(some), *(f"{error:.1f}" for error in errors), f"{100 * inside:.0f} %", f"{half:.1f}"])
    return markdown([*CELL, "streams", *names, "in the interval", "+-"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    models = Models(options.images, options.weights, options.cache)
    rows = [row for model, mode in product(models.adapters, ("plain", "adapted")) for row in judge(models, model, mode)]
    with options.out.open("w", newline="") as file:
        table = csv.DictWriter(file, rows[0], lineterminator="\n")
        table.writeheader()
        table.writerows({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()} for row in rows)
    print(summary(rows))


if __name__ == "__main__":
    main()
