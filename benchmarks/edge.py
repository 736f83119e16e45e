"""One adapted batch on ONNX Runtime, in float32 and dynamic INT8, against the torch engine: side by side in one run.

    python -m benchmarks.edge [--size base] [--batch 64] [--passes 2] [--threads 2] [--rounds 5] [--openvino]
                              [--workers]

All do the same FOZO steps from the same state on the same images (a ViT of the given size with random weights: speed
does not depend on them). Rounds go through the engines in turn, starting with another one each time, so that a noisy
machine is noisy for all; the result is the median over the rounds of torch's time divided by the engine's. Outputs are
compared too. Peak memory (Linux) is that of a process of its own for each engine, without torch where not needed.

With ``--workers`` the rival of each ONNX file is the same file with its threads inside every call, as ONNX Runtime has
it by itself, instead of one-thread calls side by side, as the engine has it.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

import fozo
from benchmarks.common import SIZES, in_a_process, in_turn, mebibytes, random_engine, summary, timed
from fozo.engines.onnx.ort import OnnxEngine
from fozo.testing import random_images

if TYPE_CHECKING:
    from fozo.engines.torch_engine import TorchEngine

WEIGHTS, FLOAT32, INT8 = "weights.pt", "float32.onnx", "int8.onnx"


def write_models(folder: Path, size: str) -> TorchEngine:
    """Make the torch engine, and write its weights and two exports of it."""
    import torch

    engine = random_engine(size)
    fozo.export(engine, folder / FLOAT32)
    fozo.export(engine, folder / INT8, int8="dynamic")
    torch.save(engine.vit.state_dict(), folder / WEIGHTS)
    return engine


def adapted(engine: fozo.Engine, passes: int) -> fozo.FOZO:
    source = fozo.calibrate(engine, [random_images(engine.spec, 4)])
    return fozo.FOZO(engine, source, passes=passes)


class InsideCalls(OnnxEngine):
    """ONNX Runtime's own way: one call at a time, cut over the threads inside."""

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads=1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(engines: Mapping[str, fozo.Engine], batch: int, passes: int, rounds: int) -> None:
    methods = {name: adapted(engine, passes) for name, engine in engines.items()}
    rival = next(iter(engines))
    data = random_images(engines[rival].spec, batch)
    ratios: dict[str, list[float]] = {name: [] for name in methods if name != rival}
    for number, turn in in_turn(list(methods), rounds):
        found = {name: timed(methods[name], data) for name in turn}
        (plain, _), expected = found[rival]
        for name, values in ratios.items():
            (seconds, _), output = found[name]
            difference = float(np.abs(output - expected).max())
            ratio = plain / seconds
            print(f"round {number}: {name} {ratio:.3f}x, outputs differ by at most {difference:.1e}", flush=True)
            if number:
                values.append(ratio)
    for name, values in ratios.items():
        print(f"{name}: {summary(values)} as fast as {rival}, median and range of {rounds} rounds")


def peak(model: str, batch: int, passes: int, threads: int) -> None:
    """Print this process's peak memory after one adapted batch."""
    if model.endswith(".onnx"):
        engine = fozo.load_engine(model, threads=threads)
        assert "torch" not in sys.modules
    else:
        import torch

        torch.set_num_threads(threads)
        engine = fozo.load_engine(model)
    adapted(engine, passes)(random_images(engine.spec, batch))
    print(mebibytes())


def peaks(folder: Path, files: Mapping[str, str], batch: int, passes: int, threads: int) -> None:
    """Print the peak memory of one adapted batch for each of ``files`` by name, and how it compares with torch's."""
    options = ("--batch", batch, "--passes", passes, "--threads", threads)
    found = {
        name: float(in_a_process("edge", "--peak", folder / file, *options))
        for name, file in {"torch": WEIGHTS, **files}.items()
    }
    for name in files:
        print(
            f"peak memory, {name}: {found[name] / found['torch']:.2f}x that of torch "
            f"({found[name]:.0f} and {found['torch']:.0f} MiB, whole process)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="base")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--openvino", action="store_true", help="run the float32 file on OpenVINO as well")
    parser.add_argument("--workers", action="store_true", help="compare ways to use the cores instead of engines")
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peak:
        peak(a.peak, a.batch, a.passes, a.threads)
        return
    import torch

    torch.set_num_threads(a.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engines: dict[str, fozo.Engine] = {"torch": write_models(folder, a.size)}
        print(f"ViT-{a.size}, batch {a.batch}, {a.passes} passes, {a.threads} threads")
        if a.workers:
            for kind, file in (("float32", FLOAT32), ("int8", INT8)):
                ways: dict[str, fozo.Engine] = {
                    f"threads inside calls, {kind}": InsideCalls(folder / file, a.threads),
                    f"calls side by side, {kind}": OnnxEngine(folder / file, threads=a.threads),
                }
                compare(ways, a.batch, a.passes, a.rounds)
            return
        files = {"onnxruntime float32": FLOAT32, "onnxruntime int8": INT8}
        peaks(folder, files, a.batch, a.passes, a.threads)
        for key, file in files.items():
            engines[key] = fozo.load_engine(folder / file, threads=a.threads)
        if a.openvino:
            engines["openvino float32"] = fozo.load_engine(folder / FLOAT32, threads=a.threads, runtime="openvino")
        compare(engines, a.batch, a.passes, a.rounds)


if __name__ == "__main__":
    main()
