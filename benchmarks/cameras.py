"""How well the monitor watches cameras: events in clean streams, and how changes are noticed, dated and ended.

    python -m benchmarks.cameras PICTURES -o results/cameras.csv [--frames 10000] [--set tuning|report]

PICTURES is a folder of photographs; every second one makes the scenes that constants were chosen on (``tuning``), the
others those that are reported. Videos are made of them by ffmpeg, which has to be installed. No model runs here: the
monitor watches a function that returns nothing, as it watches a detector.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.ndimage import gaussian_filter

import fozo
from fozo.data.images import Pixels
from fozo.engines.blackbox import black_box

SIZE = 160
"""Side of the frames in pixels."""
WIDE = 4 * SIZE
CLEAN = 300
"""Clean frames that a reference is made from."""
BEFORE = 200
RAMP = 40
HOLD = 60
AFTER = 120
"""Frames before, while it grows, while it lasts, and after a change."""
FPS = 10.0
FADE = 20  # frames in which a change goes
Values = npt.NDArray[np.float32]
Frames = Iterator[Pixels]
BITRATES = {"h264 60k": "60k", "h264 200k": "200k", "h264 800k": "800k"}


@dataclass(frozen=True)
class Pictures:
    """Photographs of one set."""

    paths: tuple[Path, ...]

    @classmethod
    def of(cls, folder: Path, which: str) -> Pictures:
        paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg", ".png"))
        return cls(tuple(paths[which == "report" :: 2]))

    def read(self, number: int, width: int = SIZE, height: int = SIZE) -> Values:
        """One of them in linear-ish [0, 1], cut to a size: ``[height, width, 3]``."""
        with Image.open(self.paths[number * 7919 % len(self.paths)]) as image:
            picture = image.convert("RGB")
        scale = max(width / picture.width, height / picture.height)
        picture = picture.resize((round(picture.width * scale) + 1, round(picture.height * scale) + 1))
        pixels: Values = np.asarray(picture, np.float32)[:height, :width] / np.float32(255)
        return pixels


def to_pixels(values: Values) -> Pixels:
    return np.asarray(255 * np.clip(values, 0, 1) + 0.5).astype(np.uint8)


def noisy(values: Values, rng: np.random.Generator, sigma: float = 2 / 255) -> Values:
    noise = rng.standard_normal((*values.shape[:2], 1), dtype=np.float32)
    return np.asarray(values + np.float32(sigma) * noise)


def traffic(pictures: Pictures, rng: np.random.Generator, count: int) -> Callable[[Values, int], Values]:
    """Passers-by (3 % of the picture, one in 100 frames) and lorries (20 %, one in 400) that cross it."""
    visits = []
    for start in np.flatnonzero(rng.random(count) < 0.0125):
        is_lorry = rng.random() < 0.2
        height, width = (SIZE * 9 // 20, SIZE * 9 // 20) if is_lorry else (SIZE // 4, SIZE // 8)
        sprite = pictures.read(1000 + int(rng.integers(50)), width, height)
        visits.append((int(start), int(rng.integers(12, 40)), int(rng.integers(SIZE - height)), sprite))

    def draw(values: Values, number: int) -> Values:
        for start, length, top, sprite in visits:
            if start <= number < start + length:
                height, width = sprite.shape[:2]
                left = int((SIZE + width) * (number - start) / length) - width
                from_left = max(left, 0)
                to_right = min(left + width, SIZE)
                if to_right > from_left:
                    values = values.copy()
                    values[top : top + height, from_left:to_right] = sprite[:, from_left - left : to_right - left]
        return values

    return draw


def clouds(rng: np.random.Generator, count: int, amount: float = 0.06) -> Values:
    """Slow changes of the light, as a factor."""
    values = gaussian_filter(rng.standard_normal(count + 400), 40)[200:-200]
    return np.asarray(1 + amount * np.clip(values / values.std(), -2, 2) / 2, np.float32)


def static(pictures: Pictures, seed: int, count: int, number: int = 0) -> Iterator[Values]:
    """A fixed camera with noise, clouds, passers-by and lorries."""
    rng = np.random.default_rng(seed)
    picture = pictures.read(seed)
    draw = traffic(pictures, rng, count)
    for number, light in enumerate(clouds(rng, count)):
        yield draw(picture * light, number)


def lit(picture: Values) -> Values:
    """A picture under a belt's constant light: its luma has the mean 0.4 and the deviation 0.2."""
    return np.asarray(0.4 + 0.2 * (picture - picture.mean()) / max(float(picture.std()), 0.02), np.float32)


