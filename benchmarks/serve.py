"""``fozo serve`` under load: throughput against a loop, latency, memory per camera (benchmarks.soak: over an hour).

    python -m benchmarks.serve [--weights WEIGHTS] [--only throughput latency memory] [--rounds 5] [--seconds 4]

A server in a process of its own, on the loopback, and cameras in another (benchmarks.serve_client): one connection a
camera, one frame of uint8 a request, as a binary tensor. The bundled model; or, with ``--weights``, that ViT exported
to ONNX in float32 and calibrated on enlarged pictures of the bundled set. Frames are foggy, so that adaptation is at
work. The engine has one thread, in the server and in the loops, and nothing about the environment is set.

* throughput: cameras send as fast as they are answered. In turn with it, in this process, the same frames one by one
  through the plain engine (``fozo.NoAdapt``) and through an adapter, and eight at a time through the plain engine.
  Figures are medians over the rounds; ratios are of the loop's processor time, or clock, to that of the row, round by
  round: 1 is as fast as the loop. The client's own processor time is not counted, though it shares the machine.
* latency: frames at a fixed rate, from the time at which each is due.
* memory: resident memory of a server with 64 cameras less that with 16, by 48; and less that with one, by 63, which
  counts what each of its threads needs for itself too. All are opened from states that
  one adapter was saved to after 32 images.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fozo
from benchmarks.common import in_turn, markdown
from fozo.data import sample
from fozo.io.system import usable_cpus
from fozo.serve.cameras import Camera
from fozo.serve.store import StateFolder
from fozo.state import leaves

Frames = npt.NDArray[np.uint8]
CAMERAS = (1, 8, 64)
HELD = (1, 16, 64)
"""Cameras in memory."""
NAME = "model"
FOG = 0.6


@dataclass(frozen=True)
class Subject:
    """A model, where its files are, and frames for it."""

    title: str
    model: Path
    statistics: Path
    frames: Frames
    rate: float
    """Frames a second, at which latency is measured."""

    def engine(self) -> fozo.Engine:
        return fozo.load_engine(self.model, threads=1)

    def adapter(self) -> fozo.Align:
        return fozo.Align(self.engine(), fozo.Statistics.load(self.statistics))


def pictures(count: int, size: int = 28, channels: int = 1, start: int = 0) -> Frames:
    with np.load(sample.IMAGES) as data:
        small = data["images"][start : start + count]
    large = small.repeat(size // 28, axis=1).repeat(size // 28, axis=2)
    return np.repeat(large[..., None], channels, axis=3)


def foggy(frames: Frames) -> Frames:
    return (frames * (1 - FOG) + 200 * FOG).astype(np.uint8)


def bundled() -> Subject:
    model = sample.MODELS["float32"]
    return Subject("bundled", model, model.with_suffix(".statistics.safetensors"), foggy(pictures(256)), 20.0)


def exported(weights: Path, folder: Path) -> Subject:
    model = folder / "vit.onnx"
    statistics = folder / "vit.safetensors"
    subprocess.run([sys.executable, "-m", "fozo", "export", str(weights), "-o", str(model)], check=True)
    engine = fozo.load_engine(model)
    fozo.calibrate(engine, [pictures(16, 224, 3, 16 * i) for i in range(8)]).save(statistics)
    return Subject(weights.name.partition(".")[0], model, statistics, foggy(pictures(32, 224, 3, 500)), 4.0)


class Server:
    """``fozo serve`` in a process of its own."""

    def __init__(self, subject: Subject, *options: str, log: Path | None = None) -> None:
        command = [sys.executable, "-m", "fozo", "serve", str(subject.model), "--statistics", str(subject.statistics)]
        command += ["--name", NAME, "--port", "0", "--threads", "1", *options]
        with nullcontext() if log is None else log.open("wb") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        found = re.search(r"http://[^:]+:(\d+)", self.process.stdout.readline())
        assert found, "the server did not start"
        self.port = int(found[1])

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        self.process.wait(60)

    def processor(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """Its memory, in MB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        assert found
        return int(found[1]) * 1024 / 1e6


@contextmanager
def frames_file(subject: Subject) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "frames.npy"
        np.save(path, subject.frames)
        yield path


