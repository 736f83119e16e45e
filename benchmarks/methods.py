"""Measure every registered method on one continual stream, and print the table of results/methods.md.

    python -m benchmarks.methods WEIGHTS IMAGES

WEIGHTS is a file that fozo.load_engine reads (the table is of vit_tiny_patch16_224.augreg_in21k_ft_in1k), IMAGES a
folder of clean images with one folder for each class (ImageNet's wnids). Needs ``pip install 'fozo[torch,bench]'``;
about 15 minutes on one core.

Every method runs in a process of its own over the identical stream. Time is processor time, so that other work on the
machine disturbs it less, and memory the process's peak; both are given relative to the plain model in the same run.
"""

import os

# Before NumPy and torch start their threads: one core, the same for all.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch

import fozo
from benchmarks.common import clean_and_test, clean_batches, in_a_process, markdown, mebibytes, timed
from fozo.bench.plan import every_method
from fozo.data.sets import Domain
from fozo.data.streams import Corrupting
from fozo.methods.common.measured import MEASURED
from fozo.types import Value

DOMAINS = ("gaussian_noise", "fog", "contrast")
SOURCE = "source.safetensors"
STREAM = "stream.npy"
LABELS = "labels.npy"


def rows() -> dict[str, tuple[str, dict[str, Value]]]:
    """Name and options of each row: every registered method as ``fozo bench streams`` compares it."""
    return {label: (name, dict(options)) for label, (name, options) in every_method().items()}


class Result(TypedDict):
    """What the process of one method reports."""

    correct: list[int]
    passes: float
    parameters: int
    seconds: float
    peak: float
    """MiB."""


def prepare(a: argparse.Namespace) -> None:
    """Write the stream, the source statistics and EATA's Fisher information to the work folder."""
    engine = fozo.load_engine(a.weights)
    clean, test = clean_and_test(a.images, a.clean, a.per_domain, a.seed)
    fozo.calibrate(engine, clean_batches(clean, engine.spec, a.batch)).save(a.work / SOURCE)
    for name, measured in MEASURED.items():
        measured.measure(engine, clean_batches(clean, engine.spec, a.batch)).save(a.work / f"{name}.safetensors")
    source = Corrupting(test, engine.spec.image_size)
    stream = [source.load(Domain(kind, a.severity), i) for kind in DOMAINS for i in range(len(test))]
    np.save(a.work / STREAM, np.stack(stream))
    np.save(a.work / LABELS, test.labels)


def run(a: argparse.Namespace) -> Result:
    stream = np.load(a.work / STREAM, mmap_mode="r")
    labels = np.load(a.work / LABELS)
    name, options = rows()[a.run]
    engine = fozo.load_engine(a.weights)
    needs = fozo.list_methods()[name].needs
    given: dict[str, Any] = {**options, "seed": a.seed, "batch_size": a.batch}
    given |= {name: MEASURED[name].load(a.work / f"{name}.safetensors") for name in needs & MEASURED.keys()}
    source = fozo.Statistics.load(a.work / SOURCE) if "statistics" in needs else None
    method = fozo.create(name, engine, source, **given)
    correct = [0] * len(DOMAINS)
    times = []
    passes = []
    for domain in range(len(DOMAINS)):
        for start in range(0, len(labels), a.batch):
            truth = labels[start : start + a.batch]
            first = domain * len(labels) + start
            images = engine.spec.normalise(np.asarray(stream[first : first + len(truth)]))
            (_, seconds), logits = timed(method, images)
            times.append(seconds / len(truth))
            passes.append(method.passes_per_image)
            correct[domain] += int((logits.argmax(axis=1) == truth).sum())
    return Result(
        correct=correct,
        passes=float(np.mean(passes)),
        parameters=method.parameter_count,
        seconds=float(np.median(times)),
        peak=mebibytes(),
    )


def table(results: dict[str, Result], a: argparse.Namespace) -> str:
    plain = results["NoAdapt"]
    lines = []
    for row, result in results.items():
        shares = [100 * correct / a.per_domain for correct in result["correct"]]
        info = fozo.list_methods()[rows()[row][0]]
        passes = info.passes if "gradient" in info.needs else f"{result['passes']:g}"  # backward passes are in words
        tops = [f"{share:.1f}" for share in (*shares, np.mean(shares))]
        time = f"x {result['seconds'] / plain['seconds']:.2f}"
        memory = f"{result['peak'] - plain['peak']:+.0f} MiB"
        lines.append([row, passes, result["parameters"], *tops, time, memory])
    heads = ["method", "passes per image", "parameters adapted", *DOMAINS, "top-1", "time", "extra memory"]
    return markdown(heads, lines)


def child(a: argparse.Namespace, *more: str) -> str:
    """Run this file again in a process of its own and return what it printed."""
    given: list[object] = [a.weights, a.images, "--work", a.work, "--seed", a.seed]
    for name in ("per_domain", "clean", "batch", "severity"):
        given += [f"--{name.replace('_', '-')}", getattr(a, name)]
    return in_a_process("methods", *given, *more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--per-domain", type=int, default=256, help="images of each corruption")
    parser.add_argument("--clean", type=int, default=256, help="other images, for the source statistics")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=rows(), help="a row beside NoAdapt; all by default")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run", choices=rows(), help=argparse.SUPPRESS)
    a = parser.parse_args()
    torch.set_num_threads(1)
    if a.prepare:
        prepare(a)
        return
    if a.run:
        print(json.dumps(run(a)))
        return
    with tempfile.TemporaryDirectory() as work:
        a.work = Path(work)
        child(a, "--prepare")
        results: dict[str, Result] = {}
        for row in ["NoAdapt", *a.only] if a.only else rows():
            results[row] = json.loads(child(a, "--run", row))
            print(row, results[row], file=sys.stderr, flush=True)
    print(table(results, a))


if __name__ == "__main__":
    main()
