"""Image sets: everything the benchmarks adapt to, opened from the files people really have.

``open_images(path)`` looks at the folder and says what it is; name the ``layout`` to be sure.
:func:`check_image_set` says what a set is and which of its files are broken.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fozo.data.sets import folder
from fozo.data.sets.base import CLEAN, Domain, ImageSet, Sample
from fozo.data.sets.folder import imagenet_wnids, open_unlabelled, robustbench_list
from fozo.errors import FozoError
from fozo.io.system import usable_cpus

__all__ = [
    "CLEAN", "Domain", "ImageSet", "Sample", "imagenet_wnids", "open_images", "open_unlabelled", "robustbench_list",
]  # fmt: skip

# How a set of each layout is opened; the options that mean something for it are the function's parameters.
LAYOUTS: dict[str, Callable[..., ImageSet]] = {
    "imagenet": folder.open_imagenet,
    "imagenet-c": folder.open_imagenet_c,
    "imagenet-r": folder.open_imagenet_r,
    "imagenet-v2": folder.open_imagenet_v2,
    "imagenet-sketch": folder.open_imagenet_sketch,
    "folder": folder.open_folder,
    "arrays": folder.open_arrays,
}
DECODED = 256  # images decoded by a quick check, evenly spaced over the set
LISTED = 20  # broken images that a report names
CHUNK = 512  # images handed to the threads at a time, so that millions of images are not millions of waiting jobs


def open_images(
    path: str | Path,
    layout: str = "auto",
    *,
    classes: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
    crops: bool = True,
) -> ImageSet:
    """Open an image set.

    Examples:
        >>> fozo.open_images(photos).classes[:2]
        ('T-shirt/top', 'Trouser')

    Args:
        path: a folder, or an ``.npz`` of images, labels and classes.
        layout: one of :data:`LAYOUTS`, or ``auto`` to recognise it.
        classes: class names in the order of the model's outputs, for sets that are not ImageNet's.
        kinds: open only these corruptions of a corrupted set.
        severities: open only these severities of a corrupted set.
        crops: whether images that all have one square size count as ready-made crops, to be used as they are
            when they fit the model. ``False`` has every image resized and cropped.
    """
    root = Path(path)
    if not root.exists():
        raise FozoError(f"there is no file or folder {root}; check the path")
    tree = folder.Tree(root)
    if layout == "auto":
        tree, layout = recognise(tree, own_classes=classes is not None)
    if layout not in LAYOUTS:
        raise FozoError(f"there is no layout {layout!r}; choose from auto, {', '.join(LAYOUTS)}")
    given = {"classes": classes, "kinds": kinds, "severities": severities}
    options = {name: value for name, value in given.items() if value is not None}
    useless = sorted(options.keys() - signature(LAYOUTS[layout]).parameters.keys())
    if useless:
        raise FozoError(f"{useless[0]}= means nothing for the layout {layout} of {tree.root}; leave it out")
    images = LAYOUTS[layout](tree, **options)
    return images if crops else replace(images, size=None)


def recognise(tree: folder.Tree, own_classes: bool = False) -> tuple[folder.Tree, str]:
    """Find the layout of a path, and the folder where it begins (an unpacked tar may wrap it in another)."""
    root = tree.root
    if root.is_file():
        if root.suffix != ".npz":
            raise FozoError(f"{root} is not an .npz file; give a folder of images, or an .npz of them")
        return tree, "arrays"
    folders, files, _ = tree.listing()
    if folder.kind_folders(tree):
        return tree, "imagenet-c"
    inside = tree.listings(folders)
    if len(folders) == 1 and not files and inside[0].folders and not inside[0].images:
        return recognise(tree.below(folders[0]), own_classes)
    if not any(map(any, inside)):
        expected = "class/image or kind/severity/class/image"
        content = f"{len(files)} images and {f'the folders {folder.some(folders)}' if folders else 'no folders'}"
        raise FozoError(f"{root} is not a set of labelled images: expected {expected}, but found {content}")
    return tree, "folder" if own_classes else _name_of_classes(root, folders, inside)


def _name_of_classes(root: Path, folders: list[str], inside: list[folder.Listing]) -> str:
    if all(map(folder.WNID.fullmatch, folders)):
        if tuple(folders) == folder.imagenet_r_wnids():
            return "imagenet-r"
        first = inside[0].images
        return "imagenet-sketch" if first and first[0].startswith("sketch_") else "imagenet"
    if all(map(str.isdecimal, folders)):
        if set(folders) <= set(folder.SEVERITIES) and all(listing.folders for listing in inside):
            raise FozoError(f"{root} holds the severities of one corruption; give the folder above, or one severity")
        if {int(name) for name in folders} == set(range(1000)):
            return "imagenet-v2"
        if folders != sorted(folders, key=int):
            raise FozoError(
                f"{root} has {len(folders)} folders named by numbers, whose order as text differs; pass "
                f"layout='folder' for text order, as torchvision's ImageFolder has it, or classes= for your own"
            )
    return "folder"


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
        path: what :func:`open_images` opens, with ``layout``, or a folder of images.
        full: decode every image: the only way to find all truncated files.
        progress: called with the images done so far and their number.
    """
    try:
        images = open_images(path, layout)
    except FozoError:
        if layout != "auto" or not Path(path).is_dir() or not folder.Tree(Path(path)).listing().images:
            raise
        images = open_unlabelled(Path(path))
    total = len(images) * len(images.domains)
    decoded = frozenset(range(total) if full else np.linspace(0, total - 1, DECODED).astype(int).tolist())
    sizes: Counter[tuple[int, int]] = Counter()
    broken: dict[str, str] = {}

    def inspect(flat: int) -> tuple[str, tuple[int, int] | str]:
        domain = images.domains[flat // len(images)]
        path = images.samples[flat % len(images)].path
        name = f"{domain.name}/{path}" if images.corrupted else path
        store = images.store
        try:
            height, width = store.read(path, domain).shape[:2] if flat in decoded else store.measure(path, domain)
            images.check_size(path, domain, (height, width))
        except (FozoError, OSError) as error:
            return name, str(error)
        return name, (height, width)

    with ThreadPoolExecutor(usable_cpus()) as pool:
        for start in range(0, total, CHUNK):
            end = min(start + CHUNK, total)
            for name, size in pool.map(inspect, range(start, end)):
                if isinstance(size, str):
                    broken[name] = size
                else:
                    sizes[size] += 1
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
