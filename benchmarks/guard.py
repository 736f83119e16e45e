"""Does the guard fall back where adaptation hurts, and only there? On streams that were built to hurt.

    python -m benchmarks.guard -o results/guard.md
    python -m benchmarks.guard IMAGENET_FOLDER WEIGHTS --methods align,fozo --clean 200 --sample 10 --length 128 -o ...

The first takes the bundled model and images; a few minutes on one core. Each stream is predicted once: what the method
says, what the guard lets through, and what the plain model says are all of the same run. The reference is of images
that are in no stream.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import fozo
from benchmarks.common import clean_and_test
from benchmarks.monitor import table
from fozo.core.noise import Purpose, generator
from fozo.data import sample
from fozo.data.corruptions import corrupt
from fozo.data.groups import TEXT, parse
from fozo.data.images import Pixels
from fozo.data.sets import ImageSet
from fozo.data.sources import prepare
from fozo.io import atomic_write
from fozo.methods.common.observer import Observation
from fozo.monitor.types import Drift
from fozo.types import Floats, Tap

BATCH = 16
ABSURD = {
    "mean_strength": 1.0, "std_strength": 1.0, "cls_strength": 1.0, "equaliser_strength": 1.0,
    "content_strength": 0.0, "content_error": 0.0,
}  # fmt: skip
"""Align without what keeps it from harm: all strengths full, and content taken for drift."""

Labels = npt.NDArray[np.int64]
Stream = tuple[str, Pixels, Labels]


class Listener:
    """Stands before a monitor, and keeps what the method itself predicted."""

    def __init__(self, monitor: fozo.Monitor) -> None:
        self.monitor, self.logits = monitor, list[Floats]()

    @property
    def drift(self) -> Drift:
        return self.monitor.drift

    def observe(self, observation: Observation) -> Floats | None:
        self.logits.append(observation.logits)
        return self.monitor.observe(observation)

    def metrics(self) -> dict[str, float]:
        return self.monitor.metrics()


def edges(pixels: Pixels) -> Pixels:
    """Drawings: dark lines where brightness changes, on white."""
    gray = pixels.astype(np.float32).mean(axis=3)
    steps = np.abs(np.diff(gray, axis=2, prepend=gray[:, :, :1])) + np.abs(np.diff(gray, axis=1, prepend=gray[:, :1]))
    lines = np.clip(255 - 3 * steps, 0, 255).astype(np.uint8)
    return np.repeat(lines[..., None], pixels.shape[3], axis=3)


def silhouettes(pixels: Pixels) -> Pixels:
    """Black where an image is brighter than its mean, on white."""
    gray = pixels.astype(np.float32).mean(axis=3, keepdims=True)
    black = gray > gray.mean(axis=(1, 2), keepdims=True)
    return np.repeat(np.where(black, 0, 255).astype(np.uint8), pixels.shape[3], axis=3)


def corrupted(pixels: Pixels, kind: str) -> Pixels:
    return np.stack([corrupt(one, kind, 3, 1, image_id=str(i)) for i, one in enumerate(pixels)])


def longer(some: Labels, length: int, number: int) -> Labels:
    """Images in random order, again and again, each time in another one."""
    turns = [generator(number, Purpose.SHUFFLES, turn).permutation(some) for turn in range(-(-length // len(some)))]
    return np.concatenate(turns)[:length]


def bundled_streams(pixels: Pixels, labels: Labels, names: tuple[str, ...], length: int) -> Iterator[Stream]:
    """All classes, a few, and one only; drawings; with and without a corruption."""
    everything = np.arange(len(labels))
    contents = {"all classes": everything}
    for few in (["T-shirt/top", "Pullover"], ["Trouser"], ["Shirt"], ["Bag"]):
        contents[f"only {' and '.join(few)}"] = np.flatnonzero(np.isin(labels, [names.index(each) for each in few]))
    for number, (name, some) in enumerate(contents.items()):
        chosen = longer(some, length, number)
        yield name, pixels[chosen], labels[chosen]
    chosen = longer(everything, length, 9)
    yield "edges of all classes", edges(pixels[chosen]), labels[chosen]
    yield "silhouettes of all classes", silhouettes(pixels[chosen]), labels[chosen]
    for kind in ("fog", "gaussian_noise"):
        for name in ("all classes", "only Shirt"):
            some = longer(contents[name], length, 10)
            yield f"{name}, {kind}", corrupted(pixels[some], kind), labels[some]


def imagenet_streams(images: ImageSet, size: tuple[int, int], length: int) -> Iterator[Stream]:
    """Mixed content, groups of classes, one class only, drawings, and a corruption."""
    labels = np.array([one.label for one in images.samples])
    groups = {name: np.flatnonzero(np.isin(labels, parse(TEXT[name]))) for name in ("fish", "dogs")}
    picks = {"all classes": np.arange(len(labels)), **{f"only {name}": some for name, some in groups.items()}}
    commonest = np.bincount(labels).argmax()
    picks[f"one class ({images.classes[commonest]})"] = np.flatnonzero(labels == commonest)
    kept: dict[str, tuple[Pixels, Labels]] = {}
    for number, (name, some) in enumerate(picks.items()):
        chosen = longer(some, length, number)
        kept[name] = np.stack([prepare(images, images.read(int(i)), size, 3) for i in chosen]), labels[chosen]
        yield name, *kept[name]
    pixels, right = kept["all classes"]
    yield "edges of all classes", edges(pixels), right
    yield "all classes, fog", corrupted(pixels, "fog"), right


def run(adapter: fozo.Method[Any], reference: fozo.MonitorReference, stream: Stream, shadow: float) -> list[object]:
    """One row: accuracies in points, where the guard fell back, and what it thinks of the gain at the end."""
    name, pixels, labels = stream
    adapter.reset()
    monitor = fozo.Monitor(adapter, reference, shadow=shadow, guard="on")
    listener = Listener(monitor)
    adapter.attach(listener)
    plain, guarded, fallen, first = list[Floats](), list[Floats](), 0, None
    for start in range(0, len(pixels), BATCH):
        images = adapter.engine.spec.normalise(pixels[start : start + BATCH])
        plain.append(adapter.engine.run(adapter.engine.check(images))[Tap.LOGITS][0])
        guarded.append(adapter(images))
        if monitor.status.guarding:
            fallen += len(images)
            first = start + 1 if first is None else first
    shares = [
        100 * float((np.concatenate(x).argmax(axis=1) == labels).mean()) for x in (plain, listener.logits, guarded)
    ]
    row: list[object] = [adapter.info.name, name, len(labels), *(f"{share:.1f}" for share in shares)]
    return [
        *row,
        f"{shares[2] - shares[1]:+.1f}",
        f"{100 * fallen / len(labels):.0f} %",
        "" if first is None else first,
    ]


def report(given: argparse.Namespace) -> Iterator[str]:
    bundled = given.images is None
    if bundled:
        engine, images = fozo.load_engine(sample.MODELS["float32"], threads=1), fozo.open_images(sample.IMAGES)
        order = generator(0, Purpose.SHUFFLES).permutation(len(images))
        pixels = np.stack([prepare(images, images.read(int(i)), engine.spec.image_size, 1) for i in order])
        labels = np.array([images.samples[i].label for i in order])
        pool = pixels[given.clean :], labels[given.clean :]
        streams = list(bundled_streams(*pool, images.classes, given.length))
    else:
        engine, images = fozo.load_engine(given.weights), fozo.open_images(given.images)
        clean, _ = clean_and_test(given.images, given.clean, 1)
        pixels = np.stack([prepare(clean, clean.read(i), engine.spec.image_size, 3) for i in range(given.clean)])
        labels = np.array([one.label for one in clean.samples])
        used = {one.path for one in clean.samples}
        rest = images.select([one.path for one in images.samples if one.path not in used])
        streams = list(imagenet_streams(rest, engine.spec.image_size, given.length))
    pixels, labels = pixels[: given.clean], labels[: given.clean]
    parts = np.array_split(pixels, max(1, given.clean // 50))
    source = fozo.calibrate(engine, (engine.spec.normalise(part) for part in parts))
    yield f"# The guard on streams built to hurt: {engine.spec.name}"
    yield ""
    yield (
        f"Made by `python -m benchmarks.guard`. Reference of {given.clean} clean images, {given.sample} of them for "
        f"each corruption and severity; streams of {given.length} images in batches of {BATCH} (where there are fewer, "
        f"again and again, each time in another order), shadow {given.shadow:g}. Accuracies in points. *Changed*: with "
        f"the guard less without it. *align (absurd)* is Align with all strengths at 1 and content taken for drift."
    )
    yield ""
    rows = []
    for name in given.methods.split(","):
        options: dict[str, Any] = ABSURD if name == "absurd" else {}
        adapter = fozo.create("align" if name == "absurd" else name, engine, source, **options)
        reference = fozo.MonitorReference.collect(adapter, pixels, labels, sample=given.sample)
        for stream in streams:
            row = run(adapter, reference, stream, given.shadow)
            row[0] = "align (absurd)" if name == "absurd" else row[0]
            print(*row, flush=True)
            rows.append(row)
    heads = [
        "method",
        "stream",
        "images",
        "plain",
        "adapted",
        "with the guard",
        "changed",
        "fell back",
        "first at image",
    ]
    yield from table(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, nargs="?", help="ImageNet's validation images; none for the bundled model")
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("--methods", default="align,absurd,fozo,foa")
    parser.add_argument("--clean", type=int, default=300, help="images of the reference")
    parser.add_argument("--sample", type=int, default=20, help="of them for each corruption and severity")
    parser.add_argument("--length", type=int, default=320, help="images of a stream")
    parser.add_argument("--shadow", type=float, default=0.25)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    text = "\n".join(report(given)).rstrip() + "\n"
    if given.out is None:
        print(text)
        return
    with atomic_write(given.out) as stream:
        stream.write(text.encode())


if __name__ == "__main__":
    main()
