"""How many clean images Align needs: mixed ones of all classes, and own ones of the camera.

    python -m benchmarks.calibration WEIGHTS IMAGES [--images 48] [--clean 2000] [--seed 0]
    python -m benchmarks.calibration WEIGHTS IMAGES --images 118 --clean 512 --own 8,32,128 --cameras dogs

WEIGHTS is a file that ``fozo.load_engine`` takes, IMAGES a folder of ImageNet validation images. Prints two tables in
Markdown:

* Mixed images: Align by the number of clean images, on a stream of all classes alike and on narrow streams of one group
  of classes each (``TUNING`` of fozo/data/groups.py). Each begins afresh and goes through clean images and the four
  extra corruptions.
* Own images: statistics of a few clean images of the stream's own group alone, blended into those of mixed images, and
  the mixed ones alone. Every domain begins afresh. Own images are neither in the stream nor among the mixed ones.

With ``--own`` only the second is made, for these numbers of own images.

Half of each class is kept for calibration, the other half for streams. Differences are to the unadapted model on the
same images. Their intervals are of 95 %, over images: the domains of one image are averaged first, for an image that is
hard in fog is hard in snow.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from rich.console import Console
from rich.progress import track

import fozo
from benchmarks.common import clean_batches, markdown
from fozo.core.statistics import SourceStatistics
from fozo.data.corruptions import EXTRA_KINDS
from fozo.data.groups import GROUPS, TUNING
from fozo.data.scenarios import Continual, Episodic, Scenario
from fozo.data.sets import ImageSet, Sample
from fozo.data.sets.base import shuffled
from fozo.data.streams import LabelledBatch, Stream
from fozo.methods.registry import AnyMethod
from fozo.types import Array, Engine, Floats

MIXED = (64, 128, 256, 512, 1000, 2000)
OWN = (8, 16, 32, 64, 128, 256, 512)
BLENDED = 512
"""Mixed images that own ones are blended into."""
SEVERITY = 3
BATCH = 16
BASE = "NoAdapt"
CAMERAS: Mapping[str, Collection[int]] = {"dogs": GROUPS["dogs"], "animals": range(398)}
MIXED_SCENARIO = Continual(kinds=("clean", *EXTRA_KINDS), severity=SEVERITY)
OWN_SCENARIO = Episodic(kinds=("clean", "gaussian_noise", "fog", "defocus_blur", "brightness"), severity=SEVERITY)

Hits: TypeAlias = Array
"""1 where an image was recognised, else 0: ``[domains, images]``."""
Predictor: TypeAlias = Callable[[LabelledBatch], Floats]


def halves(images: ImageSet, seed: int) -> tuple[list[Sample], list[Sample]]:
    """Split every class: images to calibrate on, and images to stream.

    Both are in random order; in streams classes take turns, so that the first few are of all classes alike.
    """
    seen, total = Counter[int](), Counter(images.labels.tolist())
    clean, rest = [], []
    for index in shuffled(len(images), seed):
        sample = images.samples[int(index)]
        turn = seen[sample.label]
        seen[sample.label] += 1
        if turn < total[sample.label] // 2:
            clean.append(sample)
        else:
            rest.append((turn, sample))
    return clean, [sample for _, sample in sorted(rest, key=lambda each: each[0])]


def of_classes(samples: Iterable[Sample], classes: Collection[int]) -> list[Sample]:
    wanted = set(classes)
    return [sample for sample in samples if sample.label in wanted]


def subset(images: ImageSet, samples: Sequence[Sample]) -> ImageSet:
    return images.select([sample.path for sample in samples])


def instalments(
    engine: Engine, images: ImageSet, samples: Sequence[Sample], sizes: Sequence[int], title: str
) -> dict[int, SourceStatistics]:
    """Statistics of the first n samples for each size, as far as there are so many: each goes on from the last."""
    found: dict[int, SourceStatistics] = {}
    gathered, done = None, 0
    for size in track(sorted({min(size, len(samples)) for size in sizes}), title, console=Console(stderr=True)):
        part = fozo.calibrate(engine, clean_batches(subset(images, samples[done:size]), engine.spec))
        gathered = found[size] = part if gathered is None else gathered.merge(part)
        done = size
    return found


def adapting(method: AnyMethod) -> Predictor:
    """Predict with a method that every stream, and every segment that says so, finds as new."""

    def predict(batch: LabelledBatch) -> Floats:
        if batch.reset or batch.index == 0:
            method.reset()
        return method(batch.images)

    return predict


def play(predictors: Mapping[str, Predictor], stream: Stream, title: str) -> dict[str, Hits]:
    """Give every batch to all of them in turn, so that it is read and corrupted once."""
    domains = [segment.name for segment in stream.segments]
    hits = {name: np.zeros((len(domains), len(stream.source.images))) for name in predictors}
    for batch in track(stream.batches(), title, total=len(stream), console=Console(stderr=True)):
        for name, predict in predictors.items():
            right = predict(batch).argmax(axis=1) == batch.labels
            hits[name][domains.index(batch.domain), batch.samples] = right
    return hits


def contenders(engine: Engine, sources: Mapping[str, SourceStatistics]) -> dict[str, Predictor]:
    """The unadapted model, and Align with each of the sources."""
    methods = {name: adapting(fozo.Align(engine, source)) for name, source in sources.items()}
    return {BASE: adapting(fozo.NoAdapt(engine)), **methods}


def paired(ours: Hits, theirs: Hits) -> tuple[float, float]:
    """Difference in points, and half the width of its interval."""
    each = 100 * (ours - theirs).mean(axis=0)
    return float(each.mean()), float(1.96 * each.std(ddof=1) / np.sqrt(len(each)))


def cell(ours: Hits, theirs: Hits) -> str:
    return f"{100 * ours.mean():.2f} ({written(ours, theirs)})"


def written(ours: Hits, theirs: Hits) -> str:
    gain, within = paired(ours, theirs)
    return f"{gain:+.2f} ± {within:.2f}"


class Bench:
    """A model, images and their halves: what both tables are made from."""

    def __init__(self, engine: Engine, images: ImageSet, most: int, seed: int) -> None:
        self.engine, self.images, self.most, self.seed = engine, images, most, seed
        self.clean, self.rest = halves(images, seed)
        self.mixed = instalments(engine, images, self.clean[:most], MIXED, "statistics of mixed images")

    def play(
        self, predictors: Mapping[str, Predictor], samples: Sequence[Sample], scenario: Scenario, title: str
    ) -> dict[str, Hits]:
        streamed = subset(self.images, samples)
        stream = fozo.Stream(streamed, self.engine.spec, scenario, batch_size=BATCH, seed=self.seed)
        return play(predictors, stream, title)

    def mixed_table(self, count: int) -> str:
        """``count`` images of each group and domain; of all classes, as many as the groups have together."""
        predictors = contenders(self.engine, {f"{n} images": source for n, source in self.mixed.items()})
        chosen = {name: of_classes(self.rest, GROUPS[name])[:count] for name in TUNING}
        alike = self.rest[: sum(map(len, chosen.values()))]
        balanced = self.play(predictors, alike, MIXED_SCENARIO, "all classes")
        groups = [self.play(predictors, samples, MIXED_SCENARIO, name) for name, samples in chosen.items()]
        narrow = {name: np.concatenate([hits[name] for hits in groups], axis=1) for name in predictors}
        kinds = (balanced, narrow)
        rows = [[BASE, *(f"{100 * hits[BASE].mean():.2f}" for hits in kinds)]]
        rows += [[name, *(cell(hits[name], hits[BASE]) for hits in kinds)] for name in predictors if name != BASE]
        heads = [f"Align, less {BASE} (95 %)", *(f"{words}, {hits[BASE].shape[1]} images" for words, hits in zip(
            ("all classes", f"{len(TUNING)} narrow groups"), kinds, strict=True))]  # fmt: skip
        return markdown(heads, rows)

    def own_table(self, count: int, sizes: Sequence[int] = OWN, cameras: Collection[str] = tuple(CAMERAS)) -> str:
        """``count`` images of each group and domain."""
        size = max(n for n in self.mixed if n <= max(BLENDED, min(self.mixed)))
        mixed, rows, behind = self.mixed[size], list[list[object]](), list[tuple[float, str]]()
        for camera in cameras:
            classes = CAMERAS[camera]
            streamed = of_classes(self.rest, classes)[:count]
            left = of_classes([*self.clean[size:], *(each for each in self.rest if each not in streamed)], classes)
            title = f"statistics of {camera}"
            own = instalments(self.engine, self.images, left[: self.most], sizes, title)
            sources = {"mixed": mixed, **{f"own {n}": source for n, source in own.items()}}
            sources |= {f"blend {n}": mixed.blend(source) for n, source in own.items()}
            hits = self.play(contenders(self.engine, sources), streamed, OWN_SCENARIO, camera)
            base = hits[BASE]
            plain = [camera, f"{100 * base.mean():.2f}"]
            rows.append([*plain, 0, "-", "-", cell(hits["mixed"], base)])
            for n in own:
                alone, blend = hits[f"own {n}"], hits[f"blend {n}"]
                rows.append([*plain, n, cell(alone, base), cell(blend, base), "as above"])
                better = max((alone, hits["mixed"]), key=np.mean)
                behind.append((-paired(blend, better)[0], f"{camera}, {n} own images: {written(blend, better)}"))
        heads = ["stream", BASE, "own images", "own alone", f"blended into {size} mixed", f"{size} mixed alone"]
        worst = max(behind)
        return f"{markdown(heads, rows)}\n\nBlend less the better of the two, where it is worst: {worst[1]} points."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", type=Path)
    parser.add_argument("folder", type=Path, metavar="IMAGES")
    parser.add_argument("--images", type=int, default=48, help="of each group and domain; twice as many for own images")
    parser.add_argument("--clean", type=int, default=MIXED[-1], help="images to calibrate on, at most")
    parser.add_argument("--seed", type=int, default=0, help="of which images are drawn, and their order")
    parser.add_argument("--own", help="numbers of own images, joined by commas: then only the second table is made")
    parser.add_argument("--cameras", default=",".join(CAMERAS), help="of the second table, joined by commas")
    a = parser.parse_args()
    sizes, cameras = [int(text) for text in (a.own or "").split(",") if text], a.cameras.split(",")
    engine = fozo.load_engine(a.weights)
    bench = Bench(engine, fozo.open_images(a.folder), a.clean, a.seed)
    if not sizes:
        print(f"### Mixed clean images\n\n{bench.mixed_table(a.images)}\n", flush=True)
    print(f"### Own clean images\n\n{bench.own_table(2 * a.images, sizes or OWN, cameras)}\n", flush=True)
    print(f"{engine.spec.name}, severity {SEVERITY}, batches of {BATCH}, seed {a.seed}")


if __name__ == "__main__":
    main()
