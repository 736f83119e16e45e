"""Studies of front ends: clean images of narrow content, a choice in each domain, and classifiers in low light.

    fozo export A.safetensors -o A.onnx  # B too: twice as fast as PyTorch on a processor
    python -m benchmarks.fronts narrow --images IMAGES --data DATA
    python -m benchmarks.fronts choice --images IMAGES --models A.onnx B.onnx --severity 5 --cache DIR
    python -m benchmarks.fronts choice --data DATA --detector yolox.onnx
    python -m benchmarks.fronts dark --images IMAGES --data DATA --models A.onnx B.onnx

IMAGES has ImageNet's validation images by class, DATA is the folder of benchmarks/detectors.py. Before classifiers the
first image of every class is the reference; only the smoothest are among these. Front ends start each domain new.

``choice``: the first 32 images of a domain are predicted under every candidate. The one with the least mean entropy
(for a detector: the largest sum of its five best scores) predicts the rest, if it is better than the default by more
than one standard error, paired by image. Those 32 are served with the default, and images that a candidate leaves as
they are need no pass of their own. Intervals are 95 %, of a paired bootstrap over images.

Records go to results/fronts.csv, where a study replaces its own rows; ``python -m benchmarks.detectors --page`` writes
the tables of docs/detectors.md from them.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

import fozo
from benchmarks import detectors
from benchmarks.common import refusals
from benchmarks.detection import Array, Ints, Pixels, Yolox, around_largest, average_precision, drawn
from benchmarks.detectors import FEWEST, RAIN, SMOOTH, STUDIES, normalised, read_records, write_records
from fozo.core.content import CONTENT_VARIANCE
from fozo.core.descriptor import spectra
from fozo.core.objective import entropies
from fozo.core.statistics import SourceStatistics
from fozo.data.corruptions import KINDS
from fozo.data.groups import GROUPS, HELD_OUT, TUNING
from fozo.data.images import resize_crop
from fozo.data.sets.base import CLEAN, Domain
from fozo.data.streams import Corrupting
from fozo.engines.blackbox import black_box
from fozo.errors import FozoError
from fozo.io import atomic_write
from fozo.types import Engine, Floats

FIELDS = ("study", "model", "domain", "arm", "images", "value", "difference", "half_width")
SIDE, BATCH, FIRST, NARROW, DRAWS, BEST = 224, 8, 32, (32, 96), 1000, 5
CANDIDATES = ("plain", "tokens", "detector")  # the last two are profiles of equalise
NAMED = {"vit": "ViT-Tiny", "deit": "DeiT-Tiny"}
NEEDED = {"narrow": ("images", "data"), "dark": ("images", "data", "models"), "choice": ("images", "models", "cache")}
DARK_ARMS = ("plain", "autolevels", "clahe", "equalise", "align")
# ImageNet's classes of ExDark's, by COCO's number; people have none.
CLASSES: Mapping[int, Sequence[int]] = {
    1: (444, 671), 8: (472, 484, 510, 554, 576, 625, 628, 724, 780, 814, 871, 914), 39: (440, 720, 737, 898, 907),
    5: (654, 779, 874), 2: (407, 436, 468, 511, 609, 627, 656, 661, 751, 817), 15: range(281, 286),
    56: (423, 559, 765, 857), 41: (441, 504, 572, 968), 16: range(151, 269), 3: (665, 670), 60: (526, 532, 736),
}  # fmt: skip
Row = dict[str, str]


def percent(right: Array) -> Array:
    """Top-1 in percent over all images, then over every draw."""
    return np.asarray(100 * (drawn(len(right), DRAWS) @ right) / len(right))


def record(model: str, domain: str, arm: str, images: int, values: Array, base: Array | None = None) -> Row:
    """A row: the value over all images, and the difference to ``base`` with half of its interval."""
    row = {"model": model, "domain": domain, "arm": arm, "images": str(images), "value": f"{values[0]:.2f}"}
    if base is not None:
        less = values - base
        row |= {"difference": f"{less[0]:.2f}", "half_width": f"{1.96 * np.nanstd(less[1:]):.2f}"}
    return row


def batches(pictures: Sequence[Pixels]) -> Iterator[Floats]:
    return (normalised(pictures[start : start + BATCH]) for start in range(0, len(pictures), BATCH))


class Images:
    """ImageNet's images: the first of every class are the reference, the others are tested."""

    def __init__(self, folder: Path) -> None:
        self.set = fozo.open_images(folder)
        self.source = Corrupting(self.set, (SIDE, SIDE))
        self.firsts: Ints = np.unique(self.set.labels, return_index=True)[1]

    def others(self, group: str) -> Ints:
        """The images of a group's classes that are not in the reference."""
        return np.setdiff1d(np.flatnonzero(np.isin(self.set.labels, GROUPS[group])), self.firsts)

    def pictures(self, indices: Ints, domain: Domain = CLEAN) -> list[Pixels]:
        return [self.source.load(domain, int(index)) for index in indices]

    def reference(self, engine: Engine) -> SourceStatistics:
        parts = np.array_split(self.firsts, max(1, len(self.firsts) // 50))
        return fozo.calibrate(engine, (for_model(engine, normalised(self.pictures(part))) for part in parts))


def pixels_engine() -> Engine:
    """A black box that returns its images, which are in [0, 1]: a front end by itself."""
    return black_box(lambda images: images, name="pixels", image_size=SIDE, mean=0.0, std=1.0)


def for_model(engine: Engine, images: Floats) -> Floats:
    """Normalise pixels in [0, 1] as a model reads them."""
    if engine.spec.normalisation is None:
        raise FozoError(f"{engine.spec.name} does not say its mean and std; export it again with both")
    mean, std = np.array(engine.spec.normalisation, dtype=np.float32)[..., None, None]
    return np.asarray((images - mean) / std, dtype=np.float32)


def narrow(images: Images, data: Path) -> Iterator[Row]:
    """Of clean streams of narrow content, and of real rain: images changed, largest change, distance to the clean."""
    source, bands, mixed = images.reference(pixels_engine()), spectra(3, SIDE, SIDE), images.pictures(images.firsts)
    streams = {name: images.pictures(images.others(name)[: NARROW[1]]) for name in (*TUNING, *HELD_OUT)}
    energies = np.concatenate([bands.log_energies(bands.transform(some)[1]) for some in batches(mixed)])
    smooth = np.argsort(energies[:, 0].mean(axis=1))[: NARROW[1]]
    streams[SMOOTH] = [mixed[i] for i in np.random.default_rng(0).permutation(smooth)]
    rain = [np.asarray(Image.open(path).convert("RGB")) for path in sorted((data / "dawn" / "rain").glob("*.jpg"))]
    streams[RAIN] = [resize_crop(picture, (SIDE, SIDE)) for picture in rain]
    for name, pictures in streams.items():
        count = len(pictures) // BATCH * BATCH
        if count < NARROW[0]:
            continue
        method = fozo.create("equalise", pixels_engine(), source)
        pairs = [(some, np.asarray(method(some))) for some in batches(pictures[:count])]
        change = np.concatenate([255 * np.abs(after - before).mean(axis=(1, 2, 3)) for before, after in pairs])
        described = np.concatenate([bands.transform(before)[1] for before, _ in pairs])
        centre = ((described - source.descriptor.mean) / source.descriptor.std).mean(axis=0)
        distance = np.mean(centre**2 / (1 / count + CONTENT_VARIANCE))
        values = {"changed": 100 * np.mean(change > 0), "largest": change.max(), "distance": distance}
        yield from (record("", name, arm, count, np.array([value])) for arm, value in values.items())


class Judged(NamedTuple):
    """A domain under every candidate and under the choice: values of all images and of every draw."""

    images: int
    pick: int
    passes: float
    values: list[Array]


def chosen(witness: Array, default: int) -> int:
    """The candidate with the least witness ``[candidates, images]``, if it is so by more than one standard error."""
    best = int(witness.mean(axis=1).argmin())
    gain = witness[default] - witness[best]
    return best if gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)) else default


