"""A long life for the default adapter: memory, time and accuracy over many batches, some of them hostile.

    OPENBLAS_NUM_THREADS=1 python -m benchmarks.soak --batches 100000 --out runs/soak

The bundled model and images, in batches of 8. Domains come and go at random, each for 20 to ``--longest`` batches; one
in four is followed by a stretch of garbage, up to a tenth as long: batches that have to be refused (NaN, 1e20, floats
of 0..255) or are nothing but adversarial frames. Of all other frames one in ten is adversarial: finite and accepted,
but no picture (constant, checkerboard, salt, or one pixel at the very limit of what engines accept).

Every ``--every`` batches a line is added to ``soak.log`` (JSON behind a checksum): resident memory, the adapter's
processor time a batch, and how many genuine frames were right, with and without adaptation. NoAdapt's answers do not
depend on the stream, so they are computed once for each image and domain. What batch i holds depends on the seed and i
alone, and the adapter's state is saved with each line: a run that was killed goes on where it was, to the same figures.
At the end: a table, and the curves in ``soak.svg``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import fozo
from benchmarks.common import refusals
from benchmarks.soak_picture import Panel, picture
from fozo.bench.environment import STATUS, peak_memory
from fozo.core.normalisation import ABSURD
from fozo.data import sample
from fozo.data.sets.base import CLEAN, Domain
from fozo.data.sources import Corrupting
from fozo.data.streams import normalisation_table
from fozo.errors import FozoError, ImageWarning
from fozo.io import Log, atomic_write, locked, read_log, remove_temporary_files
from fozo.types import Engine, Floats

MODEL = sample.MODELS["float32"]
BATCH = 8
KINDS = ("gaussian_noise", "motion_blur", "brightness", "fog", "contrast")
"""What NumPy and Pillow can do alone, as in the demo."""
DOMAINS = (CLEAN, *(Domain(kind, severity) for kind in KINDS for severity in (2, 4)))
ADVERSARIAL = 0.1
SHORTEST = 20
AFTER = 25
"""Batches after a stretch of garbage that are also counted by themselves: there harm would show first."""
REFUSED = ("NaN", "1e20", "0..255")


@dataclass(frozen=True)
class Stretch:
    """Some batches of one domain, or of garbage, by the numbers of the first and of the one after the last."""

    start: int
    stop: int
    domain: int | None
    garbage_before: bool = False


def stretches(seed: int, longest: int) -> Iterator[Stretch]:
    """Plan an endless stream; longer runs begin as shorter ones do."""
    numbers = np.random.default_rng([seed, 0])
    start, domain, garbage = 0, 0, False
    while True:
        stop = start + int(numbers.integers(min(SHORTEST, longest), longest + 1))
        yield Stretch(start, stop, domain, garbage)
        garbage = bool(numbers.random() < 0.25)
        if garbage:
            start, stop = stop, stop + int(numbers.integers(1, max(1, longest // 10) + 1))
            yield Stretch(start, stop, None)
        start, domain = stop, (domain + int(numbers.integers(1, len(DOMAINS)))) % len(DOMAINS)


class Material:
    """All images in all domains, normalised when they are asked for, and what the plain model says of them."""

    def __init__(self, engine: Engine, images: int | None = None) -> None:
        spec = engine.spec
        self.spec, self.table = spec, normalisation_table(spec)
        found = fozo.open_images(sample.IMAGES)
        source = Corrupting(found, spec.image_size, channels=spec.channels)
        count = len(found) if images is None else images
        chosen = np.random.default_rng(0).permutation(len(found))[:count]
        self.labels = np.array([found.samples[i].label for i in chosen])
        self.pixels = np.array([[source.load(domain, int(i)) for i in chosen] for domain in DOMAINS])
        plain = fozo.NoAdapt(engine)
        self.plain = np.array(
            [np.concatenate([plain(self.normalised(part)).argmax(axis=1) for part in np.array_split(domain, 20)])
             for domain in self.pixels]
        )  # fmt: skip

    def normalised(self, pixels: np.ndarray) -> np.ndarray:
        """As ``spec.normalise`` does."""
        channels = [table[pixels[..., channel]] for channel, table in enumerate(self.table)]
        return np.stack(channels, axis=1)

    def adversarial(self, numbers: np.random.Generator) -> np.ndarray:
        """One frame that no camera takes, but every engine does."""
        channels, height, width = self.spec.image_shape
        kind = numbers.integers(4)
        if kind == 0:
            pixels = np.full((height, width), numbers.random())
        elif kind == 1:
            size = int(numbers.integers(1, 8))
            pixels = np.add.outer(np.arange(height) // size, np.arange(width) // size) % 2 * 1.0
        elif kind == 2:
            pixels = (numbers.random((height, width)) < numbers.random()) * 1.0
        else:
            pixels = np.full((height, width), 0.5)
            pixels[numbers.integers(height), numbers.integers(width)] = 0.999 * ABSURD[int(numbers.integers(2))]
        mean, std = (np.array(values)[:, None, None] for values in (self.spec.mean, self.spec.std))
        return np.asarray((np.broadcast_to(pixels, (channels, height, width)) - mean) / std, dtype=np.float32)

    def batch(self, index: int, stretch: Stretch, seed: int) -> tuple[Floats, np.ndarray, np.ndarray]:
        """Batch ``index``: its images, which of the set they are, and which of them are genuine."""
        numbers = np.random.default_rng([seed, 1, index])
        which = numbers.integers(len(self.labels), size=BATCH)
        domain = 0 if stretch.domain is None else stretch.domain
        images = self.normalised(self.pixels[domain, which])
        genuine = numbers.random(BATCH) >= ADVERSARIAL
        kind = REFUSED[index % 4] if stretch.domain is None and index % 4 < len(REFUSED) else None
        if stretch.domain is None:
            genuine[:] = False
        if kind is None:
            for i in np.flatnonzero(~genuine):
                images[i] = self.adversarial(numbers)
        elif kind == "0..255":
            images = np.maximum(self.pixels[domain, which], 32).transpose(0, 3, 1, 2).astype(np.float32)
        else:
            images[numbers.integers(BATCH), 0, 5, 5] = np.nan if kind == "NaN" else 1e20
        return images, which, genuine


def resident() -> float:
    """Memory of this process now, in MiB; at its peak where the system does not tell."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    now = [int(line.split()[1]) / 2**10 for line in lines if line.startswith("VmRSS")]
    return now[0] if now else peak_memory("cpu") / 2**20


