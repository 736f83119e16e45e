"""Measure every method on one continual stream, and write the table of docs/methods.md.

    python benchmarks/methods.py WEIGHTS IMAGES --out docs/methods.md

WEIGHTS is a file that fozo.load_engine reads (the table is of vit_tiny_patch16_224.augreg_in21k_ft_in1k), IMAGES a
folder of clean images with one folder for each class, named so that sorting gives the classes' order (ImageNet's
wnids). Needs ``pip install 'fozo[torch,bench]'``; about 10 minutes on one core.

Every method runs in a process of its own over the identical stream. Time is processor time, so that other work on the
machine disturbs it less, and memory the process's peak; both are given relative to the plain model in the same run.
"""

from __future__ import annotations

import os

# Before NumPy and torch start their threads: one core, the same for all.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TypedDict

import numpy as np

DOMAINS = ("gaussian_noise", "fog", "contrast")
ROWS: dict[str, tuple[str, dict[str, object], str]] = {
    "NoAdapt": ("noadapt", {}, "1"),
    "LAME": ("lame", {}, "1"),
    "T3A": ("t3a", {}, "1"),
    "FOZO": ("fozo", {}, "1"),
    "FOZO (official)": ("fozo", {"passes": 2, "preset": "official"}, "2"),
    "FOA, 2 passes": ("foa", {"passes": 2}, "2"),
    "ZOA": ("zoa", {"passes": 2}, "2"),
    "TENT": ("tent", {}, "1 + 1 backward"),
    "EATA": ("eata", {}, "1 + 1 backward"),
    "SAR": ("sar", {}, "2 + 2 backward"),
    "DeYO": ("deyo", {}, "2 + 1 backward"),
}


class Result(TypedDict):
    """What the process of one method reports."""

    correct: list[int]
    seconds: float
    peak: int
    parameters: int


def peak_memory() -> int:
    """Largest resident size of this process in bytes.

    Linux passes ru_maxrss on from the process that started this one; VmHWM is this process's alone.
    """
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    scale = 1 if sys.platform == "darwin" else 1024
    return scale * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def prepare(arguments: argparse.Namespace) -> None:
    """Write the stream, the source statistics and EATA's Fisher information to the work folder."""
    import torch

    import fozo
    from fozo.data.corruptions import corrupt
    from fozo.data.images import fit, read_image
    from fozo.methods.eata import fisher

    torch.set_num_threads(1)
    engine = fozo.load_engine(arguments.weights)
    folders = sorted(path for path in Path(arguments.images).iterdir() if path.is_dir())
    if len(folders) != engine.spec.classes:
        raise fozo.FozoError(f"{arguments.images} has {len(folders)} class folders, not {engine.spec.classes}")
    every = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
    order = np.random.default_rng(arguments.seed).permutation(len(every))
    chosen = [every[i] for i in order[: arguments.clean + arguments.per_domain]]
    size = engine.spec.image_size[0]
    pixels = [fit(read_image(path), size) for path, _ in chosen]
    clean = engine.spec.normalise(np.stack(pixels[: arguments.clean]))
    batches = [clean[i : i + arguments.batch] for i in range(0, len(clean), arguments.batch)]
    work = Path(arguments.work)
    fozo.SourceStatistics.collect(engine, batches).save(work / "source.npz")
    fisher(engine, batches).save(work / "fisher.npz")
    test = list(zip(pixels, chosen, strict=True))[arguments.clean :]
    stream = [
        corrupt(image, kind, arguments.severity, arguments.seed, image_id=path.name)
        for kind in DOMAINS
        for image, (path, _) in test
    ]
    np.save(work / "stream.npy", np.stack(stream))
    np.save(work / "labels.npy", np.array([label for _, (_, label) in test]))


