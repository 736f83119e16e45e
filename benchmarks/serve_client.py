"""Cameras for benchmarks.serve: each has one connection, and sends one frame at a time.

    python -m benchmarks.serve_client PORT MODEL FRAMES --cameras 8 [--seconds 5] [--rate 100]

FRAMES is an ``.npy`` of uint8 frames; camera c sends them in turn, beginning with the c-th. Without a rate the next
frame is sent once the last is answered; with one, frames are sent at fixed times, that many a second by all cameras
together, and latency counts from the time at which a frame was due. What was measured is printed as JSON.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt


class Camera:
    """One connection."""

    def __init__(self, port: int, model: str, name: str) -> None:
        self.port = port
        self.path = f"/v2/models/{model}/infer"
        self.name = name

    async def connect(self) -> None:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def ask(self, frame: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Send a frame; the logits."""
        header = {
            "parameters": {"sequence_id": self.name},
            "inputs": [{"name": "images", "datatype": "UINT8", "shape": [1, *frame.shape],
                        "parameters": {"binary_data_size": frame.nbytes}}],
            "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
        }  # fmt: skip
        text = json.dumps(header).encode()
        head = (
            f"POST {self.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/octet-stream\r\n"
            f"Inference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + frame.nbytes}\r\n\r\n"
        )
        self.writer.write(head.encode() + text + frame.tobytes())
        status, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        body = await self.reader.readexactly(int(headers["content-length"]))
        if " 200 " not in status:
            raise RuntimeError(f"{status}: {body[:300]!r}")
        return np.frombuffer(body[int(headers["inference-header-content-length"]) :], "<f4")


async def stream(camera: Camera, frames: npt.NDArray[np.uint8], first: int, until: float, period: float) -> list[float]:
    """Send frames until it is time; the latency of each."""
    latencies: list[float] = []
    due = time.perf_counter() + period * np.random.default_rng(first).random()
    for i in range(first, sys.maxsize):
        if period:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        else:
            due = time.perf_counter()
        if due >= until:
            return latencies
        await camera.ask(frames[i % len(frames)])
        latencies.append(time.perf_counter() - due)
        due += period
    raise AssertionError


async def run(a: argparse.Namespace) -> dict[str, object]:
    frames = np.load(a.frames)
    cameras = [Camera(a.port, a.model, f"{a.prefix}{i}") for i in range(a.cameras)]
    for camera in cameras:
        await camera.connect()
    if a.warm:
        await asyncio.gather(*(c.ask(frames[i % len(frames)]) for i, c in enumerate(cameras)))
    print("begin", flush=True)
    began = time.perf_counter()
    period = a.cameras / a.rate if a.rate else 0.0
    found = await asyncio.gather(*(stream(c, frames, i, began + a.seconds, period) for i, c in enumerate(cameras)))
    took = time.perf_counter() - began
    latencies = np.concatenate(found)
    p50, p99 = np.percentile(latencies, [50, 99])
    return {"images": len(latencies), "seconds": took, "p50": float(p50), "p99": float(p99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("port", type=int)
    parser.add_argument("model")
    parser.add_argument("frames", type=Path)
    parser.add_argument("--cameras", type=int, default=8)
    parser.add_argument("--prefix", default="camera-", help="what names of cameras begin with")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--warm", action="store_true", help="send one frame of each camera before the time begins")
    print(json.dumps(asyncio.run(run(parser.parse_args()))), flush=True)


if __name__ == "__main__":
    main()
