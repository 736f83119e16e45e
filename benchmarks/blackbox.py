"""A ResNet-50 as a black box, with and without ``fozo.adapter``, under every corruption.

    python -m benchmarks.blackbox WEIGHTS IMAGES [--engine torch] [--severity 5] [--images 96]

WEIGHTS is Keras' ResNet-50 (see benchmarks/resnet50.py), IMAGES a folder of ImageNet validation crops in wnid folders.
The model is a torch module, or that module written as an ONNX file which holds nothing of fozo's. One adapter sees all
domains one after another, clean images first, in batches of 32, and is never reset or told where a domain ends; 256
other images are its clean ones. Prints Markdown.

Intervals are 95 %, over images: what is hard for one is hard for the other, so differences are taken image by image;
for the mean over corruptions, an image's differences are averaged first.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import fozo
from benchmarks.common import clean_and_test, clean_batches
from benchmarks.resnet50 import MEAN, STD, load, write_onnx
from fozo.data.corruptions import EXTRA_KINDS, KINDS, frost_source
from fozo.data.sets import CLEAN, Domain
from fozo.data.sources import Corrupting
from fozo.engines.blackbox import BlackBoxEngine, black_box

BATCH = 32
CLEAN_IMAGES = 256
Right = npt.NDArray[np.float64]


def engine_of(weights: Path, kind: str, folder: Path, threads: int) -> BlackBoxEngine:
    """Open the model as somebody else's."""
    torch.set_num_threads(threads)
    model = load(weights)
    if kind == "torch":
        return black_box(model, name="resnet50", mean=MEAN, std=STD, image_size=224)
    path = folder / "resnet50.onnx"
    write_onnx(model, path)
    return black_box(path, mean=MEAN, std=STD, threads=threads)


def measure(
    engine: BlackBoxEngine, folder: Path, kinds: tuple[str, ...], severity: int, count: int
) -> dict[str, Right]:
    """For each domain, which images are predicted right without and with the adapter: ``[2, images]``."""
    clean, test = clean_and_test(folder, CLEAN_IMAGES, count)
    adapter = fozo.adapter(engine, fozo.calibrate(engine, clean_batches(clean, engine.spec)))
    plain, source = fozo.NoAdapt(engine), Corrupting(test, engine.spec.image_size)
    labels, found = np.asarray(test.labels), dict[str, Right]()
    for domain in (CLEAN, *(Domain(kind, severity) for kind in kinds)):
        right = np.zeros((2, count))
        for start in range(0, count, BATCH):
            some = range(start, min(start + BATCH, count))
            images = engine.spec.normalise(np.stack([source.load(domain, i) for i in some]))
            for row, method in enumerate((plain, adapter)):
                right[row, some] = np.argmax(method(images), axis=1) == labels[some]
        found[domain.kind] = right
        print(f"{domain.name}: {100 * right[0].mean():.1f} -> {100 * right[1].mean():.1f}", file=sys.stderr, flush=True)
    return found


def row(name: str, right: Right) -> str:
    """One line of the table."""
    difference = 100 * (right[1] - right[0])
    error = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference))
    before, after = 100 * right.mean(axis=1)
    return f"| {name} | {before:.1f} | {after:.1f} | {after - before:+.1f} ± {error:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("images_folder", metavar="images", type=Path)
    parser.add_argument("--engine", choices=("onnx", "torch"), default="onnx")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--images", type=int, default=96, help="of each corruption")
    parser.add_argument("--extra", action="store_true", help="the four extra corruptions, on which settings are chosen")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    kinds = EXTRA_KINDS if arguments.extra else KINDS
    with tempfile.TemporaryDirectory() as folder:
        engine = engine_of(arguments.weights, arguments.engine, Path(folder), arguments.threads)
        found = measure(engine, arguments.images_folder, kinds, arguments.severity, arguments.images)
    print(
        f"ResNet-50 on {arguments.engine}, severity {arguments.severity}, {arguments.images} images of each corruption "
        f"(frost textures: {frost_source()}), top-1 in %:\n"
    )
    print("| | as it is | adapter | difference |\n|---|---:|---:|---:|")
    for kind in (CLEAN.kind, *kinds):
        print(row(kind.replace("_", " "), found[kind]))
    print(row("**mean of the corruptions**", np.mean([found[kind] for kind in kinds], axis=0)))


if __name__ == "__main__":
    main()
