"""Does the interval of the expected accuracy hold for degradations that the reference has never seen?

    python -m benchmarks.unseen [IMAGES WEIGHTS...] --cache DIR -o results/unseen.md

Five families that are none of fozo's, each at three strengths: haze that grows with depth, night, rain, a dirty lens
and chains of compression. The bundled model comes first, on its 2000 images. A reference is made as ``fozo calibrate
--monitor`` makes it, from 512 other images. Tables compare expected accuracy with the true one over
120 images each, also where the most similar kinds of the reference are left out of it, and where each kind of the
reference is judged by all others. What was measured is kept in the cache: a second run needs no forward pass.
"""

import argparse
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFilter

import fozo
from benchmarks.common import clean_and_test, markdown, write
from fozo.data import sample
from fozo.data.corruptions import corrupt
from fozo.data.groups import GROUPS
from fozo.data.images import Pixels
from fozo.data.sets import ImageSet
from fozo.data.streams import prepare
from fozo.methods.registry import AnyMethod
from fozo.monitor import CleanImages, DriftDetector, MonitorReference
from fozo.monitor.quality import QualityStatistics
from fozo.monitor.reference import SAMPLE, Measurement, measure
from fozo.monitor.regression import prediction_features
from fozo.types import Array, Tap

CLEAN, TEST, BATCH = 512, 120, 20
STREAM = 20_000
STRENGTHS = (1, 2, 3)
SIMILAR = {  # kinds of the reference that resemble a family
    "haze": ("haze", "fog", "contrast"), "night": ("gamma", "low_light"), "rain": ("snow", "motion_blur"),
    "dirty lens": ("frost", "defocus_blur"), "compression": ("jpeg_compression", "pixelate"),
}  # fmt: skip
Rng = np.random.Generator
Judged = tuple[float, float, float, float, bool]


def smooth(shape: tuple[int, int], rng: Rng, cells: int) -> Array:
    """A random field in [0, 1] that varies over a ``cells``-th of the image."""
    coarse = Image.fromarray((255 * rng.random((cells, cells))).astype(np.uint8))
    field: Array = np.asarray(coarse.resize(shape[::-1], Image.Resampling.BICUBIC), dtype=np.float64) / 255
    return field


def haze(x: Array, rng: Rng, strength: int) -> Array:
    """Koschmieder: the far upper part is hidden most; the light is bluish."""
    depth = np.linspace(1.0, 0.3, len(x))[:, None] * (0.6 + 0.8 * smooth(x.shape[:2], rng, 4))
    through = np.exp(-(0.6, 1.2, 2.2)[strength - 1] * depth)[..., None]
    light = np.array([0.80, 0.85, 0.90])
    return np.asarray(x * through + (1 - through) * (light if x.shape[2] == 3 else light.mean()))


