"""What many streams cost: a task, the memory of a worker, and the throughput of 1 and 2 workers.

    python -m benchmarks.archive --model WEIGHTS --statistics STATISTICS --images DIR [--ray]

DIR is one folder of images, which every stream reads. Run it on an idle machine: it measures clock time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.common import refusals
from fozo.bench.store import peak_memory
from fozo.cli.streams import Camera, Setup, Stream, adapt_camera, find_streams
from fozo.cluster import run
from fozo.engines.load import LoadOptions

TASKS = 200


def nothing(_: int) -> float:
    return time.perf_counter()


def adapt(stream: Stream, setup: Setup) -> tuple[int, int]:
    camera: Camera = adapt_camera(stream, setup)
    return camera.images, peak_memory("cpu")


def task_milliseconds(workers: int | None, ray: bool) -> tuple[float, float]:
    """The first task, and each of the others."""
    began = time.perf_counter()
    tasks = run(nothing, range(TASKS), workers=workers, ray=ray)
    next(tasks)
    first = time.perf_counter()
    for _ in tasks:
        pass
    return 1000 * (first - began), 1000 * (time.perf_counter() - first) / (TASKS - 1)


def throughput(streams: list[Stream], setup: Setup, workers: int | None, ray: bool) -> tuple[float, float]:
    """Images a second once every worker has its model, and MiB of the largest worker."""
    results = run(partial(adapt, setup=setup), streams, workers=workers, ray=ray)
    images = 0
    memory = 0
    began = 0.0
    for number, (_, result) in enumerate(results):
        if isinstance(result, Exception):
            raise result
        if number == 1:  # the first two loaded the model
            began = time.perf_counter()
        elif number > 1:
            images += result[0]
        memory = max(memory, result[1])
    return images / (time.perf_counter() - began), memory / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("model", "statistics", "images"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--streams", type=int, default=18)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--ray", action="store_true")
    options = parser.parse_args()
    ways = [("one process", None, False), ("1 worker", 1, False), ("2 workers", 2, False)]
    if options.ray:
        ways.append(("Ray", None, True))
    load = LoadOptions(threads=1)
    setup = Setup(options.model, load, None, {}, options.batch_size, statistics=Path(options.statistics))
    print("| | first task, ms | other tasks, ms | images a second | of one process | memory of a worker, MiB |")
    print("|---|---:|---:|---:|---:|---:|")
    base = 0.0
    for name, workers, ray in ways:
        first, others = task_milliseconds(workers, ray)
        with tempfile.TemporaryDirectory() as folder, refusals("archive"):
            root = Path(folder)
            (root / "archive").mkdir()
            for number in range(options.streams):
                (root / "archive" / f"cam{number}").symlink_to(Path(options.images).resolve())
            streams = find_streams([root / "archive"], True, root / "out", ".csv")
            speed, memory = throughput(streams, setup, workers, ray)
        base = base or speed
        print(f"| {name} | {first:.0f} | {others:.2f} | {speed:.1f} | {speed / base:.2f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    main()
