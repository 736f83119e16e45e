"""Front ends before a frozen detector: YOLOX-nano on COCO128 with made drift, and on real weather and low light.

    python -m benchmarks.detectors WEIGHTS DATA [--arms plain clahe equalise:strength=0.5 ...]
    python -m benchmarks.detectors --page

WEIGHTS is yolox_nano.onnx, or the node_modules folder of benchmarks/ssd.mjs for a second detector (--out
results/ssd.csv); DATA a folder with ``coco128``, ``dawn/{fog,rain,sand,snow}`` and ``exdark``: images, each
with a ``.txt`` of ``class x y width height`` rows relative to the image. An arm is a method of fozo by name, with
options if you like. 64 images of COCO128 are the clean ones, the other 62 are tested, clear and corrupted at severity
3. Each front end is new for each domain and sees its images once, in the order of their names: it is causal. What
keeps statistics of domains gets batches of 8 squares, in which the letterbox holds the mirrored picture and is put
back before the detector; static front ends get the picture alone.

AP50 is of cars on DAWN and the mean over the classes elsewhere. Intervals are paired: all arms are evaluated on the
same bootstrap draws of images. DAWN and ExDark are also evaluated by halves: choose constants on the first, and read
the second ("held out") once they are fixed. The records go to results/detectors.csv; ``--page`` writes the tables of
docs/detectors.md from these, from results/ssd.csv and from what benchmarks/fronts.py wrote. Two minutes on one core for
six arms.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import fozo
from benchmarks.common import markdown, refusals
from benchmarks.detection import (
    SIDE,
    Array,
    Boxes,
    Ints,
    Pixels,
    Ssd,
    Yolox,
    average_precision,
    drawn,
    letterboxed,
    read_labelled,
)
from fozo.bench.gains import signed
from fozo.cli.options import read_options
from fozo.data.corruptions import corrupt
from fozo.engines.blackbox import black_box
from fozo.errors import FozoError
from fozo.types import Floats

ROOT = Path(__file__).parents[1]
RECORDS, SECOND, STUDIES = (ROOT / "results" / f"{name}.csv" for name in ("detectors", "ssd", "fronts"))
PAGE = ROOT / "docs" / "detectors.md"
ARMS = ("plain", "autolevels", "histeq", "greyworld", "clahe", "equalise")
NAMES = {"plain": "no front end", "autolevels": "auto levels", "histeq": "histogram eq.",
         "greyworld": "grey world", "clahe": "CLAHE", "equalise": "`equalise`", "align": "Align",
         "tokens": "`tokens`", "detector": "`detector`", "chosen": "chosen", "labels": "chosen by labels",
         "passes": "passes an image"}  # fmt: skip
CLEAN, BATCH, DRAWS, SEVERITY = 64, 8, 500, 3
MADE = ("fog", "contrast", "defocus_blur", "gaussian_noise")
WEATHER = ("fog", "rain", "sand", "snow")
CAR = (2,)
HALVES, FEWEST = ("all", "first half", "held out"), 14  # FEWEST: images of a kind of light that has a column
MEAN, MOST_PASSES = "mean of real domains", 1.1  # a choice may cost a tenth of a pass an image
SMOOTH, RAIN = "96 smoothest of 1000", "real rain"  # streams of fronts.py's study of narrow content
FIELDS = ("arm", "domain", "part", "images", "ap50", "half_width", "against_plain", "plain_half_width", "against_clahe",
          "clahe_half_width")  # fmt: skip
Rows = Sequence[Mapping[str, str]]
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
    tested = [Domain("clear", coco[CLEAN:]), *(Domain(f"made {kind}", coco[CLEAN:], kind) for kind in MADE)]
    tested += [Domain(f"real {kind}", images(f"dawn/{kind}"), only=CAR) for kind in WEATHER]
    return [read_labelled(path)[0] for path in coco[:CLEAN]], [*tested, Domain("low light", images("exdark"))]


def mirrored(picture: Pixels) -> Pixels:
    """The square whose letterbox is filled with the mirrored picture: no border, and one size for all."""
    return np.pad(picture, ((0, SIDE - picture.shape[0]), (0, SIDE - picture.shape[1]), (0, 0)), mode="symmetric")


class FrontEnd:
    """An arm: pictures in, boxes out."""

    def __init__(self, arm: str, detector: Yolox | Ssd, clean: list[Pixels]) -> None:
        self.detector, self.shapes = detector, list[tuple[int, ...]]()
        name, _, options = arm.partition(":")
        self.name, self.options = name, dict[str, Any](read_options(options.split(",") if options else []))
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
            some, true = [boxes[i] for i in chosen], [truth[i] for i in chosen]
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


def difference(row: Mapping[str, str], value: str = "difference", width: str = "half_width") -> str:
    """Write a difference with half of its interval: bold where it is a gain, italic where a loss, if significant."""
    text = f"{signed(float(row[value]))} ± {float(row[width]):.1f}"
    return {1: f"**{text}**", -1: f"*{text}*", 0: text}[significant(row, value, width)]


def significant(row: Mapping[str, str], value: str = "difference", width: str = "half_width") -> int:
    """1 for a gain, -1 for a loss, and 0 where the interval of the difference holds zero."""
    gain = float(row[value])
    return int(np.sign(gain)) if abs(gain) > float(row[width]) else 0


def table(rows: Rows, lines: Sequence[tuple[str, str]], arms: Sequence[str]) -> str:
    """A line for each domain and part: AP50 without a front end, and every arm's difference to it."""
    cells = {(row["arm"], row["domain"], row["part"]): row for row in rows}
    body = []
    for domain, part in lines:
        plain = cells["plain", domain, part]
        name = domain.replace("_blur", "").replace("gaussian_", "").removesuffix(" domains")
        name = name.removeprefix("made ").removeprefix("real ")
        name += ", held out" if part == "held out" else ""
        name += f" ({plain['images']})" if domain.startswith(("real", "low")) else ""
        others = (cells[arm, domain, part] for arm in arms)
        gains = (difference(row, "against_plain", "plain_half_width") for row in others)
        body.append([name, f"{float(plain['ap50']):.1f}", *gains])
    return markdown(["", *(NAMES[arm] for arm in ("plain", *arms))], body)


