"""Pictures are decoded by processes of their own, with limits of processor time and memory, which may be killed.

A picture can take a decoder's time and memory in more ways than anybody lists: scans of a JPEG, compressed texts of a
PNG, chains of metadata. What bounds them all is a process that the system ends. It also brings a picture to the model's
size, so that little comes back. What cannot take long is decoded here, because asking a process takes 0.3 ms: JPEGs of
one scan, and files of a few kilobytes and few pixels.

    server:  {"bytes": 90000, "size": [224, 224], "channels": 3, "seconds": 5, ...} and a picture
    process: {"error": SENTENCE}, or {"height": 480, "width": 640, "shape": [1, 224, 224, 3], ...} and these pixels
"""

from __future__ import annotations

import io
import json
import math
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from PIL import Image, PngImagePlugin

from fozo.data.images import picture_pixels
from fozo.data.inputs import sized_pixels
from fozo.errors import FozoError
from fozo.io import unreadable
from fozo.serve.limits import Refused
from fozo.types import Spec

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

Pixels = npt.NDArray[np.uint8]
SMALL_PICTURE = 1 << 21  # pixels, 1080p
PLACES = 2  # images that take long, or much memory, that are worked on at a time
JPEG = b"\xff\xd8"
SCAN = b"\xff\xda"
SIGNATURES = (JPEG, b"\x89PNG\r\n\x1a\n", b"RIFF")
TINY_BYTES = 1 << 13
TINY_PIXELS = 1 << 17
HEAD_BYTES = 1 << 16
MAX_TEXT_BYTES = 1 << 20  # of all texts of a PNG: Pillow unpacks them before there is a pixel
DECODING_SECONDS = 5  # of processor time, for all pictures of a request
BYTES_PER_PIXEL = 12  # of the largest picture: coefficients of a progressive JPEG, Pillow's pixels, and their copies
SPARE_BYTES = 256 << 20
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(16 << 20)}
"""For a process that decodes: glibc would give pixels back and ask for them again, which takes as long as decoding."""
PROGRAM = "import sys; sys.path[:] = {}; from fozo.serve.decoding import work; work({})"


def pixels_here(picture: bytes) -> int:
    """How many pixels a picture may have to be decoded in this process, because nothing in it can take long.

    A JPEG with one scan passes over its pixels once: a marker of a scan is these two bytes wherever it stands. What is
    before it (metadata, texts, profiles) is short.
    """
    if len(picture) <= TINY_BYTES:
        return TINY_PIXELS
    plain = picture.startswith(JPEG) and picture.count(SCAN) == 1 and picture.find(SCAN) <= HEAD_BYTES
    return SMALL_PICTURE if plain else 0


@contextmanager
def opened(picture: bytes, name: str) -> Iterator[Image.Image]:
    """Open a picture once, for its size and then perhaps its pixels; whatever goes wrong is a sentence."""
    with (
        unreadable(f"{name} is damaged or truncated", "replace it"),
        Image.open(io.BytesIO(picture), formats=("JPEG", "PNG", "WEBP")) as image,
    ):
        yield image


def decode_here(picture: bytes, name: str) -> tuple[Pixels | None, int]:
    """Decode a picture in this process if that cannot take long, and count its pixels."""
    most = pixels_here(picture)
    if most:
        with opened(picture, name) as image:
            pixels = image.width * image.height
            if pixels <= most:
                return picture_pixels(image, name), pixels
    return None, 0


def fit(image: Pixels, spec: Spec, resize: bool) -> Pixels:
    """Bring one image to the model's size ``[1, height, width, channels]``, or refuse it where it has another."""
    if not resize and image.shape[:2] != spec.image_size:
        refuse_size(image.shape[0], image.shape[1], spec, resize)
    return sized_pixels([image], spec)


def refuse_size(height: int, width: int, spec: Spec, resize: bool, most_pixels: int = 0) -> NoReturn:
    if resize:
        raise Refused(
            f"an image of {width}x{height} px has more than {most_pixels}, max_pixels; send a smaller one", 413
        )
    sizes = f"an image has {width}x{height} px, where {spec.name} takes {spec.image_size[1]}x{spec.image_size[0]}"
    raise FozoError(f"{sizes}; resize or letterbox it first: its outputs would refer to another picture")


class DecoderEnded(Exception):
    """A decoding process has ended, or does not answer."""


class Decoder:
    """A process that decodes one picture at a time."""

    def __init__(self, memory: int, timeout: float) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(timeout)
        command = [sys.executable, "-c", PROGRAM.format(sys.path, memory)]
        with theirs:
            self.process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **MALLOC},
            )
        self.stream = self.channel.makefile("rb")

    def ask(self, order: dict[str, Any], picture: bytes) -> tuple[dict[str, Any], bytes]:
        try:
            self.channel.sendall(json.dumps(order).encode() + b"\n")
            self.channel.sendall(picture)
            answer = json.loads(self.stream.readline())
            pixels = self.stream.read(math.prod(answer["shape"])) if "shape" in answer else b""
        except (OSError, ValueError) as error:
            raise DecoderEnded from error
        return answer, pixels

    def close(self) -> None:
        self.stream.close()
        self.channel.close()
        self.process.kill()
        self.process.wait()


