"""What the recommended method costs over the plain model on the same engine: time, memory, and the size of its state.

    python -m benchmarks.overhead [--models base tiny bundled] [--engines torch float32 int8] [--batches 1 8 64]
                                  [--threads 1 2] [--clean] [--seconds 20] [--device cuda] [--no-memory]

Processor time (of all threads of the process) and clock of ``fozo.Align`` over ``fozo.NoAdapt``, which see the same
batch in turn, another one in every round; a figure is the median of the rounds' ratios. Processor time is what a bill
counts and what a busy machine falsifies least. Nothing about the environment is set: BLAS has its default threads.

``torch`` is PyTorch in float32; ``float32`` and ``int8`` (dynamic) are files of ``fozo export`` on ONNX Runtime. Models
have random weights, on which speed does not depend: ViT-B and ViT-Tiny of 224 px, and the shapes of the bundled model,
whose own files are used on ONNX Runtime. The images are faded, so that the equaliser and the moves are at work, and
their domain is known: what a stream costs in the long run while it drifts. With ``--clean`` they are as calibrated.

Peak memory is that of processes of their own, each after two batches of the largest size. Images, source statistics
and the state are read from files, as in production.
"""

import argparse
import platform
import tempfile
import time
from pathlib import Path

import numpy as np

import fozo
from benchmarks.common import in_a_process, mebibytes, random_engine, timed
from fozo.data import sample
from fozo.io.system import usable_cpus
from fozo.testing import random_images
from fozo.types import Engine, Floats

MODELS = ("base", "tiny", "bundled")
ENGINES = ("torch", "float32", "int8")
FADED = np.float32(0.3)
LEAST = 4
MOST = 200
"""Rounds of a cell."""
STREAM = 128
"""Different images, which come again and again."""
FIRST = 32
GROUP = 8
"""Images that Align learns the domain from, and how many of them come together."""


def make_engine(folder: Path, model: str, engine: str, threads: int, device: str) -> Engine:
    """Open a model on an engine; exports are written to ``folder`` once."""
    if engine != "torch":
        if model == "bundled":
            return fozo.load_engine(sample.MODELS[{"float32": "float32", "int8": "INT8"}[engine]], threads=threads)
        file = folder / f"{model}-{engine}.onnx"
        if not file.exists():
            fozo.export(_torch(model, "cpu"), file, int8="dynamic" if engine == "int8" else None)
        return fozo.load_engine(file, threads=threads)
    import torch

    torch.set_num_threads(threads)
    return _torch(model, device)


