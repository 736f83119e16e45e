"""Check an image set: what it is, and which files are broken."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fozo.data.sets import ImageSet, open_images, open_unlabelled
from fozo.data.sets.folder import Tree
from fozo.errors import FozoError
from fozo.io.system import usable_cpus

DECODED = 256  # images decoded by a quick check, evenly spaced over the set
LISTED = 20  # broken images that a report names
CHUNK = 512  # images handed to the threads at a time, so that millions of images are not millions of waiting jobs


class Report(NamedTuple):
    """What a check found."""

    lines: list[str]
    broken: dict[str, str]  # images that cannot be used, and why


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
    broken: dict[str, str] = {}

    def inspect(flat: int) -> tuple[str, tuple[int, int] | str]:
        domain, path = images.domains[flat // len(images)], images.samples[flat % len(images)].path
        name, store = f"{domain.name}/{path}" if images.corrupted else path, images.store
        try:
            height, width = store.read(path, domain).shape[:2] if flat in decoded else store.measure(path, domain)
            images.check_size(path, domain, (height, width))
        except (FozoError, OSError) as error:
            return name, str(error)
        return name, (height, width)

    with ThreadPoolExecutor(usable_cpus()) as pool:
        for start in range(0, total, CHUNK):
            end = min(start + CHUNK, total)
            for name, found in pool.map(inspect, range(start, end)):
                if isinstance(found, str):
                    broken[name] = found
                else:
                    sizes[found] += 1
            progress(end, total)
    counts = [f"{width}x{height} ({count})" for (height, width), count in sizes.most_common()]
    read = f"headers of all {total} images, {len(decoded)} images decoded"
    lines = [
        f"path: {path}",
        f"layout: {images.name}",
        f"images: {len(images)}{_domains(images)}",
        *([f"classes: {len(np.unique(images.labels))} of {len(images.classes)}"] if images.classes != ("",) else []),
        f"sizes: {', '.join(counts[:3])}{f' and {len(counts) - 3} other sizes' if counts[3:] else ''}",
        f"read: {f'all {total} images decoded' if len(decoded) == total else read}",
        f"broken: {len(broken)}",
        *(f"  {name}: {reason}" for name, reason in list(broken.items())[:LISTED]),
        *([f"  and {len(broken) - LISTED} more"] if len(broken) > LISTED else []),
    ]
    return Report(lines, broken)


def _domains(images: ImageSet) -> str:
    if not images.corrupted:
        return ""
    kinds = ", ".join(dict.fromkeys(domain.kind for domain in images.domains))
    levels = ", ".join(map(str, sorted({domain.severity for domain in images.domains})))
    return f" in each of {len(images.domains)} domains: {kinds} at severity {levels}"