def night(x: Array, rng: Rng, strength: int) -> Array:
    dark = x**1.4 * (0.5, 0.25, 0.12)[strength - 1]
    tint = np.array([0.8, 0.9, 1.1]) if x.shape[2] == 3 else 1.0
    blotches = smooth(x.shape[:2], rng, max(4, len(x) // 4))[..., None] - 0.5
    noise = rng.normal(0, 1, x.shape) * np.sqrt(dark / 300 + 1e-4)
    return dark * tint + noise + 0.02 * strength * blotches


def rain(x: Array, rng: Rng, strength: int) -> Array:
    side = len(x)
    drops = (rng.random(x.shape[:2]) < (0.004, 0.01, 0.02)[strength - 1]).astype(np.float64)
    length, streaks = max(3, side // 9), np.zeros(x.shape[:2])
    for step in range(length):
        streaks += np.roll(drops, (step, step // 4), axis=(0, 1))
    veil = 0.06 * strength
    return x * (1 - veil) + veil * 0.7 + np.minimum(streaks, 1)[..., None] * (0.85 - x) * 0.55


def dirty_lens(x: Array, rng: Rng, strength: int) -> Array:
    """Specks of dust and a smear that stay where they are: the generator is the same for all images."""
    rng = np.random.default_rng(strength)
    side, rows, columns = len(x), *np.indices(x.shape[:2])
    mask = np.zeros(x.shape[:2])
    for _ in range((6, 12, 24)[strength - 1]):
        (row, column), radius = side * rng.random(2), side * rng.uniform(0.03, 0.12)
        mask = np.maximum(mask, np.exp(-((((rows - row) ** 2 + (columns - column) ** 2) / radius**2) ** 2)))
    smear = 0.3 * strength * smooth(x.shape[:2], rng, 3)
    levels = [Image.fromarray((255 * x[..., c]).astype(np.uint8)) for c in range(x.shape[2])]
    soft = np.stack([np.asarray(each.filter(ImageFilter.GaussianBlur(side / 40))) for each in levels], axis=2) / 255
    weight = np.clip(0.8 * mask + smear, 0, 1)[..., None]
    return x * (1 - weight) + weight * (0.7 * soft + 0.3 * 0.35)


def compression(x: Array, rng: Rng, strength: int) -> Array:
    """Smaller, JPEG, larger, JPEG again: as messengers and old recorders do."""
    picture = Image.fromarray((255 * (x if x.shape[2] == 3 else x.repeat(3, axis=2))).astype(np.uint8))
    size, small = picture.size, (0.8, 0.6, 0.45)[strength - 1]
    for side, quality in ((small, (60, 40, 25)[strength - 1]), (1.0, (40, 25, 12)[strength - 1])):
        picture = picture.resize((round(size[0] * side), round(size[1] * side)), Image.Resampling.BILINEAR)
        picture.save(stream := io.BytesIO(), "JPEG", quality=quality)
        picture = Image.open(stream).convert("RGB")
    return np.asarray(picture, dtype=np.float64)[..., : x.shape[2]] / 255


FAMILIES: dict[str, Callable[[Array, Rng, int], Array]] = {
    "haze": haze, "night": night, "rain": rain, "dirty lens": dirty_lens, "compression": compression,
}  # fmt: skip


def spoilt(pixels: Pixels, family: str, strength: int) -> Pixels:
    rngs = np.random.default_rng(list(FAMILIES).index(family) + 10 * strength).spawn(len(pixels))
    found = [FAMILIES[family](one / 255, rng, strength) for one, rng in zip(pixels, rngs, strict=True)]
    return np.asarray(255 * np.clip(found, 0, 1) + 0.5).astype(np.uint8)


class Material:
    """A model, its adapter, images to calibrate on and to test on; what was measured of them."""

    def __init__(self, images: Path | None, weights: Path | None, cache: Path) -> None:
        self.cache = cache
        cache.mkdir(parents=True, exist_ok=True)
        self.engine = fozo.load_engine(weights or sample.MODELS["float32"], threads=1 if weights is None else None)
        self.clean, self.rest = clean_and_test(images or sample.IMAGES, CLEAN, 1400)
        self.adapter: AnyMethod = fozo.adapter(self.engine, self._source())

    def _pixels(self, images: ImageSet, some: npt.NDArray[np.int64] | range) -> Pixels:
        spec = self.engine.spec
        return np.stack([prepare(images, images.read(int(i)), spec.image_size, spec.channels) for i in some])

    def _source(self) -> fozo.SourceStatistics:
        path = self.cache / f"{self.engine.spec.name}-source.npz"
        if not path.exists():
            pixels = self._pixels(self.clean, range(CLEAN))
            fozo.calibrate(self.engine, map(self.engine.spec.normalise, np.split(pixels, 16))).save(path)
        return fozo.SourceStatistics.load(path)

    def labels(self, images: ImageSet, some: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.array([images.samples[i].label for i in some])

    def reference(self, images_each: int) -> list[Measurement]:
        path = self.cache / f"{self.engine.spec.name}-reference-{images_each}.npz"
        if not path.exists():
            show = lambda doing, done, total: print(doing, done, total, flush=True)  # noqa: E731
            found = list(measure(self.adapter, self._pixels(self.clean, range(CLEAN)), images_each, show))
            _keep(path, found)
        return _kept(path)

    def tests(self) -> list[Measurement]:
        """Clean images, and each family at each strength, on other images each."""
        plan = [("clean", 0), *((family, strength) for family in FAMILIES for strength in STRENGTHS)]
        path = self.cache / f"{self.engine.spec.name}-tests.npz"
        if not path.exists():
            orders = [np.random.default_rng(number).permutation(len(self.rest))[:TEST] for number in range(len(plan))]
            _keep(path, [self._measure(*domain, order) for domain, order in zip(plan, orders, strict=True)])
        return _kept(path)

    def streams(self) -> list[Measurement]:
        """All clean images that were not calibrated on, and 120 under the corruption that is noticed latest."""
        path = self.cache / f"{self.engine.spec.name}-streams.npz"
        if not path.exists():
            everything = np.arange(len(self.rest) // BATCH * BATCH)
            _keep(
                path, [self._measure("clean", 0, everything), self._measure("elastic_transform", 5, everything[:TEST])]
            )
        return _kept(path)

    def _measure(self, family: str, strength: int, indices: npt.NDArray[np.int64]) -> Measurement:
        pixels, rows, quality = (
            self._pixels(self.rest, indices),
            list[list[Array]](),
            QualityStatistics(self.engine.spec),
        )
        if family in FAMILIES:
            pixels = spoilt(pixels, family, strength)
        elif strength:
            pixels = np.stack([corrupt(one, family, strength, 1, image_id=str(i)) for i, one in enumerate(pixels)])
        self.adapter.reset()
        for part in np.split(pixels, len(pixels) // BATCH):
            batch = self.engine.check(self.engine.spec.normalise(part))
            plain = self.engine.run(batch)[Tap.LOGITS][0]
            rows.append([quality(batch.images), plain, np.asarray(self.adapter(batch.images))])
        print(family, strength, flush=True)
        return Measurement(family, strength, indices, *(np.concatenate(each) for each in zip(*rows, strict=True)))


def _keep(path: Path, found: list[Measurement]) -> None:
    arrays = {
        f"{i}|{one.kind}|{one.severity}|{name}": getattr(one, name)
        for i, one in enumerate(found)
        for name in ("indices", "features", "plain", "adapted")
    }
    np.savez(path, **arrays)


def _kept(path: Path) -> list[Measurement]:
    with np.load(path) as file:
        keys = list(dict.fromkeys(key.rsplit("|", 1)[0] for key in file.files))
        names = ("indices", "features", "plain", "adapted")
        parts = [(key.split("|"), [file[f"{key}|{name}"] for name in names]) for key in keys]
        return [Measurement(key[1], int(key[2]), *arrays) for key, arrays in parts]


def judge(reference: MonitorReference, one: Measurement, labels: npt.NDArray[np.int64], mode: str) -> Judged:
    """Truth, expected value, lower and upper bound, in points; and whether the interval held without its widening."""
    regression, signatures, logits = getattr(reference, mode), reference.signatures, getattr(one, mode)
    assert regression is not None and signatures is not None
    given = prediction_features(logits), signatures.coordinates(one.features)
    truth = float((logits.argmax(axis=1) == labels).mean())
    wide, narrow = (each.estimate(*given) for each in (regression, replace(regression, widening=0.0)))
    numbers = (100 * value for value in (truth, wide.value, wide.low, wide.high))
    return (*numbers, narrow.low <= truth <= narrow.high)


def accuracy(material: Material, images_each: int) -> Iterator[str]:
    parts, clean = material.reference(images_each), material.labels(material.clean, np.arange(CLEAN))
    fit: Callable[[tuple[str, ...]], MonitorReference] = lambda without: MonitorReference.of(  # noqa: E731
        material.adapter, [part for part in parts if part.kind not in without], clean
    )
    whole, summaries, rows = fit(()), list[list[object]](), list[list[object]]()
    kinds = tuple(dict.fromkeys(part.kind for part in parts[1:]))
    tests = [(one, material.labels(material.rest, one.indices)) for one in material.tests()]
    seen = {
        name: (whole, [(one, labels) for one, labels in tests if one.kind == name]) for name in ("clean", *FAMILIES)
    }
    left_out = {name: (fit(SIMILAR[name]), seen[name][1]) for name in FAMILIES}
    unseen = {
        kind: (fit((kind,)), [(part, clean[part.indices]) for part in parts if part.kind == kind]) for kind in kinds
    }
    titles = ("five families", "five families, similar kinds left out", "each kind, left out of the reference")
    for title, groups in zip(titles, (seen, left_out, unseen), strict=True):
        for mode in ("adapted", "plain"):
            found = [judge(reference, *one, mode) for reference, some in groups.values() for one in some]
            error = np.mean([abs(expected - truth) for truth, expected, *_ in found])
            half = np.mean([high - low for _, _, low, high, _ in found]) / 2
            inside = 100 * np.mean([low <= truth <= high for truth, _, low, high, _ in found])
            before = 100 * np.mean([narrow for *_, narrow in found])
            words = f"{error:.1f}", f"+- {half:.1f}", f"{inside:.0f} %", f"{before:.0f} %"
            summaries.append([material.engine.spec.name, mode, title, len(found), *words])
    heads = ["model", "predictions", "domains", "number", "mean error", "interval", "truth in it", "without widening"]
    yield markdown(heads, summaries)
    for name in FAMILIES:
        for one, labels in seen[name][1]:
            cells = []
            for mode in ("adapted", "plain"):
                for reference in (whole, left_out[name][0]):
                    truth, value, low, high, _ = judge(reference, one, labels, mode)
                    cells += [f"{truth:.0f}"] if reference is whole else []
                    cells.append(f"{value:.0f} ({low:.0f} to {high:.0f}{'' if low <= truth <= high else ', missed'})")
            rows.append([material.engine.spec.name, f"{name} {one.severity}", *cells])
    columns = ("true", "expected", "similar left out")
    yield markdown(["model", "domain", *(f"{mode}: {x}" for mode in ("adapted", "plain") for x in columns)], rows)


def entropy(material: Material, images_each: int) -> Iterator[str]:
    """False alarms of clean streams, also of narrow content, and delays, with the test of entropies and without."""
    first = material.reference(images_each)[0]
    rest, elastic = material.streams()
    with_entropy = CleanImages.of(first.features, prediction_features(first.adapted)[:, 2])
    detectors = {"features and entropy": with_entropy, "features alone": replace(with_entropy, entropy=None)}
    labels, rows = material.labels(material.rest, rest.indices), list[list[object]]()
    entropies, late = (prediction_features(one.adapted)[:, 2] for one in (rest, elastic))
    groups = {name: np.flatnonzero(np.isin(labels, members)) for name, members in GROUPS.items()}
    groups = (
        {name: some for name, some in groups.items() if len(some) >= 32}
        if len(first.adapted[0]) == 1000
        else {str(label): np.flatnonzero(labels == label) for label in np.unique(labels)}
    )
    for name, clean in detectors.items():
        counts = []
        for size in (1, 16, 64):
            detector, alarms, rng = DriftDetector(clean), 0, np.random.default_rng(size)
            for _ in range(STREAM // size):
                pick = rng.integers(len(entropies), size=size)
                if detector.update(rest.features[pick], entropies=entropies[pick]).drift_detected:
                    detector, alarms = DriftDetector(clean), alarms + 1
            counts.append(alarms)
        narrow = 0
        for some in groups.values():
            detector, rng = DriftDetector(clean), np.random.default_rng(0)
            picks = (rng.choice(some, 16) for _ in range(8))
            narrow += any(detector.update(rest.features[p], entropies=entropies[p]).drift_detected for p in picks)
        delays = []
        for seed in range(5):
            detector, order = DriftDetector(clean), np.random.default_rng(seed).permutation(TEST)
            before = np.random.default_rng(seed).integers(len(entropies), size=96)
            detector.update(rest.features[before], entropies=entropies[before])
            for start in range(0, TEST - 15, 16):
                some = order[start : start + 16]
                if detector.update(elastic.features[some], entropies=late[some]).drift_detected:
                    break
            delays.append(start + 16 if detector.drift.drift_detected else TEST + 1)
        delay = int(np.median(delays))
        words = [f"{narrow} of {len(groups)}", delay if delay <= TEST else f"> {TEST}"]
        rows.append([material.engine.spec.name, name, *counts, *words])
    mean, std = with_entropy.entropy or (0.0, 1.0)
    shifts = {name: float((entropies[some].mean() - mean) / std) for name, some in groups.items()}
    most = max(shifts, key=shifts.__getitem__)
    yield (
        f"{material.engine.spec.name}: clean entropy {mean:.2f} +- {std:.2f} nats; of the {len(groups)} groups of "
        f"classes the largest rise is {shifts[most]:+.2f} standard deviations ({most}), elastic transform 5 has "
        f"{(late.mean() - mean) / std:+.2f}."
    )
    sizes = (f"alarms in {STREAM:,} clean images, batches of {size}" for size in (1, 16, 64))
    heads = ["model", "test", *sizes, "narrow groups with an alarm", "images until elastic transform 5 is noticed"]
    yield markdown(heads, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path, nargs="?")
    parser.add_argument("weights", type=Path, nargs="*")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--sample", type=int, default=SAMPLE)
    parser.add_argument("-o", "--out", type=Path)
    given = parser.parse_args()
    models = [(None, None), *((given.images, weights) for weights in given.weights)]
    materials = (Material(*model, given.cache) for model in models)
    write((text for each in materials for part in (accuracy, entropy) for text in part(each, given.sample)), given.out)


if __name__ == "__main__":
    main()
