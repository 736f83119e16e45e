"""Which preset of FOZO is best on a real model? And what does each switch of the official one do?

    python -m benchmarks.presets WEIGHTS IMAGES [--severity 3] [--images 512] [--kinds defocus_blur,fog,...]

WEIGHTS is a file that ``fozo.load_engine`` takes, IMAGES a folder of ImageNet validation images. One continual stream,
the same batches to every contender, source statistics from images that are not in the stream. NoAdapt and Align stand
beside them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fozo
from benchmarks.common import clean_and_test, clean_batches
from fozo.data.scenarios import Continual
from fozo.methods.registry import AnyMethod
from fozo.types import Value

CONTENDERS: dict[str, tuple[str, dict[str, Value]]] = {
    "paper": ("paper", {}),
    "official": ("official", {}),
    "official, shift of the mean": ("official", {"shift": "mean"}),
    "official, no shift": ("official", {"shift": "none"}),
    "official, level batches": ("official", {"level_batches": True}),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path, metavar="IMAGES")
    parser.add_argument("--kinds", default="defocus_blur,fog,contrast,jpeg_compression")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--images", type=int, default=512, help="of each corruption, and for the source statistics")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    a = parser.parse_args()
    engine = fozo.load_engine(a.weights)
    clean, test = clean_and_test(a.folder, a.images, a.images, a.seed)
    source = fozo.calibrate(engine, clean_batches(clean, engine.spec))
    scenario = Continual(kinds=tuple(a.kinds.split(",")), severity=a.severity)
    stream = fozo.Stream(test, engine.spec, scenario, seed=a.seed)

    methods: dict[str, AnyMethod] = {"NoAdapt": fozo.NoAdapt(engine), "Align": fozo.Align(engine, source)}
    for name, (preset, options) in CONTENDERS.items():
        config = fozo.FOZO.configure(preset, {"passes": a.passes, **options})
        methods[f"FOZO {name}"] = fozo.FOZO(engine, source, config, seed=a.seed)
    hits: dict[str, dict[str, list[bool]]] = {name: {} for name in methods}
    for batch in track(stream.batches(), total=len(stream)):
        for name, method in methods.items():
            right = method(batch.images).argmax(axis=1) == batch.labels
            hits[name].setdefault(batch.domain, []).extend(right.tolist())

    table = Table(title=f"Top-1 (%), {engine.spec.name}, stream {stream.fingerprint}")
    table.add_column("method", no_wrap=True)
    for column in (*hits["NoAdapt"], "mean"):
        table.add_column(column, justify="right")
    for name, domains in hits.items():
        accuracies = [100 * float(np.mean(right)) for right in domains.values()]
        table.add_row(name, *(f"{value:.1f}" for value in (*accuracies, float(np.mean(accuracies)))))
    console = Console()
    console.print(table)
    console.print(f"{a.images} images a domain, severity {a.severity}, batch 64, {a.passes} passes, seed {a.seed}")


if __name__ == "__main__":
    main()
