"""Which preset of FOZO is best on a real model? And what does each switch of the official one do?

    python benchmarks/presets.py WEIGHTS IMAGES [--severity 3] [--images 512] [--kinds defocus_blur,fog,...]

WEIGHTS is a file that ``fozo.load_engine`` takes, IMAGES a folder of ImageNet validation images. One continual stream,
the same batches to every contender, source statistics from images that are not in the stream. The answer decides the
default preset and stands in the README.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from rich.table import Table

import fozo
from fozo.data.scenarios import Continual
from fozo.data.sets import open_images
from fozo.data.streams import Stream

CONTENDERS: dict[str, dict[str, object]] = {
    "paper": {"preset": "paper"},
    "official": {"preset": "official"},
    "official, shift of the mean": {"preset": "official", "shift": "mean"},
    "official, no shift": {"preset": "official", "shift": "none"},
    "official, level batches": {"preset": "official", "level_batches": True},
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
    both = open_images(a.folder).take(2 * a.images, seed=a.seed)
    paths = [sample.path for sample in both.samples]
    clean, test = both.select(paths[: a.images]), both.select(paths[a.images :])
    calibration = Stream(clean, engine.spec, Continual(kinds=("clean",)))
    source = fozo.SourceStatistics.collect(engine, (batch.images for batch in calibration.batches()))
    stream = Stream(test, engine.spec, Continual(kinds=tuple(a.kinds.split(",")), severity=a.severity), seed=a.seed)

    methods: dict[str, fozo.Method] = {"NoAdapt": fozo.NoAdapt(engine)}
    for name, options in CONTENDERS.items():
        methods[f"FOZO {name}"] = fozo.create("fozo", engine, source, passes=a.passes, seed=a.seed, **options)
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
