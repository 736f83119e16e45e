"""The newest rivals (NEO, PEA, GAIN, CAZO) beside NoAdapt and Align: top-1 on corrupted images, never reset and reset.

    python -m benchmarks.newest run WEIGHTS IMAGES --work DIR --tune --images 96 --out tuning.jsonl
    python -m benchmarks.newest run WEIGHTS IMAGES --work DIR --out newest.jsonl [--only Align --only PEA]
    python -m benchmarks.newest run WEIGHTS IMAGES --work DIR --only NoAdapt --only Align --only CAZO \\
        --images 32 --kinds gaussian_noise,defocus_blur,fog,jpeg_compression --scenarios continual --out cazo.jsonl
    python -m benchmarks.newest table newest.jsonl ...

WEIGHTS is a file that fozo.load_engine reads, IMAGES a folder of clean images with one folder for each class. ``run``
goes through 15 corruptions (``--tune``: the four extra ones, with every choice of constants in ``GRID``) and appends a
line for each method, scenario and corruption; ``table`` prints Markdown. All methods see the identical batches, which
DIR keeps for the next run; what the plain model says of a batch is computed once for all that ask. 64 images of each
corruption are about 9 passes an image: 5 minutes a model on one core; ``--seed 1`` goes on with another draw of images.
CAZO makes 41 and runs only where it is asked for.
"""

from __future__ import annotations

import os

# Before NumPy and torch start their threads: one core, the same for all.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from rich.progress import track

import fozo
from benchmarks.common import clean_and_test, clean_batches
from fozo.bench.plan import Methods
from fozo.core.covariances import Covariances
from fozo.data.corruptions import EXTRA_KINDS, KINDS
from fozo.data.sets import Domain, ImageSet
from fozo.data.sources import Corrupting
from fozo.engines.torch_engine import TorchBatch, TorchEngine
from fozo.io import atomic_write
from fozo.methods.pea import measure_covariances
from fozo.methods.registry import AnyMethod
from fozo.types import NO_KNOBS, Array, Batch, Floats, Images, Knobs, Tap, Taps

CALIBRATION = 512
BINS = 15
"""Of the expected calibration error."""
PLAIN = (Tap.LOGITS, Tap.POOLED, Tap.CLS)
SCENARIOS = ("continual", "reset")
INFINITE = float("inf")

ROWS: Methods = {
    "NoAdapt": ("noadapt", {}),
    "Align": ("align", {}),
    "NEO": ("neo", {}),
    "NEO-Cont": ("neo", {"preset": "continual"}),
    "GAIN": ("gain", {}),
    "GAIN, raw": ("gain", {"preset": "raw"}),
    "PEA": ("pea", {}),
    "NEO, tuned": ("neo", {"average": "ema", "rate": 0.5}),
    "GAIN, tuned": ("gain", {"kappa": 30.0}),
    "PEA, tuned": ("pea", {"momentum": 0.1, "gamma": INFINITE}),
    "CAZO": ("cazo", {}),
}
"""Every method with its published constants, and those of ``GRID`` that did best on the four extra corruptions."""
GRID: Methods = {
    "NoAdapt": ("noadapt", {}),
    **{f"NEO, rate {rate}": ("neo", {"average": "ema", "rate": rate}) for rate in (0.1, 0.2, 0.5, 0.8, 1.0)},
    "NEO, over images": ("neo", {}),
    **{f"GAIN, kappa {kappa:g}": ("gain", {"kappa": kappa}) for kappa in (1.0, 3.0, 10.0, 30.0, 100.0)},
    **{f"GAIN, raw, kappa {kappa:g}": ("gain", {"preset": "raw", "kappa": kappa}) for kappa in (3.0, 300.0)},
    **{
        f"PEA, momentum {momentum}, gamma {gamma:g}": ("pea", {"momentum": momentum, "gamma": gamma})
        for momentum, gamma in ((0.02, 4.0), (0.1, 4.0), (0.3, 4.0), (0.1, INFINITE), (0.3, INFINITE))
    },
}


class Remembering(TorchEngine):
    """A torch engine that computes what the plain model says of a batch once, whoever asks."""

    def __init__(self, inner: TorchEngine) -> None:
        self.__dict__.update(inner.__dict__)
        self.seen: tuple[Images, TorchBatch] | None = None
        self.plain: Taps = {}

    def check(self, images: Images) -> TorchBatch:
        if self.seen is None or self.seen[0] is not images:
            self.seen, self.plain = (images, super().check(images)), {}
        return self.seen[1]

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        if knobs is not NO_KNOBS or self.seen is None or batch is not self.seen[1] or not set(taps) <= set(PLAIN):
            return super().run(batch, knobs, taps)
        if not self.plain:
            self.plain = super().run(batch, knobs, PLAIN)
        return {tap: self.plain[tap] for tap in taps}