class Decoders:
    """Two decoding processes for all requests, each started when it is first needed.

    Args:
        most_pixels: of an image.
        timeout: seconds on the clock after which a process is given up.
    """

    def __init__(self, most_pixels: int = 1 << 25, timeout: float = 30.0) -> None:
        self.most_pixels = most_pixels
        self.timeout = timeout
        self.memory = BYTES_PER_PIXEL * most_pixels + SPARE_BYTES
        self.places = threading.BoundedSemaphore(PLACES)
        self._idle = list[Decoder]()
        self._lock = threading.Lock()
        self._closed = False

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle = self._idle
            self._idle = []
        for decoder in idle:
            decoder.close()

    @contextmanager
    def _take(self) -> Iterator[Decoder]:
        """Take a process; one that fails is ended, and the next request starts another."""
        with self.places:
            with self._lock:
                decoder = self._idle.pop() if self._idle else None
            if decoder is not None and decoder.process.poll() is not None:  # somebody has ended it
                decoder.close()
                decoder = None
            decoder = decoder or Decoder(self.memory, self.timeout)
            try:
                yield decoder
            except BaseException:
                decoder.close()
                raise
            with self._lock:
                kept = not self._closed
                if kept:
                    self._idle.append(decoder)
            if not kept:
                decoder.close()

    def decode(self, pictures: Sequence[bytes], spec: Spec, resize: bool, most_pixels: int) -> Pixels:
        """Decode a request's pictures to the model's size; they may have ``most_pixels`` in all."""
        order = {"channels": spec.channels, "size": spec.image_size, "resize": resize, "pixels": self.most_pixels}
        images = list[Pixels]()
        seconds: float = DECODING_SECONDS
        for number, picture in enumerate(pictures):
            name = f"picture {number} of the request"
            if not picture.startswith(SIGNATURES):
                raise FozoError(f"{name} is not a JPEG, PNG or WebP; encode it as one of these")
            if seconds <= 0:
                raise FozoError(f"the pictures before {name} took {DECODING_SECONDS} s to decode; send plain JPEGs")
            image, pixels = decode_here(picture, name)
            if image is not None:
                images.append(fit(image, spec, resize))
            else:
                answer, data = self._ask(order | {"name": name, "bytes": len(picture), "seconds": seconds}, picture)
                pixels = answer["height"] * answer["width"]
                seconds -= answer["seconds"]
                if "shape" not in answer:
                    refuse_size(answer["height"], answer["width"], spec, resize, self.most_pixels)
                images.append(np.frombuffer(data, np.uint8).reshape(answer["shape"]))
            most_pixels -= pixels
            if most_pixels < 0:
                raise Refused("the request's pictures have too many pixels in all; send fewer", 413)
        return np.concatenate(images)

    def _ask(self, order: dict[str, Any], picture: bytes) -> tuple[dict[str, Any], bytes]:
        try:
            with self._take() as decoder:
                answer, data = decoder.ask(order, picture)
        except DecoderEnded as error:
            limits = f"{DECODING_SECONDS} s or {self.memory >> 20} MiB"
            raise FozoError(f"{order['name']} takes more than {limits} to decode; send a plain JPEG") from error
        if "error" in answer:
            raise FozoError(answer["error"])
        return answer, data


def work(memory: int) -> None:
    """Decode what comes through the first descriptor, until it is closed; ``memory``: bytes on top of what is taken."""
    for stop in (signal.SIGINT, signal.SIGTERM):
        signal.signal(stop, signal.SIG_IGN)  # the server decides when it ends, by closing the other end
    warnings.simplefilter("ignore")  # Pillow's have clients' numbers in them
    PngImagePlugin.MAX_TEXT_MEMORY = MAX_TEXT_BYTES
    _limit_memory(memory)
    channel = socket.socket(fileno=0)
    with channel, channel.makefile("rb") as stream:
        while line := stream.readline():
            order = json.loads(line)
            picture = stream.read(order["bytes"])
            start = time.process_time()
            _limit_time(start + order["seconds"])
            answer, pixels = _answer(order, picture)
            answer["seconds"] = time.process_time() - start
            channel.sendall(json.dumps(answer).encode() + b"\n" + pixels)


def _answer(order: dict[str, Any], picture: bytes) -> tuple[dict[str, Any], bytes]:
    name = order["name"]
    side = tuple(order["size"])
    spec = Spec("the model", 0, 0, 0, order["channels"], side, side, 0, "")
    try:
        with opened(picture, name) as image:
            width, height = image.size
            answer: dict[str, Any] = {"height": height, "width": width}
            if height * width > order["pixels"] or not (order["resize"] or (height, width) == side):
                return answer, b""
            pixels = fit(picture_pixels(image, name), spec, order["resize"])
    except FozoError as error:
        return {"error": str(error)}, b""
    except MemoryError:
        return {"error": f"{name} needs too much memory to be decoded; send a plain JPEG"}, b""
    return answer | {"shape": pixels.shape}, pixels.tobytes()


def _limit_memory(memory: int) -> None:
    with suppress(OSError, ValueError, AttributeError):  # only Linux says what it has, and keeps to a limit
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (taken + memory, taken + memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_time(seconds: float) -> None:
    """Have the system end this process at a processor time."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.RLIM_INFINITY))
