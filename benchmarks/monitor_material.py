"""What the benchmark of the monitor looks at: real images, corrupted once and kept, and their features.

    python -m benchmarks.monitor_material IMAGES --cache DIR

Two groups of images that share none: ``CLEAN`` to calibrate on, some of them corrupted as calibration does it; and all
others to be judged by: clean, to count false alarms on, and ``TEST`` of them, drawn anew for each, under all 15
corruptions at severities 1 to 5. Every file is kept, so an interrupted run goes on. No model runs.
"""

import argparse
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

import fozo
from benchmarks.common import clean_and_test
from fozo.core.noise import Purpose, generator
from fozo.data.corruptions import KINDS, corrupt
from fozo.data.images import Pixels
from fozo.data.sets import ImageSet
from fozo.data.streams import prepare
from fozo.monitor.quality import QualityStatistics
from fozo.monitor.reference import corruption_schedule
from fozo.types import Array

CLEAN = 512
TEST = 120
BATCH = 20
SEVERITIES = (1, 2, 3, 4, 5)
SIDE = 224

Domain = tuple[str, int]
DOMAINS: tuple[Domain, ...] = (("clean", 0), *((kind, severity) for kind in KINDS for severity in SEVERITIES))


class Material:
    """Images and predictions, made when they are first asked for."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.cache = cache
        self.all = fozo.open_images(folder)
        self.clean, _ = clean_and_test(folder, CLEAN, 100)
        cache.mkdir(parents=True, exist_ok=True)

    @property
    def spec(self) -> fozo.Spec:
        """Of any model whose mean and std are 0.5."""
        half = (0.5,) * 3
        return fozo.Spec("any", 1, 1, 1, 3, (SIDE, SIDE), (SIDE, SIDE), 1, "", half, half)

    @cached_property
    def rest(self) -> ImageSet:
        used = {sample.path for sample in self.clean.samples}
        return self.all.select([sample.path for sample in self.all.samples if sample.path not in used])

    def group(self, name: str) -> ImageSet:
        """``fit``, or ``test`` and ``rest``, which are of the same images."""
        return self.clean if name == "fit" else self.rest

    def domains(self, group: str) -> list[tuple[Domain, npt.NDArray[np.integer]]]:
        """The domains of a group, and which of its images are seen in each."""
        if group == "rest":
            return [(("clean", 0), np.arange(len(self.rest)))]
        if group == "test":
            # Other images in every domain: the luck of one draw would be in all of the errors.
            orders = [generator(0, Purpose.SHUFFLES, 1000 + i).permutation(len(self.rest)) for i in range(len(DOMAINS))]
            return [(domain, order[:TEST]) for domain, order in zip(DOMAINS, orders, strict=True)]
        # As calibration does it: every domain sees other images, so that together they have seen all of them.
        schedule = corruption_schedule(CLEAN, KINDS)
        return [(("clean", 0), np.arange(CLEAN)), *(((kind, level), indices) for kind, level, indices in schedule)]

    def labels(self, group: str, indices: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        return np.array([self.group(group).samples[i].label for i in indices])

    def pixels(self, group: str, domain: Domain, indices: npt.NDArray[np.integer]) -> Pixels:
        """Images of a domain, ``uint8 [n, side, side, 3]``."""
        path = self.cache / f"{group}-{domain[0]}-{domain[1]}.npy"
        if not path.exists():
            images = self.group(group)
            found = []
            for index in indices:
                picture = prepare(images, images.read(int(index)), SIDE)
                if domain[1]:
                    picture = corrupt(picture, *domain, 0, image_id=images.samples[index].path)
                found.append(picture)
            _keep(path, np.stack(found))
        return np.asarray(np.load(path, mmap_mode="r"))

    def features(self, group: str, domain: Domain, indices: npt.NDArray[np.integer]) -> Array:
        """Looks and descriptors, as of a model whose mean and std are 0.5."""
        path = self.cache / f"features-{group}-{domain[0]}-{domain[1]}.npy"
        if not path.exists():
            pixels = self.pixels(group, domain, indices)
            quality = QualityStatistics(self.spec)
            parts = [pixels[start : start + BATCH] for start in range(0, len(pixels), BATCH)]
            _keep(path, np.concatenate([quality(self.spec.normalise(part)) for part in parts]))
        return np.asarray(np.load(path))

    def all_features(self, group: str) -> dict[Domain, Array]:
        return {domain: self.features(group, domain, indices) for domain, indices in self.domains(group)}


def _keep(path: Path, array: npt.NDArray[np.generic]) -> None:
    part = path.with_suffix(".part.npy")
    np.save(part, array)
    part.rename(path)


def steps(material: Material) -> Iterator[str]:
    for group in ("fit", "test", "rest"):
        for domain, indices in material.domains(group):
            material.features(group, domain, indices)
            yield f"{group} {domain}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    given = parser.parse_args()
    for step in steps(Material(given.images, given.cache)):
        print(step, flush=True)


if __name__ == "__main__":
    main()
