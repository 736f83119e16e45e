"""Front ends before a frozen detector: YOLOX-nano on COCO128 with made drift, and on real weather and low light.

    python -m benchmarks.detectors WEIGHTS DATA [--arms plain clahe equalise:strength=0.5 ...]

WEIGHTS is yolox_nano.onnx; DATA a folder with ``coco128``, ``dawn/{fog,rain,sand,snow}`` and ``exdark``: images, each
with a ``.txt`` of ``class x y width height`` rows relative to the image. An arm is a method of fozo by name, with
options if you like. 64 images of COCO128 are the clean ones, the other 62 are tested, clear and corrupted at severity
3. Each front end is new for each domain and sees its images once, in the order of their names: it is causal. What
keeps statistics of domains gets batches of 8 squares, in which the letterbox holds the mirrored picture and is put
back before the detector; static front ends get the picture alone.

AP50 is of cars on DAWN and the mean over the classes elsewhere. Intervals are paired: all arms are evaluated on the
same bootstrap draws of images. DAWN and ExDark are also evaluated by halves: choose constants on the first, and read
the second ("held out") once they are fixed. The records go to results/detectors.csv, of
which benchmarks/tables.py makes the tables of docs/detectors.md. Two minutes on one core for six arms.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import fozo
from benchmarks.common import refusals
from benchmarks.detection import (
    SIDE,
    Array,
    Boxes,
    Ints,
    Pixels,
    Yolox,
    average_precision,
    drawn,
    letterboxed,
    read_labelled,
)
from fozo.cli.options import read_options
from fozo.data.corruptions import corrupt
from fozo.engines.blackbox import black_box
from fozo.errors import FozoError
from fozo.types import Floats

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "results" / "detectors.csv"
ARMS = ("plain", "autolevels", "histeq", "greyworld", "clahe", "equalise")
CLEAN_IMAGES = 64
BATCH = 8
DRAWS = 500
SEVERITY = 3
MADE = ("fog", "contrast", "defocus_blur", "gaussian_noise")
WEATHER = ("fog", "rain", "sand", "snow")
CAR = (2,)
HALVES = ("all", "first half", "held out")
MEAN = "mean of real domains"
FIELDS = ("arm", "domain", "part", "images", "ap50", "half_width", "against_plain", "plain_half_width", "against_clahe",
          "clahe_half_width")  # fmt: skip
Draws = Mapping[str, Array]  # AP50 of "domain, part": first of all its images, then of every draw


@dataclass(frozen=True)
class Domain:
    """Images of one condition, in order, with their true boxes."""

    name: str
    paths: tuple[Path, ...]
    corruption: str | None = None
    only: tuple[int, ...] | None = None

    @cached_property
    def samples(self) -> tuple[list[Pixels], list[Boxes]]:
        pictures, truth = zip(*map(read_labelled, self.paths), strict=True)
        if self.corruption is not None:
            named = zip(pictures, self.paths, strict=True)
            pictures = tuple(corrupt(each, self.corruption, SEVERITY, 0, image_id=path.stem) for each, path in named)
        return list(pictures), list(truth)

    def parts(self) -> Iterator[tuple[str, Ints]]:
        """Names and images of what is evaluated: all, both halves of real images, and kinds of light."""
        everything = np.arange(len(self.paths))
        yield "all", everything
        if self.name in (*(f"real {kind}" for kind in WEATHER), "low light"):
            # ExDark is sorted by class, so of it every other image is held out.
            first = everything[: len(everything) // 2] if self.only else everything[::2]
            yield from (("first half", first), ("held out", np.setdiff1d(everything, first)))
        if self.name == "low light":
            with (self.paths[0].parent / "index.csv").open(newline="") as file:
                lights = {row["image"]: row["light"] for row in csv.DictReader(file)}
            kinds = np.array([lights[path.stem] for path in self.paths])
            yield from ((kind, np.flatnonzero(kinds == kind)) for kind in np.unique(kinds))


def domains(data: Path) -> tuple[list[Pixels], list[Domain]]:
    """The clean pictures, and everything that is tested."""

    def images(folder: str) -> tuple[Path, ...]:
        found = tuple(sorted((data / folder).glob("*.jpg")))
        if not found:
            raise FozoError(f"{data / folder} holds no .jpg images; give the folder that has coco128, dawn and exdark")
        return found

    coco = images("coco128")
    tested = [
        Domain("clear", coco[CLEAN_IMAGES:]),
        *(Domain(f"made {kind}", coco[CLEAN_IMAGES:], kind) for kind in MADE),
    ]
    tested += [Domain(f"real {kind}", images(f"dawn/{kind}"), only=CAR) for kind in WEATHER]
    return [read_labelled(path)[0] for path in coco[:CLEAN_IMAGES]], [*tested, Domain("low light", images("exdark"))]


def mirrored(picture: Pixels) -> Pixels:
    """The square whose letterbox is filled with the mirrored picture: no border, and one size for all."""
    return np.pad(picture, ((0, SIDE - picture.shape[0]), (0, SIDE - picture.shape[1]), (0, 0)), mode="symmetric")


class FrontEnd:
    """An arm: pictures in, boxes out."""

    def __init__(self, arm: str, detector: Yolox, clean: list[Pixels]) -> None:
        self.detector = detector
        self.shapes: list[tuple[int, ...]] = []
        name, _, options = arm.partition(":")
        self.name = name
        self.options: dict[str, Any] = read_options(options.split(",") if options else [])
        self.static = name == "plain" or not fozo.list_methods()[name].needs
        self.source = None
        if not self.static:
            self.source = fozo.calibrate(self.engine(), [normalised(map(mirrored, clean))])

    def engine(self) -> Any:  # noqa: ANN401 - a black box, one for each size
        return black_box(self.detect, name="yolox", mean=0.0, std=1.0, image_size=None if self.static else SIDE)

    def detect(self, images: Floats) -> list[Boxes]:
        pixels = np.rint(images.transpose(0, 2, 3, 1) * 255).astype(np.uint8)
        pictures = (image[: shape[0], : shape[1]] for image, shape in zip(pixels, self.shapes, strict=True))
        return self.detector(np.stack([letterboxed(picture) for picture in pictures]))

    def run(self, pictures: list[Pixels]) -> list[Boxes]:
        """See one domain, new to it, batch by batch."""
        found: list[Boxes] = []
        method: Any = None
        size = 1 if self.static else BATCH
        for start in range(0, len(pictures), size):
            some = pictures[start : start + size]
            self.shapes = [picture.shape for picture in some]
            images = normalised(some if self.static else map(mirrored, some))
            if self.name == "plain":
                found += self.detect(images)
                continue
            if method is None or self.static:  # which remembers nothing, and has another size for each picture
                method = fozo.create(self.name, self.engine(), self.source, **self.options)
            found += method(images)
        return found


def normalised(pictures: Any) -> Floats:  # noqa: ANN401 - an iterable of pictures of one size
    batch: Floats = np.stack(list(pictures)).transpose(0, 3, 1, 2).astype(np.float32) / 255
    return batch


def evaluate(front: FrontEnd, tested: list[Domain]) -> Draws:
    """AP50 of every domain and part; draws are the same for every arm."""
    found: dict[str, Array] = {}
    for domain in tested:
        pictures, truth = domain.samples
        boxes = front.run(pictures)
        for part, chosen in domain.parts():
            draws = drawn(len(chosen), DRAWS, seed=len(found))
            some = [boxes[i] for i in chosen]
            true = [truth[i] for i in chosen]
            classes = domain.only or sorted({int(label) for each in true for label in each.classes})
            found[f"{domain.name}, {part}"] = average_precision(some, true, classes, draws)
        print(f"{front.name}: {domain.name} {found[f'{domain.name}, all'][0]:.1f}", file=sys.stderr, flush=True)
    for part in HALVES:
        real = [
            value for key, value in found.items() if key.endswith(f", {part}") and not key.startswith(("clear", "made"))
        ]
        found[f"{MEAN}, {part}"] = np.mean(real, axis=0)
    return found


def records(found: Mapping[str, Draws], sizes: Mapping[str, int]) -> list[dict[str, str]]:
    """Rows of the CSV: AP50, and its differences with 95 % intervals of paired draws."""
    rows = []
    for arm, draws in found.items():
        for key, values in draws.items():
            row = dict(zip(("domain", "part"), key.split(", "), strict=True), arm=arm, images=str(sizes.get(key, "")))
            row |= {"ap50": f"{values[0]:.2f}", "half_width": f"{1.96 * np.nanstd(values[1:]):.2f}"}
            for other in ("plain", "clahe"):
                if other in found and other != arm:
                    difference = values - found[other][key]
                    row[f"against_{other}"] = f"{difference[0]:.2f}"
                    row[f"{other}_half_width"] = f"{1.96 * np.nanstd(difference[1:]):.2f}"
            rows.append(row)
    return rows


def write_records(rows: Iterable[Mapping[str, str]], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="NAME[:OPTION=VALUE,...]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RECORDS, help="where the records go")
    options = parser.parse_args()
    with refusals("detectors"):
        clean, tested = domains(options.data)
        detector = Yolox(options.weights, options.threads)
        found = {arm: evaluate(FrontEnd(arm, detector, clean), tested) for arm in options.arms}
        sizes = {f"{domain.name}, {part}": len(chosen) for domain in tested for part, chosen in domain.parts()}
        write_records(records(found, sizes), options.out)


if __name__ == "__main__":
    main()