def run(arguments: argparse.Namespace) -> Result:
    """Run one method over the stream."""
    import torch

    import fozo
    from fozo.methods.eata import Fisher

    torch.set_num_threads(1)
    work = Path(arguments.work)
    stream = np.load(work / "stream.npy", mmap_mode="r")
    labels = np.load(work / "labels.npy")
    name, options, _ = ROWS[arguments.run]
    engine = fozo.load_engine(arguments.weights)
    if fozo.methods()[name].needs_gradient:
        options = {**options, "batch_size": arguments.batch}
    if name == "eata":
        options = {**options, "fisher": Fisher.load(work / "fisher.npz")}
    method = fozo.create(name, engine, fozo.SourceStatistics.load(work / "source.npz"), **options)
    correct, times = [0] * len(DOMAINS), []
    for domain in range(len(DOMAINS)):
        for start in range(0, len(labels), arguments.batch):
            rows = slice(start, min(start + arguments.batch, len(labels)))
            offset = domain * len(labels)
            images = engine.spec.normalise(np.asarray(stream[offset + rows.start : offset + rows.stop]))
            began = time.process_time()
            prediction = method(images).argmax(axis=1)
            times.append((time.process_time() - began) / len(images))
            correct[domain] += int((prediction == labels[rows]).sum())
    return Result(correct=correct, seconds=float(np.median(times)), peak=peak_memory(), parameters=method.parameters)


def table(results: dict[str, Result], arguments: argparse.Namespace, model: str) -> str:
    """The page."""
    plain = results["NoAdapt"]
    domains = " | ".join(kind.replace("_", " ") for kind in DOMAINS)
    lines = [
        "# Methods, measured",
        "",
        f"{model} on a continual stream of {', '.join(DOMAINS)} at severity {arguments.severity}: "
        f"{arguments.per_domain} images of the ImageNet validation set for each, the same images in each, in batches "
        f"of {arguments.batch}, never reset. Source statistics, and EATA's Fisher information, are of "
        f"{arguments.clean} other clean images. Every method has its default options. One core; time is processor "
        "time for an image and memory the process's peak, both against NoAdapt in the same run. Made by "
        f"`python benchmarks/methods.py WEIGHTS IMAGES --per-domain {arguments.per_domain}`.",
        "",
        f"| method | passes per image | parameters adapted | {domains} | top-1 | time | extra memory |",
        "|---|---|---:|" + "---:|" * (len(DOMAINS) + 3),
    ]
    for row, result in results.items():
        shares = [100 * correct / arguments.per_domain for correct in result["correct"]]
        columns = [
            row,
            ROWS[row][2],
            f"{result['parameters']}",
            *(f"{share:.1f}" for share in shares),
            f"{np.mean(shares):.1f}",
            f"x {result['seconds'] / plain['seconds']:.2f}",
            f"{(result['peak'] - plain['peak']) / 2**20:+.0f} MiB",
        ]
        lines.append("| " + " | ".join(columns) + " |")
    error = 100 * (0.25 / (len(DOMAINS) * arguments.per_domain)) ** 0.5
    lines += [
        "",
        f"NoAdapt takes {1000 * plain['seconds']:.0f} ms an image and {plain['peak'] / 2**20:.0f} MiB, of which most "
        f"is Python and PyTorch. A top-1 is uncertain by up to {error:.1f} points (one standard error); differences "
        "between methods are surer than that, because all see the same images. Some 90 MiB of FOA's memory are what "
        "pycma imports.",
        "",
    ]
    return "\n".join(lines)


def child(arguments: argparse.Namespace, *more: str) -> str:
    """Run this file again in a process of its own and return what it printed."""
    given = [arguments.weights, arguments.images, "--work", arguments.work, "--seed", str(arguments.seed)]
    for name in ("per_domain", "clean", "batch", "severity"):
        given += [f"--{name.replace('_', '-')}", str(getattr(arguments, name))]
    command = [sys.executable, __file__, *given, *more]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights")
    parser.add_argument("images")
    parser.add_argument("--out", help="file to write the page to; by default it is printed")
    parser.add_argument("--per-domain", type=int, default=256, help="images of each corruption")
    parser.add_argument("--clean", type=int, default=256, help="other images, for the source statistics")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--run", choices=ROWS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.prepare:
        prepare(arguments)
        return
    if arguments.run:
        print(json.dumps(run(arguments)))
        return
    with tempfile.TemporaryDirectory() as work:
        arguments.work = work
        child(arguments, "--prepare")
        results: dict[str, Result] = {}
        for row in ROWS:
            results[row] = json.loads(child(arguments, "--run", row))
            print(row, results[row], file=sys.stderr, flush=True)
    page = table(results, arguments, Path(arguments.weights).stem)
    if arguments.out:
        Path(arguments.out).write_text(page)
    else:
        print(page)


if __name__ == "__main__":
    main()