def soak(out: Path, batches: int, every: int, seed: int = 0, longest: int = 200, images: int | None = None) -> None:
    """Run, or go on with, a soak test, writing to the folder ``out``."""
    engine = fozo.load_engine(MODEL, threads=1)
    settings = {"seed": seed, "every": every, "longest": longest, "images": images, "batch": BATCH}
    with locked(out):
        remove_temporary_files(out)
        log = Log(out / "soak.log")
        records = list(read_log(out / "soak.log"))
        if not records:
            log.append({"settings": settings, "model": engine.spec.fingerprint, "fozo": fozo.__version__})
        elif records[0]["settings"] != settings:
            raise FozoError(
                f"{out} holds a soak test of other settings ({records[0]['settings']}); choose another --out"
            )
        method = fozo.Align(engine, sample.source(MODEL))
        done = records[-1]["batches"] if len(records) > 1 else 0
        if done < batches:
            if done:
                method.restore(out / f"state-{done}.npz")
            _run(method, Material(engine, images), log, out, range(done, batches), settings)
        log.close()


def _run(method: fozo.Align, material: Material, log: Log, out: Path, todo: range, settings: dict[str, Any]) -> None:
    every, seed = settings["every"], settings["seed"]
    plan = stretches(seed, settings["longest"])
    stretch = next(plan)
    count, spent, domains = Counter[str](), 0.0, dict[str, list[int]]()
    for index in todo:
        while index >= stretch.stop:
            stretch = next(plan)
        images, which, genuine = material.batch(index, stretch, seed)
        began = time.process_time()
        try:
            answers = method(images).argmax(axis=1)
        except FozoError:
            # Garbage is to be refused; that a batch with pictures in it is not, is what is tested here.
            count["lost" if genuine.any() else "refused"] += len(images)
            answers = None
        spent += time.process_time() - began
        count["frames"] += len(images)
        count["genuine"] += int(genuine.sum())
        if answers is not None and stretch.domain is not None:
            labels = material.labels[which]
            right = (answers == labels)[genuine].sum(), (material.plain[stretch.domain, which] == labels)[genuine].sum()
            names = [DOMAINS[stretch.domain].name]
            if stretch.garbage_before and index < stretch.start + AFTER:
                names.append("after garbage")
            for name in names:
                before = domains.setdefault(name, [0, 0, 0])
                domains[name] = [a + int(b) for a, b in zip(before, (genuine.sum(), *right), strict=True)]
        done = index + 1
        if done % every == 0 or done == todo.stop:
            method.save(out / f"state-{done}.npz")
            length = done - max(todo.start, (done - 1) // every * every)
            log.append({"batches": done, "mebibytes": round(resident(), 2), "milliseconds": 1000 * spent / length,
                        "counts": dict(count), "domains": domains, "metrics": method.metrics()})  # fmt: skip
            for old in out.glob("state-*.npz"):
                if old.name != f"state-{done}.npz":
                    old.unlink()
            count, spent, domains = Counter(), 0.0, {}
            print(f"\r{done} of {todo.stop} batches", end="" if done < todo.stop else "\n", file=sys.stderr, flush=True)


def accuracy(records: Sequence[dict[str, Any]], names: Sequence[str]) -> tuple[int, float, float]:
    """Genuine frames of some domains, and the percentages right with and without adaptation."""
    found = [record["domains"][name] for record in records for name in names if name in record["domains"]]
    frames, own, plain = np.sum(found, axis=0) if found else (0, 0, 0)
    return int(frames), 100 * own / max(frames, 1), 100 * plain / max(frames, 1)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns, the first to the left."""
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width)
                  for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in (heads, *rows)
    )  # fmt: skip


def report(out: Path, rows: int = 20) -> str:
    """Write the picture, and return the tables of what is in ``out``."""
    records = list(read_log(out / "soak.log"))[1:]
    names = [domain.name for domain in DOMAINS]
    parts = [part for part in np.array_split(np.arange(len(records)), min(rows, len(records))) if len(part)]
    lines = []
    for part in parts:
        some = [records[i] for i in part]
        count = sum((Counter(record["counts"]) for record in some), Counter[str]())
        _, own, plain = accuracy(some, names)
        lines.append(
            [str(some[-1]["batches"]), f"{some[-1]['mebibytes']:.1f}",
             f"{np.mean([record['milliseconds'] for record in some]):.2f}", f"{own:.1f}", f"{plain:.1f}",
             f"{own - plain:+.1f}", str(count["refused"]), str(count["lost"])]
        )  # fmt: skip
    heads = ["batches", "MiB", "ms/batch", "Align %", "NoAdapt %", "gain", "refused", "lost"]
    by_name = []
    for name in ("all genuine", *names, "after garbage"):
        frames, own, plain = accuracy(records, names if name == "all genuine" else [name])
        if frames:
            by_name.append([name, str(frames), f"{own:.2f}", f"{plain:.2f}", f"{own - plain:+.2f}"])
    x = [record["batches"] for record in records]
    both = [accuracy([record], names)[1:] for record in records]
    panels = [
        Panel("memory, MiB", {"": [record["mebibytes"] for record in records]}, from_zero=True),
        Panel("processor time a batch of 8, ms", {"": [record["milliseconds"] for record in records]}, from_zero=True),
        Panel("right of the genuine frames, %",
              {"Align": [own for own, _ in both], "NoAdapt": [plain for _, plain in both]}),
    ]  # fmt: skip
    with atomic_write(out / "soak.svg") as file:
        file.write(picture("Soak test of the default adapter", "batches", x, panels).encode())
    return f"{table(heads, lines)}\n\n{table(['domain', 'frames', 'Align %', 'NoAdapt %', 'gain'], by_name)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100_000)
    parser.add_argument("--every", type=int, default=500, help="batches between two records")
    parser.add_argument("--longest", type=int, default=200, help="batches that a domain stays at most")
    parser.add_argument("--images", type=int, help="of the bundled ones; all by default")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/soak"))
    a = parser.parse_args()
    warnings.simplefilter("ignore", ImageWarning)  # pixels at the limit are what it is about
    with refusals("soak"):
        soak(a.out, a.batches, a.every, a.seed, a.longest, a.images)
        print(report(a.out))


if __name__ == "__main__":
    main()
