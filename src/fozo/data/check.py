"""Check an image set: what it is, and which files are broken."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fozo.data.sets import ImageSet, open_images, open_unlabelled
from fozo.data.sets.base import Domain
from fozo.data.sets.folder import Tree
from fozo.errors import FozoError
from fozo.io.system import usable_cpus

DECODED = 256  # images decoded by a quick check, evenly spaced over the set
LISTED = 20  # broken images that a report names
CHUNK = 512  # images handed to the threads at a time, so that millions of images are not millions of waiting jobs


class Broken(NamedTuple):
    """An image that cannot be used."""

    image: str
    reason: str


@dataclass(frozen=True)
class Report:
    """What a check found."""

    path: Path
    images: ImageSet
    sizes: Counter[tuple[int, int]]  # how many images have each (height, width)
    decoded: int
    broken: tuple[Broken, ...]

    def rows(self) -> list[tuple[str, str]]:
        images, domains = self.images, len(self.images.domains)
        total, named = len(images) * domains, images.name != "unlabelled"
        each = f" in each of {domains} domain{'s' * (domains > 1)}" if images.corrupted else ""
        common = [f"{width}x{height} ({count})" for (height, width), count in self.sizes.most_common(3)]
        others, more = len(self.sizes) - len(common), len(self.broken) - LISTED
        partly = f"headers of all {total} images, {self.decoded} images decoded"
        return [
            ("path", str(self.path)),
            ("layout", images.name),
            *([("kinds", _kinds(images.domains))] if images.corrupted else []),
            ("images", f"{len(images)}{each}"),
            *([("classes", f"{len(np.unique(images.labels))} with images, of {len(images.classes)}")] if named else []),
            ("sizes", ", ".join(common) + (f" and {others} other sizes" if others else "")),
            ("read", f"all {total} images decoded" if self.decoded == total else partly),
            ("broken", str(len(self.broken))),
            *((f"  {broken.image}", broken.reason) for broken in self.broken[:LISTED]),
            *([("  ...", f"and {more} more")] if more > 0 else []),
        ]


def _kinds(domains: tuple[Domain, ...]) -> str:
    groups: dict[str, list[str]] = {}
    for kind in dict.fromkeys(kind for kind, _ in domains):
        severities = ", ".join(str(severity) for other, severity in domains if other == kind)
        groups.setdefault(severities, []).append(kind)
    return "; ".join(f"{len(kinds)} ({', '.join(kinds)}) at severity {levels}" for levels, kinds in groups.items())


def check_image_set(
    path: str | Path,
    layout: str = "auto",
    *,
    full: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Read the header of every image, and decode a sample of them.

    Args:
        path: what :func:`~fozo.data.sets.open_images` opens, with ``layout``, or a folder of images.
        full: decode every image: the only way to find all truncated files.
        progress: called with the images done so far and their number.
    """
    try:
        images = open_images(path, layout)
    except FozoError:
        if layout != "auto" or not Path(path).is_dir() or not Tree(Path(path)).listing().images:
            raise
        images = open_unlabelled(Path(path))
    total = len(images) * len(images.domains)
    decoded = frozenset(range(total) if full else np.linspace(0, total - 1, DECODED).astype(int).tolist())
    sizes: Counter[tuple[int, int]] = Counter()
    broken = []

    def inspect(flat: int) -> tuple[int, int] | Broken:
        domain, index = images.domains[flat // len(images)], flat % len(images)
        path, store = images.samples[index].path, images.store
        try:
            height, width = store.read(path, domain).shape[:2] if flat in decoded else store.measure(path, domain)
            images.check_size(path, domain, (height, width))
        except (FozoError, OSError) as error:
            return Broken(f"{domain.name}/{path}" if images.corrupted else path, str(error))
        return height, width

    with ThreadPoolExecutor(usable_cpus()) as pool:
        for start in range(0, total, CHUNK):
            end = min(start + CHUNK, total)
            for found in pool.map(inspect, range(start, end)):
                if isinstance(found, Broken):
                    broken.append(found)
                else:
                    sizes[found] += 1
            progress(end, total)
    return Report(Path(path), images, sizes, len(decoded), tuple(broken))
