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
from fozo.core.files import atomic_write
from fozo.data.corruptions import KINDS, corrupt, frost_source
from fozo.data.images import fit, read_image

BATCH = 64
Pixels = npt.NDArray[np.uint8]


def load(root: Path, files: list[str], size: int, kind: str, severity: int) -> Pixels:
    """Read, corrupt and compress a batch of images."""
    images = []
    for name in files:
        image = fit(read_image(root / name, name), size)
        if kind != "clean":
            buffer = io.BytesIO()
            corrupted = corrupt(image, kind, severity, 0, image_id=name)
            Image.fromarray(corrupted).save(buffer, format="JPEG", quality=85)
            image = np.asarray(Image.open(buffer))
        images.append(image)
    return np.stack(images)


def stream(pool: ProcessPoolExecutor, root: Path, files: list[str], size: int, cell: str) -> Iterator[Pixels]:
    """Batches of one cell, the next three being made while one is used."""
    kind, severity = [*cell.split("/"), "0"][:2]
    waiting: list[Future[Pixels]] = []
    for start in range(0, len(files), BATCH):
        waiting.append(pool.submit(load, root, files[start : start + BATCH], size, kind, int(severity)))
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
    wnids = sorted(path.name for path in arguments.images.iterdir() if path.is_dir())
    if len(wnids) != engine.spec.classes:
        raise SystemExit(f"{len(wnids)} class folders for {engine.spec.classes} classes; give all of them")
    files = sorted(str(path.relative_to(arguments.images)) for path in arguments.images.glob("*/*"))
    labels = np.array([wnids.index(name.split("/")[0]) for name in files])
    conditions = {
        "model": engine.spec.name,
        "fingerprint": engine.spec.fingerprint,
        "images": len(files),
        "frost": frost_source(),
        "seed": 0,
    }
    results: dict[str, float] = {}
    if arguments.out.exists():
        before = json.loads(arguments.out.read_text())
        if before["conditions"] != conditions:
            raise SystemExit(f"{arguments.out} was made under other conditions; use another file")
        results = before["top1"]
    cells = ["clean"] + [f"{kind}/{severity}" for severity in severities for kind in KINDS]
    with ProcessPoolExecutor(1) as pool, Progress() as bar:
        task = bar.add_task("cells", total=len(cells))
        for cell in cells:
            if cell not in results:
                pixels = stream(pool, arguments.images, files, engine.spec.image_size[0], cell)
                predictions = [method(engine.spec.normalise(part)).argmax(axis=1) for part in pixels]
                results[cell] = round(100 * float((np.concatenate(predictions) == labels).mean()), 2)
                with atomic_write(arguments.out) as file:
                    file.write(json.dumps({"conditions": conditions, "top1": results}, indent=1).encode())
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