def narrow_table(rows: Rows) -> str:
    """Groups of classes on average and the one changed most, the smoothest images, and real rain."""
    values = {(row["domain"], row["arm"]): float(row["value"]) for row in rows}
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    groups = [name for name in domains if name not in (SMOOTH, RAIN)]
    most = max(groups, key=lambda name: values[name, "changed"])
    lines = {f"mean of {len(groups)} groups": groups, most: [most], SMOOTH: [SMOOTH], RAIN: [RAIN]}
    arms = {"changed": "changed, %", "largest": "largest change", "distance": "distance"}
    body = [
        [name, *(f"{np.mean([values[each, arm] for each in some]):.1f}" for arm in arms)]
        for name, some in lines.items()
    ]
    return markdown(["", *arms.values()], body)


def choice_table(rows: Rows) -> str:
    """A column for each model: fixed candidates, the choice, and its difference to the best of them; and a verdict."""
    cells = {(row["model"], row["arm"]): row for row in rows if row["domain"] == "mean"}
    models = list(dict.fromkeys(row["model"] for row in rows))
    arms = ("plain", "tokens", "detector", "chosen", "labels", "passes")
    body = [[NAMES[arm], *(f"{float(cells[model, arm]['value']):.2f}" for model in models)] for arm in arms]
    body.insert(4, ["less the best fixed", *(difference(cells[model, "chosen"]) for model in models)])
    verdicts: dict[str, list[str]] = {}
    for model in models:
        side, dear = significant(cells[model, "chosen"]), float(cells[model, "passes"]["value"]) > MOST_PASSES
        gain = f"gains, at more than {MOST_PASSES} passes," if dear else "earns its place"
        words = {1: gain, -1: "costs points", 0: "makes no significant difference"}[side]
        verdicts.setdefault(words, []).append(model)
    verdict = [f"The choice {words} for {', '.join(found)}." for words, found in verdicts.items()]
    return markdown(["", *models], body) + "\n\n" + " ".join(verdict)


def dark_table(rows: Rows) -> str:
    """Every model on all images, then all models by kind of light."""
    cells = {(row["model"], row["domain"], row["arm"]): row for row in rows}
    arms = [arm for arm in dict.fromkeys(row["arm"] for row in rows) if arm != "autolevels"]  # no column for it
    body = []
    for model, part in dict.fromkeys((row["model"], row["domain"]) for row in rows):
        if (model == "all models") != (part == "all"):
            plain, *others = (cells[model, part, arm] for arm in arms)
            name = f"{model if part == 'all' else part} ({plain['images']})"
            body.append([name, f"{float(plain['value']):.1f}", *map(difference, others)])
    return markdown(["", *(NAMES[arm] for arm in arms)], body)


def tables(rows: Rows, second: Rows, studies: Rows) -> dict[str, str]:
    """The tables of the page by the name of their place in it."""
    real = [(name, "all") for name in (*(f"real {kind}" for kind in WEATHER), "low light", MEAN)]
    made = [(name, "all") for name in ("clear", *(f"made {kind}" for kind in MADE))]
    held_out, main = (MEAN, "held out"), ("clahe", "equalise")
    found = {
        "made": table(rows, made, main),
        "real": table(rows, [*real, held_out], main),
        "others": table(rows, [made[0], made[2], real[-1]], ("autolevels", "histeq", "greyworld")),
        "second": table(second, [made[0], *real], main),
    }
    writers = {"narrow": narrow_table, "choice": choice_table, "dark": dark_table}
    studied = {name: [row for row in studies if row["study"] == name] for name in writers}
    return found | {name: write(studied[name]) for name, write in writers.items() if studied[name]}


def page_tables() -> dict[str, str]:
    return tables(*(read_records(path) for path in (RECORDS, SECOND, STUDIES)))


def write_page(found: Mapping[str, str], page: str) -> str:
    """Put tables between their marks in the page."""
    for name, text in found.items():
        before, begin, rest = page.partition(f"<!-- table: {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not begin or not end:
            raise FozoError(f"docs/detectors.md has no place for the table {name!r}")
        page = f"{before}{begin}\n{text}\n\n{end}{after}"
    return page


def read_records(path: Path = RECORDS) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_records(rows: Iterable[Mapping[str, str]], fields: Sequence[str], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path, nargs="?")
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), metavar="NAME[:OPTION=VALUE,...]")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RECORDS, help="where the records go")
    parser.add_argument("--page", action="store_true", help="write docs/detectors.md from the records")
    options = parser.parse_args()
    with refusals("detectors"):
        if options.page:
            PAGE.write_text(write_page(page_tables(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
            return
        if options.data is None:
            raise FozoError("give the weights and the folder of images, or --page")
        clean, tested = domains(options.data)
        detector = Ssd(options.weights) if options.weights.is_dir() else Yolox(options.weights, options.threads)
        found = {arm: evaluate(FrontEnd(arm, detector, clean), tested) for arm in options.arms}
        sizes = {f"{domain.name}, {part}": len(chosen) for domain in tested for part, chosen in domain.parts()}
        write_records(records(found, sizes), FIELDS, options.out)


if __name__ == "__main__":
    main()