def conveyor(pictures: Pictures, seed: int, count: int) -> Iterator[Values]:
    """A belt of things that never come again, between two fixed borders."""
    border = pictures.read(seed)
    strip = np.concatenate([lit(pictures.read(seed + 1)), lit(pictures.read(seed + 2))], axis=1)
    position = 0
    for number in range(count):
        if position >= SIZE:
            position -= SIZE
            following = lit(pictures.read(seed + 3 + number))
            if number % 3:
                following = following[::-1]
            strip = np.concatenate([strip[:, SIZE:], following], axis=1)
        frame = strip[:, position : position + SIZE].copy()
        frame[: SIZE // 10] = border[: SIZE // 10]
        frame[-SIZE // 10 :] = border[-SIZE // 10 :]
        position += 6
        yield frame


def tour(pictures: Pictures, seed: int, count: int) -> Iterator[Values]:
    """A camera that turns between five scenes: 40 frames at each, 8 on the way."""
    scenes = [pictures.read(seed + 10 + i) for i in range(5)]
    panorama = np.concatenate([*scenes, scenes[0]], axis=1)
    light = clouds(np.random.default_rng(seed), count)
    for number in range(count):
        stop, step = divmod(number, 48)
        moved = max(step - 39, 0) / 9
        left = round(SIZE * (stop % 5 + moved))
        yield panorama[:, left : left + SIZE] * light[number]


def day_and_night(pictures: Pictures, seed: int, count: int) -> Iterator[Values]:
    """A fixed camera through days of 1,000 frames: four stops darker and bluer at night, with more noise."""
    rng = np.random.default_rng(seed)
    picture = pictures.read(seed)
    draw = traffic(pictures, rng, count)
    light = clouds(rng, count)
    for number in range(count):
        stops = -4 * float(np.clip(0.5 + np.cos(2 * np.pi * number / 1000), 0, 1.0))
        tint = np.array([1 + 0.02 * stops, 1, 1 - 0.02 * stops], np.float32)
        yield draw(picture * light[number], number) * tint * np.float32(2 ** (stops / 2.2))


def pans(pictures: Pictures, seed: int, count: int) -> Iterator[Values]:
    """A camera that pans and zooms over one wide picture for ever, by the same way."""
    picture = pictures.read(seed, WIDE, 2 * SIZE)
    for number in range(count):
        angle = 2 * np.pi * number / 500
        zoom = 1.3 + 0.3 * np.sin(angle)
        size = int(SIZE * zoom)
        left = int((WIDE - size) * (0.5 + 0.5 * np.sin(angle)))
        top = int((2 * SIZE - size) * (0.5 + 0.5 * np.cos(angle)))
        cut = Image.fromarray(to_pixels(picture[top : top + size, left : left + size]))
        yield np.asarray(cut.resize((SIZE, SIZE)), np.float32) / np.float32(255)


def through_ffmpeg(frames: Iterator[Values], bitrate: str) -> Iterator[Values]:
    """Frames as H.264 at a bitrate (25 frames a second) leaves them."""
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{SIZE}x{SIZE}", "-r", "25"]
    quiet = ["ffmpeg", "-loglevel", "error", "-threads", "1"]
    coder = [*quiet, *raw, "-i", "-", "-c:v", "libx264", "-preset", "veryfast", "-threads", "1", "-b:v", bitrate]
    coded = subprocess.run(
        [*coder, "-maxrate", bitrate, "-bufsize", bitrate, "-g", "100", "-f", "h264", "-"],
        input=b"".join(to_pixels(frame).tobytes() for frame in frames), stdout=subprocess.PIPE, check=True,
    ).stdout  # fmt: skip
    decoder = [*quiet, "-f", "h264", "-i", "-", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    decoded = subprocess.run(decoder, input=coded, stdout=subprocess.PIPE, check=True).stdout
    for start in range(0, len(decoded), SIZE * SIZE * 3):
        pixels = np.frombuffer(decoded, np.uint8, SIZE * SIZE * 3, start)
        yield pixels.reshape(SIZE, SIZE, 3).astype(np.float32) / np.float32(255)


# Weather and faults: a picture, how far it has come (0 to 1), and the picture that it becomes.


def fog(frame: Values, amount: float, seed: int) -> Values:
    through = 1 - 0.6 * amount
    return np.asarray(through * frame + (1 - through) * 0.85, np.float32)


def dusk(frame: Values, amount: float, seed: int) -> Values:
    return np.asarray(frame * 2 ** (-3 * amount / 2.2), np.float32)


def dirt(frame: Values, amount: float, seed: int) -> Values:
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIZE, :SIZE]
    mask = np.zeros((SIZE, SIZE), np.float32)
    for _ in range(4):
        y, x = rng.integers(SIZE, size=2)
        radius = SIZE * rng.uniform(0.08, 0.15)
        mask = np.maximum(mask, 1 / (1 + np.exp((np.hypot(rows - y, columns - x) - radius) / 3)))
    mask = amount * 0.9 * mask[:, :, None]
    blurred = gaussian_filter(frame, (SIZE / 25, SIZE / 25, 0))
    return np.asarray((1 - mask) * frame + mask * (0.6 * blurred + 0.1), np.float32)


def defocus(frame: Values, amount: float, seed: int) -> Values:
    return np.asarray(gaussian_filter(frame, (2.5 * amount, 2.5 * amount, 0)), np.float32)


SUDDEN = ("freeze", "black", "moved")
GRADUAL: dict[str, Callable[[Values, float, int], Values]] = {
    "fog": fog, "dusk": dusk, "dirt": dirt, "defocus": defocus,
}  # fmt: skip
CODED = "low bitrate"
CHANGES = (*GRADUAL, *SUDDEN, CODED)


def amount_at(number: int, *, sudden: bool) -> float:
    """How far a change has come at a frame."""
    since = number - BEFORE
    if sudden:
        return float(0 <= since < RAMP + HOLD)
    left = RAMP + HOLD + FADE - since
    return float(np.clip(min(since / RAMP, left / FADE), 0, 1))


def changed(frames: Iterator[Values], kind: str, pictures: Pictures, seed: int) -> Iterator[Values]:
    """The stream with one change in it."""
    kept = None
    elsewhere = pictures.read(seed + 500)
    for number, frame in enumerate(frames):
        amount = amount_at(number, sudden=kind in SUDDEN)
        if kind in GRADUAL:
            frame = GRADUAL[kind](frame, amount, seed)
        elif amount:
            if kind == "black":
                frame = 0.01 * frame
            elif kind == "moved":
                frame = elsewhere
            elif kind == "freeze":
                frame = frame if kept is None else kept
        kept = frame
        yield frame


def sensed(frames: Iterator[Values], seed: int, kind: str = "") -> Iterator[Pixels]:
    """Add a sensor's noise, but to a picture that is frozen."""
    rng = np.random.default_rng([seed, 1])
    last = None
    for number, frame in enumerate(frames):
        frozen = kind == "freeze" and amount_at(number, sudden=True) and last is not None
        last = last if frozen else to_pixels(noisy(frame, rng))
        assert last is not None
        yield last


CAMERAS: dict[str, Callable[[Pictures, int, int], Iterator[Values]]] = {
    "static": static, "conveyor": conveyor, "tour": tour, "day and night": day_and_night, "pans": pans,
}  # fmt: skip
KINDS = (*CAMERAS, *BITRATES)


def camera(kind: str, pictures: Pictures, seed: int, count: int) -> Iterator[Values]:
    if kind not in BITRATES:
        return CAMERAS[kind](pictures, seed, count)
    source = pans if kind == "h264 800k" else static
    rng = np.random.default_rng(seed)
    return through_ffmpeg((noisy(frame, rng) for frame in source(pictures, seed, count)), BITRATES[kind])


def clean_stream(kind: str, pictures: Pictures, seed: int, count: int) -> Iterator[Pixels]:
    frames = camera(kind, pictures, seed, count)
    return map(to_pixels, frames) if kind in BITRATES else sensed(frames, seed)


def changed_stream(kind: str, change: str, pictures: Pictures, seed: int) -> Iterator[Pixels]:
    """A clean past for the reference, and then a stream with a change."""
    count = CLEAN + BEFORE + RAMP + HOLD + FADE + AFTER
    frames = camera(kind, pictures, seed, count)
    past = [next(frames) for _ in range(CLEAN)]
    yield from sensed(iter(past), seed)
    if change == CODED:  # after the sensor: it is the noise that goes first
        rest = list(sensed(frames, seed + 1))
        coded = through_ffmpeg((frame / np.float32(255) for frame in rest), "12k")
        for number, (frame, less) in enumerate(zip(rest, coded, strict=True)):
            yield to_pixels(less) if amount_at(number, sudden=True) else frame
        return
    yield from sensed(changed(frames, change, pictures, seed), seed + 1, change)


def watched(past: Pixels, stream: Iterator[Pixels], seconds: float) -> list[fozo.monitor.Event]:
    """Events of a stream of one frame a batch, ``seconds`` apart, with a reference of a clean past."""
    adapter = fozo.adapter(
        black_box(lambda images: [""] * len(images), name="nothing", image_size=(SIZE, SIZE), mean=0, std=1), past
    )
    reference = fozo.Reference.collect(adapter, past, corruptions=False)
    now = np.zeros(1)
    events: list[fozo.monitor.Event] = []
    monitor = fozo.Monitor(reference, on_event=events.append, clock=lambda: now, shadow=0).watch(adapter)
    for number, frame in enumerate(stream):
        now = np.array([1e9 + number * seconds])
        adapter(frame[None])
    monitor.unwatch()
    return events


PAST = {"day and night": 4, "pans": 2, "h264 800k": 2}
"""Of these, the reference has so many times as many clean frames' worth of the stream: a whole cycle."""


def false_alarms(kind: str, pictures: Pictures, seed: int, frames: int) -> list[object]:
    spread = PAST.get(kind, 1)
    stream = clean_stream(kind, pictures, seed, CLEAN * spread + frames)
    past = np.stack([next(stream) for _ in range(CLEAN * spread)])[::spread]
    events = watched(past, stream, 1 / FPS)
    names = " ".join(f"{event.name}@{event.image}" for event in events[:6])
    return ["clean", kind, seed, frames, len(events), names]


def noticed(kind: str, change: str, pictures: Pictures, seed: int) -> list[object]:
    """Delay since the change was half there, its date, when it ended, and how many episodes there were."""
    stream = changed_stream(kind, change, pictures, seed)
    past = np.stack([next(stream) for _ in range(CLEAN)])
    events = watched(past, stream, 1 / FPS)
    seen = [(event.name, round((event.time - 1e9) * FPS) + 1) for event in events]
    begins = [(event, at) for event, (name, at) in zip(events, seen, strict=True) if not name.endswith("over")]
    ends = [at for name, at in seen if name.endswith("over")]
    half = BEFORE + 1 + (0 if change in SUDDEN or change == CODED else RAMP // 2)
    gone = BEFORE + RAMP + HOLD + (0 if change in SUDDEN or change == CODED else FADE)
    first = begins[0] if begins else None
    return [
        change, kind, seed, "" if first is None else first[1] - half, "" if first is None else first[0].image - BEFORE,
        ends[-1] - gone if ends else "", len(begins), " ".join(f"{name}@{at}" for name, at in seen[:6]),
    ]  # fmt: skip


def run(task: tuple[Any, ...]) -> list[object]:
    function, *arguments = task
    result: list[object] = function(*arguments)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pictures", type=Path)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--frames", type=int, default=10_000)
    parser.add_argument("--set", choices=("tuning", "report"), default="report")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clean", nargs="*", default=list(KINDS))
    parser.add_argument("--changed", nargs="*", default=["static", "conveyor", "tour", "h264 200k"])
    parser.add_argument("--changes", nargs="*", default=list(CHANGES))
    parser.add_argument("--processes", type=int, default=1)
    given = parser.parse_args()
    pictures = Pictures.of(given.pictures, given.set)
    seeds = range(200, 200 + given.seeds)
    clean = [(false_alarms, kind, pictures, 200, given.frames) for kind in given.clean]
    changes = [
        (noticed, kind, change, pictures, seed) for kind in given.changed for change in given.changes for seed in seeds
    ]
    tables = (
        (["table", "camera", "seed", "frames", "events", "what"], clean),
        (["change", "camera", "seed", "delay", "dated", "ended", "episodes", "what"], changes),
    )
    file = sys.stdout if given.out is None else given.out.open("w", newline="")
    with ProcessPoolExecutor(given.processes) as pool:
        writer = csv.writer(file, lineterminator="\n")
        for head, tasks in tables:
            writer.writerow(head)
            for row in pool.map(run, tasks):
                writer.writerow(row)
                file.flush()


if __name__ == "__main__":
    main()
