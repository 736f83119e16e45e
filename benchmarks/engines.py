"""One adapted batch on every engine, side by side in one run: speed and peak memory.

    python -m benchmarks.engines [--size base] [--batch 64] [--passes 2] [--threads 2] [--rounds 5]

``torch`` is fozo's PyTorch engine; the others run files of ``fozo export`` on ONNX Runtime. All do
the same FOZO steps from the same state on the same images. The ViT has random weights, on which speed does not depend.

Rounds run the engines in turn, another one first each time. A result is the median over the rounds of the time of
``torch`` divided by the engine's, by the clock and in processor time, which is steadier on a machine with other work.
Peak memory (Linux) is that of a separate process for each engine, without torch where it is not needed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

import fozo
from benchmarks.common import SIZES, in_a_process, in_turn, mebibytes, random_engine, summary, timed
from fozo.testing import random_images
from fozo.types import Floats

if TYPE_CHECKING:
    from fozo.engines.torch_engine import TorchEngine

FILES = {"torch": "weights.pt", "float32": "float32.onnx", "INT8 dynamic": "int8.onnx", "INT8 static": "static.onnx"}
PLAIN = "plain"


def write_models(folder: Path, size: str) -> TorchEngine:
    """Make the torch engine, and write its weights and three exports of it."""
    import torch

    engine = random_engine(size)
    noise = folder / "noise" / "class"
    noise.mkdir(parents=True)
    for number in range(8):  # ranges of random weights mean nothing, but there must be some
        pixels = np.random.default_rng(number).integers(0, 256, (224, 224, 3), np.uint8)
        Image.fromarray(pixels).save(noise / f"{number}.png")
    torch.save(engine.vit.state_dict(), folder / FILES["torch"])
    fozo.export(engine, folder / FILES["float32"])
    fozo.export(engine, folder / FILES["INT8 dynamic"], int8="dynamic")
    fozo.export(engine, folder / FILES["INT8 static"], int8="static", calibration=folder / "noise")
    return engine


def adapted(engine: fozo.Engine, passes: int) -> fozo.FOZO:
    source = fozo.calibrate(engine, [random_images(engine.spec, 4)])
    return fozo.FOZO(engine, source, passes=passes)


def compare(calls: Mapping[str, fozo.FOZO], data: Floats, rounds: int) -> None:
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in calls if name != "torch"}
    for number, turn in in_turn(list(calls), rounds):
        found = {name: timed(calls[name], data) for name in turn}
        spent, expected = found["torch"]
        for name, values in ratios.items():
            own, output = found[name]
            clock, processor = (theirs / ours for theirs, ours in zip(spent, own, strict=True))
            difference = float(np.abs(output - expected).max())
            line = (
                f"round {number}: {name} {clock:.2f}x by the clock, {processor:.2f}x; outputs within {difference:.1e}"
            )
            print(line, file=sys.stderr, flush=True)
            if number:
                values.append((clock, processor))
    for name, values in ratios.items():
        clocks, processors = zip(*values, strict=True)
        print(f"{name}: {summary(clocks, 2)} as fast as torch by the clock, {summary(processors, 2)} in processor time")


def peak(name: str, model: str, batch: int, passes: int, threads: int) -> None:
    """Print this process's peak memory after one adapted batch, or one of the ``plain`` torch model."""
    if model.endswith(".onnx"):
        engine = fozo.load_engine(model, threads=threads)
        assert "torch" not in sys.modules
    else:
        import torch

        torch.set_num_threads(threads)
        engine = fozo.load_engine(model)
    method = fozo.NoAdapt(engine) if name == PLAIN else adapted(engine, passes)
    method(random_images(engine.spec, batch))
    print(mebibytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peak:
        name, model = a.peak
        peak(name, model, a.batch, a.passes, a.threads)
        return
    import torch

    torch.set_num_threads(a.threads)
    print(f"ViT-{a.size}, batch {a.batch}, {a.passes} passes, {a.threads} threads, medians of {a.rounds} rounds")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        engine = write_models(folder, a.size)
        options = ("--batch", a.batch, "--passes", a.passes, "--threads", a.threads)
        for name, file in {PLAIN: FILES["torch"], **FILES}.items():
            found = float(in_a_process("engines", "--peak", name, folder / file, *options))
            print(f"peak memory of the process, {name}: {found:.0f} MiB", flush=True)
        calls = {"torch": adapted(engine, a.passes)}
        for name, file in list(FILES.items())[1:]:
            calls[name] = adapted(fozo.load_engine(folder / file, threads=a.threads), a.passes)
        compare(calls, random_images(engine.spec, a.batch), a.rounds)


if __name__ == "__main__":
    main()
