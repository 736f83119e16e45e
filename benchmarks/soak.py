"""A soak of ``fozo serve``: many cameras, a fifth of their requests garbage, for an hour. Does its memory grow?

    python -m benchmarks.soak [--minutes 60] [--cameras 32] [--rate 40] [--garbage 0.2]

The bundled model with a monitor and a state folder, served by a process of its own on the loopback. Cameras are in this
one, and send ``rate`` requests a second in all: frames, 128 clear and 128 foggy ones in turn. One in 300 ends
its sequence. Prints a line a minute, then the slope of the memory over the last half, and wrong answers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import fozo
from benchmarks.common import markdown
from benchmarks.serve import NAME, Frames, Server, bundled, foggy, pictures
from fozo.data import sample
from fozo.monitor import Reference

PATH = f"/v2/models/{NAME}/infer"


def message(body: bytes, *headers: str, path: str = PATH, length: int | None = None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def frame_message(frame: Frames, camera: str, number: int, end: bool = False) -> bytes:
    tensor: dict[str, object] = {"name": "images", "datatype": "UINT8", "shape": [1, *frame.shape]}
    tensor["parameters"] = {"binary_data_size": frame.nbytes}
    parameters = {"sequence_id": camera, "sequence_end": end, "binary_data_output": True, "drift": True}
    text = json.dumps({"id": f"{camera}-{number}", "parameters": parameters, "inputs": [tensor]}).encode()
    return message(text + frame.tobytes(), f"Inference-Header-Content-Length: {len(text)}")


def garbage(numbers: np.random.Generator, camera: str) -> tuple[str, bytes, tuple[int, ...]]:
    """A bad request: its kind, its bytes, and the codes that it deserves (none for one that is cut)."""
    noise = numbers.bytes(int(numbers.integers(1, 20_000)))
    tensor = {"name": "images", "datatype": "FP32", "shape": [1, 1, 28, 28]}
    nan = json.dumps({"parameters": {"sequence_id": camera}, "inputs": [{**tensor, "data": [1e39] * 784}]}).encode()
    kinds: list[tuple[str, bytes, tuple[int, ...]]] = [
        ("not HTTP", noise + b"\r\n\r\n", (400,)),
        ("not JSON", message(noise), (400,)),
        ("deep JSON", message(b'{"inputs": ' + b"[" * len(noise)), (400,)),
        ("texts", message(nan.replace(b"1e+39", b'"x"')), (400,)),
        ("infinite", message(nan), (400,)),
        ("not a picture", message(noise, "Content-Type: image/jpeg", path=f"{PATH}?sequence_id={camera}"), (400,)),
        ("new camera", message(noise, "Content-Type: image/png", path=f"{PATH}?sequence_id={noise[:9].hex()}"), (400,)),
        ("too long", message(b"", length=1 << 40), (413,)),
        ("cut body", message(noise, length=len(noise) + 1), ()),
    ]
    return kinds[int(numbers.integers(len(kinds)))]


@dataclass
class Soak:
    """Cameras, and what became of their requests."""

    port: int
    a: argparse.Namespace
    frames: Frames
    until: float
    counts: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)

    async def camera(self, number: int) -> None:
        numbers = np.random.default_rng(number)
        name = f"camera-{number}"
        sent = 0
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        period = self.a.cameras / self.a.rate
        due = time.monotonic() + period * numbers.random()
        while max(due, time.monotonic()) < self.until:  # a crowded machine falls behind
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += period
            if numbers.random() < self.a.garbage:
                await self.hurt(*garbage(numbers, name))
                continue
            frame = self.frames[sent // 128 % 2, int(numbers.integers(self.frames.shape[1]))]
            writer.write(frame_message(frame, name, sent, end=numbers.random() < 1 / 300))
            self.note("frame", await answer(reader), (200,))
            sent += 1
        writer.close()

    async def hurt(self, kind: str, data: bytes, codes: tuple[int, ...]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        with suppress(ConnectionError):
            writer.write(data)
            self.note(kind, await answer(reader) if codes else 0, codes or (0,))
        writer.close()

    def note(self, kind: str, code: int, codes: tuple[int, ...]) -> None:
        self.counts[kind] += 1
        self.wrong[f"{kind}: {code}"] += code not in codes


async def answer(reader: asyncio.StreamReader) -> int:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    with suppress(asyncio.IncompleteReadError):  # a plain 400 of uvicorn's has no length
        await reader.readexactly(int(head.partition("\r\ncontent-length:")[2].split("\r\n")[0] or 0))
    return int(head.split()[1])


async def run(soak: Soak, server: Server, log: Path) -> list[tuple[float, float]]:
    tasks = [asyncio.create_task(soak.camera(i)) for i in range(soak.a.cameras)]
    began = time.monotonic()
    memory: list[tuple[float, float]] = []
    while any(not task.done() for task in tasks):
        await asyncio.wait(tasks, timeout=60 - (time.monotonic() - began) % 60, return_when=asyncio.FIRST_EXCEPTION)
        [task.result() for task in tasks if task.done()]
        memory.append(((time.monotonic() - began) / 60, server.resident() * 1e6 / 2**20))
        minute, resident = memory[-1]
        share = f"{100 * server.processor() / (60 * minute):.0f} %"
        row = (f"{minute:.1f}", sum(soak.counts.values()), f"{resident:.1f}", share, log.stat().st_size)
        print(f"| {' | '.join(map(str, row))} |", flush=True)
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in {"minutes": 60.0, "cameras": 32, "rate": 40.0, "garbage": 0.2}.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    a = parser.parse_args()
    print(f"fozo {fozo.__version__}, Python {platform.python_version()}, {time.strftime('%F')}, {a}\n")
    subject = bundled()
    clear = pictures(512, start=1000)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        reference = Path(folder) / "reference.safetensors"
        with np.load(sample.IMAGES) as data:
            labels = np.asarray(data["labels"][1000:1100])
        Reference.collect(subject.adapter(), clear[:100], labels, sample=3).save(reference)
        with Server(subject, "--state", f"{folder}/state", "--reference", str(reference), log=log) as server:
            soak = Soak(server.port, a, np.stack([clear, foggy(clear)]), time.monotonic() + 60 * a.minutes)
            print(markdown(["minute", "requests", "memory (MiB)", "processor", "log (bytes)"], []))
            memory = np.array(asyncio.run(run(soak, server, log)))
        half = memory[memory[:, 0] > memory[-1, 0] / 2]
        slope = np.polyfit(half[:, 0], half[:, 1], 1)[0] if len(half) > 1 else float("nan")
        print(f"\nexit code {server.process.returncode}; memory of the last half: {slope:+.3f} MiB a minute")
        print(f"requests: {dict(soak.counts)}\nwrong answers: {dict(+soak.wrong) or 'none'}\n{log.read_text()[-500:]}")


if __name__ == "__main__":
    main()
