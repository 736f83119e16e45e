"""A long slow walk between corruptions, after CCC (Press et al., NeurIPS 2023): accuracy along it, as a CSV file.

    python -m benchmarks.walk [--out results/walk.csv]
    python -m benchmarks.walk --model WEIGHTS --images DIR --steps 72

One corruption fades while the next swells: severities (5, 0), (4, 1), ... (0, 5), through all fifteen, both applied to
each image. Nothing is reset. The bundled model sees ``--steps`` 300 images a step, 21,000 in all; ImageNet's classes
take 72 steps for 5,040. CCC calibrates its path to one difficulty; this one is not calibrated. A model's lines take the
place of those that it had.
"""

import argparse
import csv
import io
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

import fozo
from benchmarks.common import clean_and_test, clean_batches, refusals
from fozo.data import sample
from fozo.data.corruptions import KINDS, corrupt
from fozo.data.sets import ImageSet
from fozo.data.streams import prepare
from fozo.io import atomic_write
from fozo.types import Engine, Floats

LEVELS = (5, 4, 3, 2, 1)
"""Of the corruption that fades; the other has 5 less it. The last pair's end is not shown: (5, 0) of the next is it."""
BATCH = 50
HEADS = ("model", "method", "step", "fading", "severity", "swelling", "severity_of_it", "images", "correct")
Step: TypeAlias = tuple[str, int, str, int]
Lines: TypeAlias = Sequence[tuple[str | int, ...]]


def steps() -> list[Step]:
    return [(old, level, new, 5 - level) for old, new in pairwise(KINDS) for level in LEVELS]


def walk(
    images: ImageSet, engine: Engine, count: int
) -> Iterator[tuple[Step, npt.NDArray[np.float32], npt.NDArray[np.int64]]]:
    """Batches of every step, with the next images of the set for each; after the last one it is shuffled again."""
    spec, generator = engine.spec, np.random.default_rng(0)
    order = np.concatenate([generator.permutation(len(images)) for _ in range(1 + count * 70 // len(images))])
    for number, step in enumerate(steps()):
        old, fading, new, swelling = step
        drawn = order[number * count : (number + 1) * count]
        for start in range(0, count, BATCH):
            some = drawn[start : start + BATCH]
            pixels = []
            for index in some:
                one = prepare(images, images.read(int(index)), spec.image_size, spec.channels)
                for kind, severity in ((old, fading), (new, swelling)):
                    one = corrupt(one, kind, severity, number, image_id=str(index)) if severity else one
                pixels.append(one)
            yield step, spec.normalise(np.stack(pixels)), np.array([images.samples[int(i)].label for i in some])


def run(images: ImageSet, engine: Engine, source: fozo.SourceStatistics, methods: Sequence[str], count: int) -> Lines:
    """One pass over the walk for all methods, which see the same batches; lines of the CSV without the model."""
    made = {name: fozo.create(name, engine, source) for name in methods}
    correct: dict[tuple[str, int], int] = {}
    order = steps()
    for step, batch, labels in walk(images, engine, count):
        for name, method in made.items():
            key = (name, order.index(step))
            correct[key] = correct.get(key, 0) + int((method(batch).argmax(axis=1) == labels).sum())
    return [(name, i, *step, count, correct[name, i]) for name in made for i, step in enumerate(order)]


def write(path: Path, model: str, lines: Lines) -> None:
    """Put a model's lines in the place of those that it had."""
    others = []
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            others = [line for line in list(csv.reader(file))[1:] if line[0] != model]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([HEADS, *others, *((model, *line) for line in lines)])
    with atomic_write(path) as file:
        file.write(text.getvalue().encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--images", type=Path)
    parser.add_argument("--steps", type=int, default=300, help="images of each of the 70 steps")
    parser.add_argument("--methods", default="noadapt,align,equalise,neo,t3a,lame,fozo")
    parser.add_argument("--out", type=Path, default=Path("results/walk.csv"))
    given = parser.parse_args()
    with refusals("walk"):
        if given.model is None:
            model = sample.MODELS["float32"]
            engine, images, source = fozo.load_engine(model), fozo.open_images(sample.IMAGES), sample.source(model)
        else:
            engine = fozo.load_engine(given.model, threads=1)
            enough = min(70 * given.steps, len(fozo.open_images(given.images)) - 512)
            clean, images = clean_and_test(given.images, 512, enough)
            source = fozo.calibrate(engine, _as_floats(clean, engine))
        lines = run(images, engine, source, given.methods.split(","), given.steps)
        write(given.out, "bundled" if given.model is None else given.model.stem, lines)


def _as_floats(clean: ImageSet, engine: Engine) -> Iterator[Floats]:
    return clean_batches(clean, engine.spec)


if __name__ == "__main__":
    main()
