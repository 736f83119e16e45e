"""How well the monitor expects accuracy, on images that the reference was not made from.

    python -m benchmarks.monitor_accuracy IMAGES WEIGHTS... --cache DIR -o results/expected-accuracy.md

:mod:`benchmarks.monitor_material` has to have been run with the same folder first. No model runs here.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np

import fozo
from benchmarks.common import markdown, write
from benchmarks.monitor_material import BATCH, DOMAINS, STREAMS, Domain, Material
from fozo.data.corruptions import KINDS
from fozo.methods.registry import AnyMethod
from fozo.monitor import Reference
from fozo.monitor.reference import Measurement
from fozo.monitor.regression import prediction_features
from fozo.types import Array, Floats


@dataclass(frozen=True)
class Judged:
    """A domain's predictions: how often they are right, and what was expected of them, in points."""

    domain: Domain
    truth: float
    expected: float
    low: float
    high: float
    confidence: float
    chance: float
    """Standard error of the truth, for so many predictions that are each right or wrong."""


def judge(
    material: Material, engine: fozo.Engine, method: AnyMethod | None, count: int, rows: dict[Domain, Array],
    references: dict[str, Reference], relative: bool, clean: float,
) -> list[Judged]:  # fmt: skip
    """Expect the accuracy in all domains: with the reference of its kind's name, for a kind that it has not seen.

    ``relative`` estimates are parts of the accuracy on clean images: of ``clean``, that of the images calibrated on.
    """
    found = []
    for domain, indices in material.domains("test"):
        reference = references.get(domain[0], references.get("all"))
        if reference is None:
            continue
        regression = reference.plain if method is None else reference.adapted
        signatures = reference.signatures
        assert regression is not None and signatures is not None
        unit = 100.0
        if relative:
            regression = replace(regression, intercept=0.0, slope=1.0)
            unit = 100 * clean
        streams = [material.logits("test", domain, engine, method, start) for start, end in STREAMS if end <= count]
        logits = np.concatenate(streams)
        coordinates = signatures.coordinates(rows[domain][:count])
        right = logits.argmax(axis=1) == material.labels("test", indices[:count])
        estimate = regression.estimate(prediction_features(logits), coordinates, relative=relative)
        p, _ = regression.predict(prediction_features(logits), coordinates)
        chance = 100 * float(np.sqrt((p * (1 - p)).sum())) / len(p)
        value, low, high = (unit * each for each in (estimate.value, estimate.low, estimate.high))
        found.append(Judged(domain, 100 * float(right.mean()), value, low, high, _confidence(logits), chance))
    return found


def summary(found: list[Judged]) -> list[object]:
    error = np.array([each.expected - each.truth for each in found])
    chance = np.array([each.chance for each in found])
    inside = np.mean([each.low <= each.truth <= each.high for each in found])
    width = np.mean([each.high - each.low for each in found]) / 2
    # Of the squared error, what chance does not explain is the estimate's own; with its interval over the domains.
    excess = np.square(error) - np.square(chance)
    bounds = excess.mean() + np.array([0, -1.96, 1.96]) * excess.std() / np.sqrt(len(excess))
    own, low, high = np.sqrt(2 / np.pi * np.maximum(bounds, 0))
    by_chance = np.sqrt(2 / np.pi) * chance.mean()
    most = int(np.abs(error).argmax())
    where = " ".join(map(str, found[most].domain)).replace("_", " ")
    confidence = np.mean([abs(each.confidence - each.truth) for each in found])
    return [
        f"{np.abs(error).mean():.2f}", f"{by_chance:.2f}", f"{own:.1f} ({low:.1f} to {high:.1f})",
        f"{error.mean():+.2f}", f"{error[most]:+.1f} ({where})", f"{100 * inside:.0f} %", f"+- {width:.1f}",
        f"{confidence:.2f}",
    ]  # fmt: skip


def accuracy(material: Material, weights: Path, features: dict[str, dict[Domain, Array]]) -> list[list[object]]:
    """Errors of expected accuracy over all domains."""
    engine = fozo.load_engine(weights)
    adapter = fozo.adapter(engine, material.statistics(engine))
    methods: dict[str, AnyMethod | None] = {"plain": None, "adapted": adapter}
    counts = {mode: material.predicted(engine, mode) for mode in methods}
    parts = []
    for domain, indices in material.domains("fit"):
        # Without predictions of the adapted model, the plain one's stand in, and are not reported.
        both = [material.logits("fit", domain, engine, methods[mode if counts[mode] else "plain"]) for mode in methods]
        count = len(both[0])
        parts.append(Measurement(*domain, indices[:count], features["fit"][domain][:count], *both))
    labels = material.labels("fit", np.arange(len(material.clean)))
    whole = {"all": Reference.of(adapter, parts, labels)}
    without = {kind: Reference.of(adapter, [part for part in parts if part.kind != kind], labels) for kind in KINDS}
    rows: list[list[object]] = []
    for mode, method in methods.items():
        if not counts[mode]:
            continue
        clean = float(((parts[0].plain if method is None else parts[0].adapted).argmax(axis=1) == labels).mean())
        for relative, (references, seen) in product((False, True), ((whole, "yes"), (without, "no"))):
            found = judge(material, engine, method, counts[mode], features["test"], references, relative, clean)
            words = "no" if relative else "yes"
            name = [engine.spec.name, mode, words, seen, len(parts[1].indices), counts[mode]]
            rows.append([*name, *summary(found)])
    return rows


def _confidence(logits: Floats) -> float:
    x = logits.astype(np.float64)
    p = np.exp(x - x.max(axis=1, keepdims=True))
    return 100 * float((p.max(axis=1) / p.sum(axis=1)).mean())


def report(material: Material, weights: list[Path]) -> Iterator[str]:
    features = {group: material.all_features(group) for group in ("fit", "test")}
    rows = [row for path in weights for row in accuracy(material, path, features)]
    yield f"# Expected accuracy over {len(DOMAINS)} domains: clean images and 15 corruptions x 5 severities"
    yield (
        f"Errors are absolute, in points. *By chance*: what the mean error of a perfect estimate would be, for so many "
        f"predictions that are each right or wrong; *beyond chance*: the mean error that is left of the squared one "
        f"without that of chance, if it is normal, with its 95 % interval over the domains. *Kind seen*: whether the "
        f"corruption, at other images, was in the "
        f"calibration; if not, the whole kind was left out of it, and clean images are not counted. Without labels the "
        f"estimate is a part of the accuracy on clean images, and is multiplied by that of the images calibrated on. "
        f"The adapted model takes batches of {BATCH}, and begins anew in each domain, and there after "
        f"{STREAMS[0][1]} images."
    )
    heads = [
        "model", "predictions", "labels at calibration", "kind seen", "images calibrated on, a domain",
        "images a domain", "mean error", "by chance", "beyond chance", "bias", "largest", "in the 95 % interval",
        "interval",
    ]  # fmt: skip
    yield markdown([*heads, "mean error of average confidence"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("weights", type=Path, nargs="+")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    write(report(Material(given.images, given.cache), given.weights), given.out)


if __name__ == "__main__":
    main()