def _torch(model: str, device: str) -> Engine:
    import torch

    from fozo.models.vit import Architecture, ViT

    if model != "bundled":
        return random_engine(model, device=device)
    spec = fozo.load_engine(sample.MODELS["float32"], threads=1).spec
    shape = Architecture(
        spec.image_size, spec.patch_size, spec.channels, spec.dim, spec.depth, max(1, spec.dim // 32), 4 * spec.dim,
        spec.classes,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vit = ViT(shape)
    return fozo.load_engine(vit, mean=0.5, std=0.5, device=device)


def pictures(engine: Engine, count: int, seed: int = 0) -> Floats:
    """Random images in the range of pixels, with detail at all scales."""
    noise = random_images(engine.spec, count, seed)
    smooth = noise.cumsum(axis=2).cumsum(axis=3)
    smooth /= np.abs(smooth).max(axis=(1, 2, 3), keepdims=True)
    return np.clip(0.15 * noise + 0.5 * smooth, -1, 1)


def adapted(engine: Engine, stream: Floats) -> fozo.Align:
    """Make Align that knows the stream's domain."""
    method = fozo.Align(engine, fozo.calibrate(engine, [pictures(engine, 16, seed=1)]))
    for start in range(0, FIRST, GROUP):
        method(stream[start : start + GROUP])
    return method


def measure(plain: fozo.NoAdapt, align: fozo.Align, stream: Floats, size: int, seconds: float) -> tuple[float, ...]:
    """Ratios of processor time and of the clock, extra milliseconds of processor time an image, and rounds."""
    clocks: list[float] = []
    processors: list[float] = []
    extra: list[float] = []
    start = time.perf_counter()
    for number in range(-1, MOST):
        if number >= LEAST and time.perf_counter() - start > seconds:
            break
        first = number * size % len(stream)
        batch = stream[first : first + size]
        turn = (plain, align) if number % 2 else (align, plain)
        spent = {type(method): timed(method, batch)[0] for method in turn}
        if number < 0:
            continue  # warms up
        clock, processor = spent[fozo.NoAdapt]
        own_clock, own_processor = spent[fozo.Align]
        clocks.append(own_clock / clock)
        processors.append(own_processor / processor)
        extra.append(1000 * (own_processor - processor) / len(batch))
    return float(np.median(processors)), float(np.median(clocks)), float(np.median(extra)), len(clocks)


def peak(folder: Path, model: str, engine: str, method: str, threads: int) -> None:
    """Print this process's peak memory after two batches of what :func:`table` has left in the folder."""
    images = np.load(folder / f"{model}.npy")
    made = make_engine(folder, model, engine, threads, "cpu")
    if method == "plain":
        call: fozo.NoAdapt | fozo.Align = fozo.NoAdapt(made)
    else:
        call = fozo.Align(made, fozo.Statistics.load(folder / f"{model}-{engine}.statistics.safetensors"))
        call.restore(folder / f"{model}-{engine}.state")
    for _ in range(2):
        call(images)
    print(mebibytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=ENGINES)
    parser.add_argument("--batches", nargs="+", type=int, default=(1, 8, 64))
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--clean", action="store_true", help="a stream without drift")
    parser.add_argument("--seconds", type=float, default=20, help="of each figure, about")
    parser.add_argument("--device", default="cpu", help="of torch")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory and state")
    parser.add_argument("--peak", nargs=4, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.peak:
        folder, model, engine, method = a.peak
        peak(Path(folder), model, engine, method, a.threads[0])
        return
    drift = "clean" if a.clean else "faded"
    print(f"Align over NoAdapt on {usable_cpus()} processors ({platform.machine()}), {drift} images")
    with tempfile.TemporaryDirectory() as name:
        for model in a.models:
            table(Path(name), model, a)


def table(folder: Path, model: str, a: argparse.Namespace) -> None:
    print(f"\n| {model} | threads | batch | processor time | clock | ms an image | rounds |")
    print("|---|---:|---:|---:|---:|---:|---:|", flush=True)
    for kind in a.engines:
        for threads in a.threads:
            engine = make_engine(folder, model, kind, threads, a.device)
            stream = (1 if a.clean else FADED) * pictures(engine, STREAM)
            align, plain = adapted(engine, stream), fozo.NoAdapt(engine)
            for size in a.batches:
                processor, clock, extra, rounds = measure(plain, align, stream, size, a.seconds)
                print(
                    f"| {kind} | {threads} | {size} | {processor:.3f} | {clock:.3f} | {extra:+.3f} | {rounds} |",
                    flush=True,
                )
        align.statistics.save(folder / f"{model}-{kind}.statistics.safetensors")
        align.save(folder / f"{model}-{kind}.state")
    print(flush=True)
    if a.no_memory:
        return
    np.save(folder / f"{model}.npy", stream[: max(a.batches)])
    for kind in a.engines:
        plain_peak, own = (
            float(in_a_process("overhead", "--peak", folder, model, kind, method, "--threads", a.threads[0]))
            for method in ("plain", "align")
        )
        size = (folder / f"{model}-{kind}.state").stat().st_size / 1e6
        print(
            f"{kind}, batches of {max(a.batches)}: peak memory {own / plain_peak:.3f}x ({own:.0f} and "
            f"{plain_peak:.0f} MiB); the state has {size:.3g} MB",
            flush=True,
        )


if __name__ == "__main__":
    main()