def measured(server: Server, frames: Path, cameras: int, *options: object) -> dict[str, float]:
    """Let cameras send for a while: what the client says, and processor seconds of the server."""
    command = [sys.executable, "-m", "benchmarks.serve_client", str(server.port), NAME, str(frames)]
    command += ["--cameras", str(cameras), "--warm", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begin\n"
        before = server.processor()
        found: dict[str, float] = json.loads(process.stdout.readline())
        return {**found, "processor": server.processor() - before}


def loop(call: Callable[[Any], object], frames: Frames, seconds: float, batch: int = 1) -> tuple[float, float]:
    """Seconds an image, on the clock and of the processor, of a loop of so many seconds."""
    clock = time.perf_counter()
    processor = time.process_time()
    done = 0
    while time.perf_counter() < clock + seconds:
        first = done % (len(frames) - batch + 1)
        call(frames[first : first + batch])
        done += batch
    return (time.perf_counter() - clock) / done, (time.process_time() - processor) / done


def throughput(subject: Subject, rounds: int, seconds: float) -> Iterator[list[str]]:
    """One row for each number of cameras: images a second, and ratios of every loop to the server."""
    plain = fozo.NoAdapt(subject.engine())
    adapter = subject.adapter()
    loops: dict[str, Callable[[], tuple[float, float]]] = {
        "plain": lambda: loop(plain, subject.frames, seconds),
        "adapter": lambda: loop(adapter, subject.frames, seconds),
        "plain, 8 at a time": lambda: loop(plain, subject.frames, seconds, 8),
    }
    with Server(subject) as server, frames_file(subject) as path:

        def served(cameras: int) -> tuple[float, float]:
            found = measured(server, path, cameras, "--seconds", seconds, "--prefix", f"{cameras}-")
            return found["seconds"] / found["images"], found["processor"] / found["images"]

        calls: dict[str, Callable[[], tuple[float, float]]] = {**loops, **{str(n): partial(served, n) for n in CAMERAS}}
        costs = {name: list[tuple[float, float]]() for name in calls}
        for number, names in in_turn(list(calls), rounds):
            for name in names:
                cost = calls[name]()
                if number:
                    costs[name].append(cost)
    found = {name: np.array(rows) for name, rows in costs.items()}
    for name in (*loops, *map(str, CAMERAS)):
        ratios = [
            f"{np.median(found[other][:, kind] / found[name][:, kind]):.2f}" for kind in (1, 0) for other in loops
        ]
        title = f"loop: {name}" if name in loops else f"server, cameras: {name}"
        clock, processor = 1 / np.median(found[name], axis=0)
        yield [subject.title, title, f"{clock:.0f}", f"{1000 / processor:.2f}", *ratios]


def latency(subject: Subject, seconds: float) -> Iterator[list[str]]:
    with Server(subject) as server, frames_file(subject) as path:
        for cameras in CAMERAS:
            found = measured(server, path, cameras, "--seconds", seconds, "--rate", subject.rate)
            sent = found["images"] / found["seconds"]
            yield [subject.title, str(cameras), f"{sent:.0f}", *(f"{1000 * found[p]:.1f}" for p in ("p50", "p99"))]


def _same(adapter: fozo.Align, on_event: object) -> tuple[fozo.Align, None]:
    return adapter, None


def memory(subject: Subject) -> Iterator[list[str]]:
    """Open cameras that have learnt a domain, and see what the server grows by."""
    adapter = subject.adapter()
    adapter(subject.frames[:32])
    arrays = sum(leaf.nbytes for _, leaf in leaves(adapter.state()) if isinstance(leaf, np.ndarray))
    with tempfile.TemporaryDirectory() as folder:
        store = StateFolder(Path(folder), NAME)
        for number in range(HELD[-1]):
            name = f"camera-{number}"
            camera = Camera(name, partial(_same, adapter), store.open(name, HELD[-1]))
            camera.unsaved = 1
            camera.save(close=True)
        with Server(subject, "--state", folder) as server, frames_file(subject) as path:
            residents = []
            for cameras in HELD:
                for _ in range(2):  # and again, so that all threads have worked
                    measured(server, path, cameras, "--seconds", 1)
                residents.append(server.resident())
    per_camera = [f"{(residents[2] - residents[i]) / (HELD[2] - HELD[i]):.2f}" for i in (1, 0)]
    yield [subject.title, *(f"{mb:.0f}" for mb in residents), *per_camera, f"{arrays / 1e6:.3g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, help="of a ViT; by default the bundled model is served")
    parts = ("throughput", "latency", "memory")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    a = parser.parse_args()
    load = os.getloadavg()[0]
    print(
        f"fozo {fozo.__version__}, Python {platform.python_version()}, {usable_cpus()} processors, "
        f"{time.strftime('%F')}; the load of the machine was {load:.1f} before this began.\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        subject = bundled() if a.weights is None else exported(a.weights, Path(folder))
        if "throughput" in a.only:
            loops = ["plain", "adapter", "plain by 8"]
            names = ["model", "what", "images/s", "processor (ms an image)"]
            names += [f"{each}, processor" for each in loops] + [f"{each}, clock" for each in loops]
            print(markdown(names, throughput(subject, a.rounds, a.seconds)), "", sep="\n", flush=True)
        if "latency" in a.only:
            names = ["model", "cameras", "frames/s", "p50 (ms)", "p99 (ms)"]
            print(markdown(names, latency(subject, 3 * a.seconds)), flush=True)
        if "memory" in a.only:
            names = ["model", *(f"{n} (MB)" for n in HELD), "a camera (MB)", "from 1 (MB)", "arrays (MB)"]
            print(markdown(names, memory(subject)), "", sep="\n", flush=True)


if __name__ == "__main__":
    main()