def summary(model: str, domains: Mapping[str, Judged]) -> Iterator[Row]:
    """Every candidate, the choice, and what labels would choose: by domain, and the mean less the best candidate's."""
    arms = (*CANDIDATES, "chosen", "labels")
    served: dict[str, list[Array]] = {arm: [] for arm in arms}
    for name, domain in domains.items():
        labels = max(domain.values[: len(CANDIDATES)], key=lambda each: float(each[0]))
        for arm, values in zip(arms, (*domain.values, labels), strict=True):
            served[arm].append(values)
            yield record(model, name, arm, domain.images, values)
        yield record(model, name, f"chose {CANDIDATES[domain.pick]}", domain.images, np.array([domain.passes]))
    means = {arm: np.mean(values, axis=0) for arm, values in served.items()}
    best = max(CANDIDATES, key=lambda arm: float(means[arm][0]))
    images = sum(domain.images for domain in domains.values())
    yield from (record(model, "mean", arm, images, values, means[best]) for arm, values in means.items())
    passes = sum(domain.passes * domain.images for domain in domains.values()) / images
    yield record(model, "mean", "passes", images, np.array([passes]))


def measure(
    images: Images, source: SourceStatistics, models: Mapping[str, Engine], domain: Domain, indices: Ints
) -> dict[str, Array]:
    """Of each model ``[3, candidates, images]``: whether it is right, its entropy, whether it needed a pass."""
    profiles = [name for name in CANDIDATES if name != "plain"]
    fronts = [fozo.create("equalise", pixels_engine(), source, profile=profile) for profile in profiles]
    found: dict[str, list[Array]] = {name: [] for name in models}
    for some in np.array_split(indices, len(indices) // BATCH):
        plain, labels = normalised(images.pictures(some, domain)), images.set.labels[some]
        seen = [plain, *(front(plain) for front in fronts)]
        for name, engine in models.items():
            rows: list[Array] = []
            for number, after in enumerate(seen):
                equal = next((i for i in range(number) if np.array_equal(seen[i], after)), None)
                if equal is None:
                    logits = fozo.create("noadapt", engine)(for_model(engine, after)).astype(np.float64)
                    rows.append(np.stack([logits.argmax(axis=1) == labels, entropies(logits), np.ones(len(some))]))
                else:
                    rows.append(rows[equal] * np.array([[1.0], [1.0], [0.0]]))
            found[name].append(np.stack(rows, axis=1))
    return {name: np.concatenate(parts, axis=2) for name, parts in found.items()}


def choice(images: Images, models: Mapping[str, Engine], severity: int, count: int, cache: Path) -> Iterator[Row]:
    """Fifteen corruptions of one severity; a domain that the cache has is not measured again."""
    indices = np.random.default_rng(0).permutation(images.others("held_out"))[:count]
    default, source = CANDIDATES.index("tokens"), None
    judged: dict[str, dict[str, Judged]] = {name: {} for name in models}
    for kind in KINDS:
        file = cache / f"{kind}-{severity}-{count}.npz"
        if not file.is_file():
            source = source or images.reference(pixels_engine())
            measured: dict[str, Any] = dict(measure(images, source, models, Domain(kind, severity), indices))
            with atomic_write(file) as stream:
                np.savez(stream, **measured)
        with np.load(file) as kept:
            found = {name: kept[name] for name in models}
        for name, (right, witness, needed) in found.items():
            pick = chosen(witness[:, :FIRST], default)
            served = np.concatenate([right[default, :FIRST], right[pick, FIRST:]])
            passes = (needed[:, :FIRST].sum() + len(indices) - FIRST) / len(indices)
            judged[name][kind] = Judged(len(indices), pick, passes, [percent(each) for each in (*right, served)])
    for name, domains in judged.items():
        yield from summary(f"{name}, severity {severity}", domains)


def detector_choice(weights: Path, data: Path) -> Iterator[Row]:
    """The same before a detector: AP50, on the domains of detectors.py."""
    clean, tested = detectors.domains(data)
    detector, default = Yolox(weights), CANDIDATES.index("detector")
    arms = [name if name == "plain" else f"equalise:profile={name}" for name in CANDIDATES]
    fronts = [detectors.FrontEnd(arm, detector, clean) for arm in arms]
    judged = {}
    for seed, domain in enumerate(tested):
        pictures, truth = domain.samples
        found = [front.run(pictures) for front in fronts]
        scores = np.array([[-each.scores[:BEST].sum() for each in boxes] for boxes in found])
        pick = chosen(scores[:, :FIRST], default)
        found.append(found[default][:FIRST] + found[pick][FIRST:])
        classes = domain.only or sorted({int(label) for each in truth for label in each.classes})
        draws = drawn(len(pictures), DRAWS, seed)
        values = [average_precision(boxes, truth, classes, draws) for boxes in found]
        passes = 1 + FIRST * (len(CANDIDATES) - 1) / len(pictures)
        judged[domain.name] = Judged(len(pictures), pick, passes, values)
    yield from summary("YOLOX-nano", judged)


def dark(images: Images, models: Mapping[str, Engine], data: Path) -> Iterator[Row]:
    """Top-1 among the classes of ExDark that ImageNet has: of every model, and of all together by kind of light."""
    with (data / "exdark" / "index.csv").open(newline="") as file:
        lights = {row["image"]: row["light"] for row in csv.DictReader(file)}
    squares = {path.stem: around_largest(path, CLASSES, SIDE) for path in sorted((data / "exdark").glob("*.jpg"))}
    found = {name: square for name, square in squares.items() if square is not None}
    pictures = [resize_crop(square, (SIDE, SIDE), (SIDE, SIDE)) for square, _ in found.values()]
    labels = np.array([label for _, label in found.values()])
    columns, classes = np.array([(column, label) for label, group in CLASSES.items() for column in group]).T
    right: dict[str, dict[str, Array]] = {}
    for model, engine in models.items():
        source, right[model] = images.reference(engine), {}
        for arm in DARK_ARMS:
            options: dict[str, Any] = {"profile": "tokens"} if arm == "equalise" else {}
            method = fozo.create("noadapt" if arm == "plain" else arm, engine, source, **options)
            logits = np.concatenate([method(for_model(engine, some)) for some in batches(pictures)])
            right[model][arm] = (classes[logits[:, columns].argmax(axis=1)] == labels).astype(np.float64)
    right["all models"] = {arm: np.mean([right[model][arm] for model in models], axis=0) for arm in DARK_ARMS}
    kinds = np.array([lights[name] for name in found])
    parts = {"all": kinds != ""} | {str(kind): kinds == kind for kind in np.unique(kinds)}
    for model, by_arm in right.items():
        for part, some in parts.items():
            if some.sum() >= FEWEST:
                values = {arm: percent(each[some]) for arm, each in by_arm.items()}
                yield from (record(model, part, arm, int(some.sum()), values[arm], values["plain"]) for arm in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=tuple(NEEDED))
    for name in ("images", "data", "detector", "cache"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--models", type=Path, nargs="+", default=[])
    parser.add_argument("--severity", type=int, default=5)
    parser.add_argument("--count", type=int, default=512, help="images of a domain")
    given = parser.parse_args()
    with refusals("fronts"):
        needed = ("data",) if given.detector else NEEDED[given.study]
        if any(not getattr(given, name) for name in needed):
            raise FozoError(f"{given.study} needs {', '.join(f'--{name}' for name in needed)}; --help has examples")
        if given.detector:
            rows = list(detector_choice(given.detector, given.data))
        else:
            engines = (fozo.load_engine(path, threads=1) for path in given.models)
            models = {NAMED.get(engine.spec.name.split("_")[0], engine.spec.name): engine for engine in engines}
            images = Images(given.images)
            if given.study == "narrow":
                rows = list(narrow(images, given.data))
            elif given.study == "dark":
                rows = list(dark(images, models, given.data))
            else:
                rows = list(choice(images, models, given.severity, given.count, given.cache))
        done = {row["model"] for row in rows}
        old = read_records(STUDIES) if STUDIES.exists() else []
        kept = [row for row in old if row["study"] != given.study or row["model"] not in done]
        write_records([*kept, *({"study": given.study, **row} for row in rows)], FIELDS, STUDIES)


if __name__ == "__main__":
    main()
