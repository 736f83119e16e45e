"""One adapted batch on ONNX Runtime, in float32 and dynamic INT8, against the torch engine: side by side in one run.

    python benchmarks/edge.py [--size base] [--batch 64] [--passes 2] [--threads 2] [--rounds 5] [--openvino]
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
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime

import fozo
from fozo.engines.base import Floats
from fozo.engines.onnx_engine import OnnxEngine
from fozo.methods.prompt_fozo import PromptFOZO

SIZES = {"tiny": (192, 3), "small": (384, 6), "base": (768, 12)}


def write_models(folder: Path, size: str) -> fozo.Engine:
    """Make the torch engine and export it twice."""
    import torch

    from fozo.engines.export import export
    from fozo.engines.vit import Architecture, ViT

    dim, heads = SIZES[size]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vit = ViT(Architecture((224, 224), (16, 16), 3, dim, 12, heads, 4 * dim, 1000))
    engine = fozo.load_engine(vit)
    export(engine, folder / "float32.onnx")
    export(engine, folder / "int8.onnx", int8="dynamic")
    torch.save(vit.state_dict(), folder / "weights.pt")
    return engine


def images(count: int) -> Floats:
    return np.random.default_rng(0).standard_normal((count, 3, 224, 224)).astype(np.float32)


def adapter(engine: fozo.Engine, passes: int) -> PromptFOZO:
    return PromptFOZO(engine, fozo.SourceStatistics.collect(engine, [images(4)]), passes=passes)


class InsideCalls(OnnxEngine):
    """ONNX Runtime's own way: one call at a time, cut over the threads inside."""

    def __init__(self, path: Path, threads: int) -> None:
        super().__init__(path, threads=1)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def compare(engines: Mapping[str, fozo.Engine], batch: int, passes: int, rounds: int) -> None:
    methods = {name: adapter(engine, passes) for name, engine in engines.items()}
    data = images(batch)
    names = list(methods)
    rival = names[0]
    ratios: dict[str, list[float]] = {name: [] for name in names[1:]}
    for number in range(rounds + 1):  # the first round warms up
        seconds, outputs = {}, {}
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.perf_counter()
            outputs[name] = methods[name](data)
            seconds[name] = time.perf_counter() - start
        for name in ratios:
            difference = float(np.abs(outputs[name] - outputs[rival]).max())
            ratio = seconds[rival] / seconds[name]
            if number:
                ratios[name].append(ratio)
            print(f"round {number}: {name} {ratio:.3f}x, outputs differ by at most {difference:.1e}", flush=True)
    for name, values in ratios.items():
        print(
            f"{name}: {statistics.median(values):.3f}x as fast as {rival} "
            f"(median of {rounds} rounds, {min(values):.3f}-{max(values):.3f})"
        )


def peak(model: str, batch: int, passes: int, threads: int) -> None:
    """Print this process's peak memory after one adapted batch."""
    if model.endswith(".onnx"):
        engine = fozo.load_engine(model, threads=threads)
        assert "torch" not in sys.modules
    else:
        import torch

        torch.set_num_threads(threads)
        engine = fozo.load_engine(model)
    adapter(engine, passes)(images(batch))
    # Not ru_maxrss: a child's starts at what its parent held when it was started.
    status = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in status if line.startswith("VmHWM")))


def memory(folder: Path, batch: int, passes: int, threads: int) -> None:
    kib = {}
    for file in ("weights.pt", "float32.onnx", "int8.onnx"):
        command = [sys.executable, __file__, "--peak", str(folder / file), "--batch", str(batch)]
        command += ["--passes", str(passes), "--threads", str(threads)]
        kib[file] = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for file in ("float32.onnx", "int8.onnx"):
        print(
            f"peak memory with {file}: {kib[file] / kib['weights.pt']:.3f}x that of torch "
            f"({kib[file] / 1024:.0f} and {kib['weights.pt'] / 1024:.0f} MiB, whole process)"
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
        engines = {"torch": write_models(folder, a.size)}
        print(f"ViT-{a.size}, batch {a.batch}, {a.passes} passes, {a.threads} threads")
        if a.workers:
            for kind in ("float32", "int8"):
                file = folder / f"{kind}.onnx"
                ways = {f"threads inside calls, {kind}": InsideCalls(file, a.threads)}
                compare(
                    {**ways, f"calls side by side, {kind}": OnnxEngine(file, threads=a.threads)},
                    a.batch,
                    a.passes,
                    a.rounds,
                )
            return
        memory(folder, a.batch, a.passes, a.threads)
        for key, name in (("onnxruntime float32", "float32.onnx"), ("onnxruntime int8", "int8.onnx")):
            engines[key] = fozo.load_engine(folder / name, threads=a.threads)
        if a.openvino:
            engines["openvino float32"] = fozo.load_engine(
                folder / "float32.onnx", threads=a.threads, runtime="openvino"
            )
        compare(engines, a.batch, a.passes, a.rounds)


if __name__ == "__main__":
    main()