def confidences(logits: Floats, right: npt.NDArray[np.bool_]) -> Array:
    """For each bin of the confidence: images, their summed confidence, and how many were right, ``[BINS, 3]``."""
    scores = logits.astype(np.float64)
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    sure = (odds / odds.sum(axis=1, keepdims=True)).max(axis=1)
    place = np.minimum((sure * BINS).astype(int), BINS - 1)
    return np.stack([np.bincount(place, weights, BINS) for weights in (np.ones(len(sure)), sure, right)], axis=1)


def corrupted(test: ImageSet, kind: str, a: argparse.Namespace, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Corrupt all images, or read how that was done before."""
    path = a.work / f"{kind}-{a.severity}-{size[0]}-{a.images}-{a.seed}.npy"
    if not path.exists():
        made = Corrupting(test, size)
        with atomic_write(path) as file:
            np.save(file, np.stack([made.load(Domain(kind, a.severity), i) for i in range(len(test))]))
    found: npt.NDArray[np.uint8] = np.load(path)
    return found


def run(a: argparse.Namespace) -> None:
    """Stream the images through every row in every scenario, and append what came of it."""
    torch.set_num_threads(1)
    inner = fozo.load_engine(a.weights)
    assert isinstance(inner, TorchEngine)
    engine = Remembering(inner)
    rows: Methods = GRID if a.tune else ROWS
    chosen = a.only or [label for label, (method, _) in rows.items() if method != "cazo"]
    kinds = EXTRA_KINDS if a.tune else tuple(a.kinds.split(","))
    clean, test = clean_and_test(a.folder, CALIBRATION, a.images, a.seed)
    given: dict[str, dict[str, Any]] = {}
    source = None
    if {rows[label][0] for label in chosen} & {"align", "cazo"}:
        path = a.work / f"source-{engine.spec.name}-{a.images}-{a.seed}.npz"
        if not path.exists():
            fozo.calibrate(engine, clean_batches(clean, engine.spec)).save(path)
        source = fozo.SourceStatistics.load(path)
    if any(rows[label][0] == "pea" for label in chosen):
        path = a.work / f"covariances-{engine.spec.name}-{a.images}-{a.seed}.npz"
        if not path.exists():
            measure_covariances(engine, clean_batches(clean, engine.spec)).save(path)
        given["pea"] = {"covariances": Covariances.load(path)}

    def make(label: str) -> AnyMethod:
        name, options = rows[label]
        everything: dict[str, Any] = {**given.get(name, {}), **options}
        return fozo.create(name, inner if name == "cazo" else engine, source, **everything)

    methods = {(label, scenario): make(label) for label in chosen for scenario in a.scenarios.split(",")}
    labels = test.labels
    starts = range(0, len(test), a.batch)
    steps = iter(track(range(len(kinds) * len(starts)), "streaming"))
    for kind in kinds:
        pixels = corrupted(test, kind, a, engine.spec.image_size)
        right: dict[tuple[str, str], list[Any]] = {key: [] for key in methods}
        bins = {key: np.zeros((BINS, 3)) for key in methods}
        passes = dict.fromkeys(methods, 0.0)
        for method in (method for (_, scenario), method in methods.items() if scenario == "reset"):
            method.reset()
        for start in starts:
            next(steps)
            part = range(start, min(start + a.batch, len(test)))
            images = engine.spec.normalise(pixels[part.start : part.stop])
            for key, method in methods.items():
                logits = method(images)
                hits = logits.argmax(axis=1) == labels[part.start : part.stop]
                right[key].append(hits)
                bins[key] += confidences(logits, hits)
                passes[key] += method.passes_per_image * len(part)
        with a.out.open("a") as file:
            for (label, scenario), found in right.items():
                record = {
                    "model": engine.spec.name, "row": label, "scenario": scenario, "domain": kind,
                    "severity": a.severity, "seed": a.seed, "images": len(test), "batch": a.batch, "kinds": len(kinds),
                    "passes": passes[label, scenario] / len(test),
                    "right": np.packbits(np.concatenate(found)).tobytes().hex(),
                    "bins": bins[label, scenario].round(3).tolist(),
                }  # fmt: skip
                file.write(json.dumps(record) + "\n")


Setting = tuple[str, int, int]
Records = dict[tuple[int, str], dict[str, Any]]
"""Of one row in one scenario: by seed, which chose the images, and corruption."""


def read(paths: Sequence[Path]) -> dict[Setting, dict[str, dict[str, Records]]]:
    """Read records: by setting (model, corruptions, images of each run), scenario and row."""
    found: dict[Setting, dict[str, dict[str, Records]]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            record = json.loads(line)
            rows = found.setdefault((record["model"], record["kinds"], record["images"]), {})
            own = rows.setdefault(record["scenario"], {}).setdefault(record["row"], {})
            own[record["seed"], record["domain"]] = record
    return found


def hits(records: Records) -> Array:
    """Which images were recognised, 0 or 1: ``[corruptions, images]``, the images of all seeds side by side."""
    bits: dict[str, list[Array]] = {}
    for (_, domain), record in sorted(records.items()):
        packed = np.frombuffer(bytes.fromhex(record["right"]), np.uint8)
        bits.setdefault(domain, []).append(np.unpackbits(packed)[: record["images"]].astype(np.float64))
    return np.stack([np.concatenate(parts) for parts in bits.values()])


def summary(row: Records, base: Records) -> tuple[float, float, float, float]:
    """Top-1, the difference to ``base`` and its 95 % half-width, and the calibration error, in percent.

    The images are the same in every corruption, so an image's mean difference over them is one observation.
    """
    own, plain = hits(row), hits(base)
    difference = (own - plain).mean(axis=0)
    half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
    bins = np.sum([record["bins"] for record in row.values()], axis=0)
    error = np.abs(bins[:, 1] - bins[:, 2]).sum() / bins[:, 0].sum()
    return 100 * own.mean(), 100 * difference.mean(), 100 * half, 100 * error


def table(paths: Sequence[Path], base: str = "NoAdapt") -> str:
    """Print a table for each setting: a row a method, both scenarios side by side, against the row ``base``."""
    parts = []
    for (model, kinds, images), sides in read(paths).items():
        heads = ["", "passes"]
        for name in sides:
            heads += [name, f"less {base} (95 %)", "ECE"]
        seeds = {seed for side in sides.values() for seed, _ in side[base]}
        lines = [f"{model}, {kinds} corruptions, {len(seeds)} x {images} images of each", ""]
        lines += ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
        for row in dict.fromkeys(label for side in sides.values() for label in side):
            cells: list[str] = []
            for side in sides.values():
                own = side.get(row, {})
                if own.keys() != side[base].keys():
                    cells += ["-", "-", "-"]
                    continue
                top, gain, half, error = summary(own, side[base])
                apart = "-" if row == base else f"{gain:+.2f} ± {half:.2f}"
                cells += [f"{top:.2f}", f"**{apart}**" if abs(gain) > half else apart, f"{error:.1f}"]
            passes = [record["passes"] for side in sides.values() for record in side.get(row, {}).values()]
            lines.append("| " + " | ".join([row, f"{np.mean(passes):.2g}", *cells]) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run")
    runs.add_argument("weights", type=Path)
    runs.add_argument("folder", type=Path, metavar="IMAGES")
    runs.add_argument("--out", type=Path, required=True, help="file to append records to")
    runs.add_argument("--work", type=Path, required=True, help="folder for corrupted images and statistics")
    runs.add_argument("--tune", action="store_true", help="the grid of constants on the four extra corruptions")
    runs.add_argument("--only", action="append", help="a row; give it again for more")
    runs.add_argument("--kinds", default=",".join(KINDS))
    runs.add_argument("--scenarios", default=",".join(SCENARIOS))
    runs.add_argument("--severity", type=int, default=5)
    runs.add_argument("--images", type=int, default=64, help="of each corruption")
    runs.add_argument("--batch", type=int, default=32)
    runs.add_argument("--seed", type=int, default=0, help="chooses the images; a table joins those of all seeds")
    tables = commands.add_parser("table")
    tables.add_argument("records", type=Path, nargs="+")
    tables.add_argument("--base", default="NoAdapt", help="the row that others are compared with, such as Align")
    a = parser.parse_args()
    if a.command == "run":
        run(a)
    else:
        print(table(a.records, a.base))


if __name__ == "__main__":
    main()
