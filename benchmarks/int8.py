"""What does INT8 cost in accuracy and gain in speed and memory? Adapted, beside float32, in one run.

    python -m benchmarks.int8 accuracy WEIGHTS IMAGES [--images 64] [--severity 5] [--kinds fog,...]
    python -m benchmarks.int8 layers WEIGHTS
    python -m benchmarks.int8 speed [--size base] [--batch 16] [--passes 2] [--threads 2] [--rounds 5]

``accuracy`` exports real weights in float32, dynamic and static INT8 and streams the same corrupted images through all
three, batch by batch. Clean images for source statistics and for static ranges are not in the stream.

``layers`` shows which layers would suffer most from 8-bit inputs, and so stay in float32 (``fozo.quant.fragile``).

``speed`` takes a ViT of the given size with random weights, on which speed does not depend. The yardstick is FOZO's
published loop in float32 torch (see benchmarks/engine.py); every round runs it and all engines in turn, in another
order each time, and the result is the median over rounds of its time divided by theirs. Processor time is given too:
on a machine with other work it is steadier than the clock. Peak memory is that of a process of its own for each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import fozo
from benchmarks import edge
from benchmarks.common import SIZES, clean_and_test, clean_batches, in_turn, summary, timed
from fozo.data.corruptions import KINDS
from fozo.data.scenarios import Continual
from fozo.data.sets import CLEAN, ImageSet
from fozo.data.sets.folder import FolderStore
from fozo.methods.registry import AnyMethod
from fozo.testing import random_images
from fozo.types import Floats

FILES = {"float32": edge.FLOAT32, "INT8 dynamic": edge.INT8, "INT8 static": "static.onnx"}
CALIBRATION = 128


# --- accuracy -----------------------------------------------------------------------------------------------------


def link_images(images: ImageSet, folder: Path) -> Path:
    """Make a folder of some of a set's images, for the exporter."""
    assert isinstance(images.store, FolderStore)
    for sample in images.samples:
        file = folder / sample.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(images.store.locate(sample.path, CLEAN).resolve())
    return folder


def adapters(engine: fozo.Engine, clean: ImageSet) -> dict[str, AnyMethod]:
    """NoAdapt, FOZO as the authors' program has it, and Align."""
    source = fozo.calibrate(engine, clean_batches(clean, engine.spec))
    return {
        "NoAdapt": fozo.NoAdapt(engine),
        "FOZO": fozo.FOZO(engine, source),
        "Align": fozo.Align(engine, source),
    }


def accuracy(a: argparse.Namespace) -> None:
    kinds = tuple(a.kinds.split(",")) if a.kinds else KINDS
    clean, test = clean_and_test(a.folder, CALIBRATION, a.images)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = fozo.load_engine(a.weights)
        fozo.export(weights, folder / FILES["float32"])
        fozo.export(weights, folder / FILES["INT8 dynamic"], int8="dynamic")
        calibration = link_images(clean, folder / "clean")
        fozo.export(weights, folder / FILES["INT8 static"], int8="static", calibration=calibration)
        engines = {key: fozo.load_engine(folder / file, threads=a.threads) for key, file in FILES.items()}
        methods = {(key, row): m for key, engine in engines.items() for row, m in adapters(engine, clean).items()}
    stream = fozo.Stream(test, engines["float32"].spec, Continual(kinds=kinds, severity=a.severity))
    right: dict[tuple[str, str], list[bool]] = {key: [] for key in methods}
    for batch in stream.batches():
        for made, method in methods.items():
            right[made] += (method(batch.images).argmax(axis=1) == batch.labels).tolist()
        print(f"{batch.domain}: {batch.index + 1} of {len(stream)} batches", file=sys.stderr, flush=True)
    hits = {key: 100 * np.array(values, dtype=float) for key, values in right.items()}
    print(
        f"{Path(a.weights).stem}, {len(kinds)} corruptions at severity {a.severity}, {a.images} images each, stream "
        f"{stream.fingerprint}; top-1 (%), difference from float32 with its standard error over images"
    )
    for (key, row), values in hits.items():
        difference = values - hits["float32", row]
        error = difference.std() / np.sqrt(len(difference))
        print(f"{row:8} {key:13} {values.mean():5.1f}   {difference.mean():+5.2f} ± {error:.2f}")


