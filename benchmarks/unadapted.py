"""Accuracy of an unadapted model under every corruption: the numbers that adaptation has to beat.

    python benchmarks/unadapted.py WEIGHTS IMAGES --out docs/unadapted.json --table docs/unadapted.md

WEIGHTS is a file that ``fozo.load_engine`` takes, IMAGES a folder of ImageNet validation crops in wnid folders. Each
image is corrupted as ``fozo corrupt`` does, JPEG quality 85 included. The JSON is written after each cell, so that an
interrupted run goes on where it stopped.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image
from rich.progress import Progress

import fozo
from fozo.data.corrupt_tree import QUALITY
from fozo.data.corruptions import KINDS, frost_source
from fozo.data.sets import CLEAN, Domain
from fozo.data.sources import Corrupting
from fozo.io import atomic_write, write_json

BATCH = 64
Pixels = npt.NDArray[np.uint8]


def load(source: Corrupting, indices: range, domain: Domain) -> Pixels:
    """Read, corrupt and compress a batch of images."""
    images = []
    for index in indices:
        image = source.load(domain, index)
        if domain != CLEAN:
            buffer = io.BytesIO()
            Image.fromarray(image).save(buffer, format="JPEG", quality=QUALITY)
            image = np.asarray(Image.open(buffer))
        images.append(image)
    return np.stack(images)


def stream(pool: ProcessPoolExecutor, source: Corrupting, domain: Domain) -> Iterator[Pixels]:
    """Batches of one domain, the next three being made while one is used."""
    waiting: list[Future[Pixels]] = []
    count = len(source.images)
    for start in range(0, count, BATCH):
        waiting.append(pool.submit(load, source, range(start, min(start + BATCH, count)), domain))
        if len(waiting) > 3:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--severities", default="3,5")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    severities = [int(text) for text in arguments.severities.split(",")]
    engine = fozo.load_engine(arguments.weights)
    method = fozo.NoAdapt(engine)
    images = fozo.open_images(arguments.images, "imagenet")
    if len(images.classes) != engine.spec.classes:
        raise SystemExit(f"{engine.spec.name} has {engine.spec.classes} classes; give a model of ImageNet's 1000")
    source = Corrupting(images, engine.spec.image_size)
    conditions = {
        "model": engine.spec.name,
        "fingerprint": engine.spec.fingerprint,
        "images": len(images),
        "frost": frost_source(),
        "seed": 0,
    }
    results: dict[str, float] = {}
    if arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        if before["conditions"] != conditions:
            raise SystemExit(f"{arguments.out} was made under other conditions; use another file")
        results = before["top1"]
    cells = [CLEAN] + [Domain(kind, severity) for severity in severities for kind in KINDS]
    with ProcessPoolExecutor(1) as pool, Progress() as bar:
        task = bar.add_task("cells", total=len(cells))
        for domain in cells:
            if domain.name not in results:
                predictions = [
                    method(engine.spec.normalise(part)).argmax(axis=1) for part in stream(pool, source, domain)
                ]
                results[domain.name] = round(100 * float((np.concatenate(predictions) == images.labels).mean()), 2)
                write_json(arguments.out, {"conditions": conditions, "top1": results})
            bar.advance(task)
    if arguments.table:
        with atomic_write(arguments.table) as file:
            file.write(table(conditions, results, severities).encode())


def table(conditions: dict[str, object], results: dict[str, float], severities: list[int]) -> str:
    """The Markdown page of the results."""
    lines = [
        "# Unadapted accuracy under corruption",
        "",
        f"Top-1 (%) of `{conditions['model']}` without adaptation on {conditions['images']} ImageNet validation crops "
        f"(224 px), corrupted by fozo (seed {conditions['seed']}, JPEG quality 85, frost textures: "
        f"{conditions['frost']}). Clean: {results['clean']:.1f}. Made by `benchmarks/unadapted.py`.",
        "",
        "| corruption | " + " | ".join(f"severity {severity}" for severity in severities) + " |",
        "|---|" + "---:|" * len(severities),
    ]
    for kind in KINDS:
        lines.append(f"| {kind} | " + " | ".join(f"{results[f'{kind}/{s}']:.1f}" for s in severities) + " |")
    means = [np.mean([results[f"{kind}/{severity}"] for kind in KINDS]) for severity in severities]
    lines.append("| **mean** | " + " | ".join(f"**{mean:.1f}**" for mean in means) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
