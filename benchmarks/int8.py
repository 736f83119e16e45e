"""What does INT8 cost in accuracy and gain in speed and memory? Adapted by FOZO, beside float32, in one run.

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
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

import fozo
from benchmarks import edge
from fozo.data.corruptions import KINDS
from fozo.data.scenarios import Continual
from fozo.data.sets import CLEAN, ImageSet, open_images
from fozo.data.sets.base import FolderStore
from fozo.data.streams import Stream
from fozo.engines.base import Floats
from fozo.engines.export import export

FILES = {"float32": "float32.onnx", "INT8 dynamic": "int8.onnx", "INT8 static": "static.onnx"}
CALIBRATION = 128


def export_all(engine: fozo.Engine, folder: Path, calibration: Path) -> None:
    export(engine, folder / FILES["float32"])
    export(engine, folder / FILES["INT8 dynamic"], int8="dynamic")
    export(engine, folder / FILES["INT8 static"], int8="static", calibration=calibration)


# --- accuracy -----------------------------------------------------------------------------------------------------


def link_images(images: ImageSet, folder: Path) -> Path:
    """Make a folder of some of a set's images, for the exporter."""
    assert isinstance(images.store, FolderStore)
    for sample in images.samples:
        file = folder / sample.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to(images.store.locate(sample.path, CLEAN).resolve())
    return folder


def adapters(engine: fozo.Engine, clean: ImageSet) -> dict[str, fozo.Method]:
    """NoAdapt, FOZO as the authors' program has it, and FOZO's default."""
    stream = Stream(clean, engine.spec, Continual(kinds=(CLEAN.kind,)))
    source = fozo.SourceStatistics.collect(engine, (batch.images for batch in stream.batches()))
    return {
        "NoAdapt": fozo.NoAdapt(engine),
        "FOZO (official)": fozo.FOZO(engine, source, preset="official", passes=2),
        "FOZO": fozo.FOZO(engine, source),
    }


def accuracy(a: argparse.Namespace) -> None:
    kinds = tuple(a.kinds.split(",")) if a.kinds else KINDS
    both = open_images(a.folder).take(CALIBRATION + a.images)
    paths = [sample.path for sample in both.samples]
    order = np.random.default_rng(0).permutation(len(paths))
    clean = both.select([paths[i] for i in order[:CALIBRATION]])
    test = both.select([paths[i] for i in order[CALIBRATION:]])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        export_all(fozo.load_engine(a.weights), folder, link_images(clean, folder / "clean"))
        engines = {key: fozo.load_engine(folder / file, threads=a.threads) for key, file in FILES.items()}
        methods = {(key, row): m for key, engine in engines.items() for row, m in adapters(engine, clean).items()}
    stream = Stream(test, engines["float32"].spec, Continual(kinds=kinds, severity=a.severity))
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
        print(f"{row:16} {key:13} {values.mean():5.1f}   {difference.mean():+5.2f} ± {error:.2f}")


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


def clocked(call: Callable[[Floats], Floats], batch: Floats) -> tuple[float, float]:
    """Seconds on the clock and of processor time."""
    clock, processor = time.perf_counter(), time.process_time()
    call(batch)
    return time.perf_counter() - clock, time.process_time() - processor


def speed(a: argparse.Namespace) -> None:
    import torch

    from benchmarks.engine import PublishedLoop
    from fozo.engines.torch_engine import TorchEngine

    torch.set_num_threads(a.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = edge.write_models(folder, a.size)
        assert isinstance(engine, TorchEngine)
        noise = folder / "noise" / "class"
        noise.mkdir(parents=True)
        for number in range(8):  # ranges of random weights mean nothing, but there must be some
            pixels = np.random.default_rng(number).integers(0, 256, (224, 224, 3), np.uint8)
            Image.fromarray(pixels).save(noise / f"{number}.png")
        known = fozo.load_engine(engine.vit, mean=0.5, std=0.5)
        export(known, folder / FILES["INT8 static"], int8="static", calibration=folder / "noise")
        memory(folder, a)
        source = fozo.SourceStatistics.collect(engine, [edge.images(4)])
        loop = PublishedLoop(fozo.FOZO(engine, source, preset="official", passes=a.passes), engine)
        calls: dict[str, Callable[[Floats], Floats]] = {"published loop": loop}
        calls["torch engine"] = fozo.FOZO(engine, source, preset="official", passes=a.passes)
        for key, file in FILES.items():
            one = fozo.load_engine(folder / file, threads=a.threads)
            own = fozo.SourceStatistics.collect(one, [edge.images(4)])
            calls[key] = fozo.FOZO(one, own, preset="official", passes=a.passes)
    names, data = list(calls), edge.images(a.batch)
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in names[1:]}
    for number in range(a.rounds + 1):  # the first round warms up
        turn = names[number % len(names) :] + names[: number % len(names)]
        spent = {name: clocked(calls[name], data) for name in turn}
        for name in ratios if number else ():
            pairs = zip(spent["published loop"], spent[name], strict=True)
            clock, processor = (loop_time / own_time for loop_time, own_time in pairs)
            ratios[name].append((clock, processor))
            print(f"round {number}: {name} {clock:.2f}x by the clock, {processor:.2f}x", file=sys.stderr, flush=True)
    print(f"ViT-{a.size}, batch {a.batch}, {a.passes} passes, {a.threads} threads, medians of {a.rounds} rounds")
    for name, pairs_of in ratios.items():
        clocks, processors = np.array(pairs_of).T
        print(
            f"{name}: {np.median(clocks):.2f}x as fast as the published loop by the clock ({clocks.min():.2f}-"
            f"{clocks.max():.2f}), {np.median(processors):.2f}x in processor time ({processors.min():.2f}-"
            f"{processors.max():.2f})"
        )


def memory(folder: Path, a: argparse.Namespace) -> None:
    """Peak memory of one adapted batch, each engine in a process of its own."""
    kib = {}
    for key, file in {"torch": "weights.pt", **FILES}.items():
        command = [sys.executable, edge.__file__, "--peak", str(folder / file), "--batch", str(a.batch)]
        command += ["--passes", str(a.passes), "--threads", str(a.threads)]
        kib[key] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for key in FILES:
        print(f"peak memory, {key}: {kib[key] / 1024:.0f} MiB, {kib[key] / kib['torch']:.2f}x torch's")


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
    second.add_argument("--size", choices=edge.SIZES, default="base")
    second.add_argument("--batch", type=int, default=16)
    second.add_argument("--passes", type=int, default=2)
    second.add_argument("--rounds", type=int, default=5)
    for command in (first, second):
        command.add_argument("--threads", type=int, default=2)
    a = parser.parse_args()
    a.act(a)


if __name__ == "__main__":
    main()