def layers(a: argparse.Namespace) -> None:
    """Print the eight layers that 8-bit inputs would hurt most."""
    from fozo.engines.torch_engine import TorchEngine
    from fozo.quant.fragile import MOST, strains

    engine = fozo.load_engine(a.weights)
    assert isinstance(engine, TorchEngine)
    found = sorted(strains(engine.vit, engine.spec).items(), key=lambda item: -item[1].error)
    print(f"{'layer':24} error of the median token, largest input, largest of another feature")
    for name, strain in found[:8]:
        kept = "  stays in float32" if strain.error > MOST else ""
        print(f"{name:24} {100 * strain.error:5.1f} % {strain.largest:8.1f} {strain.second:8.1f}{kept}")


# --- speed and memory ---------------------------------------------------------------------------------------------


def speed(a: argparse.Namespace) -> None:
    import torch

    from benchmarks.engine import PublishedLoop

    torch.set_num_threads(a.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = edge.write_models(folder, a.size)
        noise = folder / "noise" / "class"
        noise.mkdir(parents=True)
        for number in range(8):  # ranges of random weights mean nothing, but there must be some
            pixels = np.random.default_rng(number).integers(0, 256, (224, 224, 3), np.uint8)
            Image.fromarray(pixels).save(noise / f"{number}.png")
        fozo.export(engine, folder / FILES["INT8 static"], int8="static", calibration=folder / "noise")
        edge.peaks(folder, FILES, a.batch, a.passes, a.threads)
        torch_method = edge.adapted(engine, a.passes)
        calls: dict[str, Callable[[Floats], Floats]] = {
            "published loop": PublishedLoop(torch_method.clone(), engine),
            "torch engine": torch_method,
        }
        for key, file in FILES.items():
            calls[key] = edge.adapted(fozo.load_engine(folder / file, threads=a.threads), a.passes)
    data = random_images(engine.spec, a.batch)
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in calls if name != "published loop"}
    for number, turn in in_turn(list(calls), a.rounds):
        spent = {name: timed(calls[name], data)[0] for name in turn}
        for name in ratios if number else ():
            pairs = zip(spent["published loop"], spent[name], strict=True)
            clock, processor = (loop_time / own_time for loop_time, own_time in pairs)
            ratios[name].append((clock, processor))
            print(f"round {number}: {name} {clock:.2f}x by the clock, {processor:.2f}x", file=sys.stderr, flush=True)
    print(f"ViT-{a.size}, batch {a.batch}, {a.passes} passes, {a.threads} threads, medians of {a.rounds} rounds")
    for name, found in ratios.items():
        clocks, processors = zip(*found, strict=True)
        print(
            f"{name}: {summary(clocks, 2)} as fast as the published loop by the clock, "
            f"{summary(processors, 2)} in processor time"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("accuracy")
    first.add_argument("weights", type=Path)
    first.add_argument("folder", type=Path, metavar="IMAGES")
    first.add_argument("--images", type=int, default=64, help="of each corruption")
    first.add_argument("--severity", type=int, default=5)
    first.add_argument("--kinds", help="all fifteen by default")
    first.set_defaults(act=accuracy)
    third = commands.add_parser("layers")
    third.add_argument("weights", type=Path)
    third.set_defaults(act=layers)
    second = commands.add_parser("speed")
    second.set_defaults(act=speed)
    second.add_argument("--size", choices=SIZES, default="base")
    second.add_argument("--batch", type=int, default=16)
    second.add_argument("--passes", type=int, default=2)
    second.add_argument("--rounds", type=int, default=5)
    for command in (first, second):
        command.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    a.act(a)


if __name__ == "__main__":
    main()
