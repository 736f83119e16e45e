"""The layouts of image sets: class folders, one ``.npz``, and ImageNet's.

These are its validation set, its list of RobustBench's 5000, its natural shifts R, V2 and Sketch, and ImageNet-C. Their
labels always come from the full list of 1000 WordNet ids in sorted order, never from the position of a folder, so a
subset of ImageNet is labelled like the whole. The sets that are always scored whole (R, V2, Sketch) must have all their
classes: a missing one would silently change the score.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from itertools import chain, repeat
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from fozo.data.images import EXTENSIONS, Pixels, header_size, read_image
from fozo.data.sets.base import CLEAN, Domain, ImageSet, Names, Sample, choose, in_paper_order, probe, with_size
from fozo.errors import FozoError
from fozo.io import open_npz, read_json, read_text, unreadable

MAX_DEPTH = 100  # folders inside each other, below a class
# Unpacked, a set may have ``RATIO * file + SPARE`` bytes: drawings shrink to a twentieth, a bomb to a thousandth.
RATIO = 50.0
SPARE = 64 << 20
WNID = re.compile(r"n\d{8}")
FLAT = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")
RECORD = "corruptions.json"  # in which ``fozo corrupt`` records how a tree was made
SEVERITIES = ("1", "2", "3", "4", "5")


def some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:3])
    return f"{listed} and {len(names) - 3} more" if len(names) > 3 else listed or "nothing"


@dataclass(frozen=True)
class FolderStore:
    """Image files on disk, one folder for each domain."""

    folders: Mapping[Domain, Path]

    def read(self, path: str, domain: Domain) -> Pixels:
        return read_image(self.folders[domain] / path)

    def measure(self, path: str, domain: Domain) -> tuple[int, int]:
        return header_size(self.folders[domain] / path)

    def stamps(self, paths: Sequence[str], domain: Domain) -> list[int]:
        try:
            return [(self.folders[domain] / path).stat().st_size for path in paths]
        except OSError as error:
            raise FozoError(f"cannot read {error.filename}: {error.strerror}; check the path") from error


class Listing(NamedTuple):
    """What a folder holds, without hidden names (macOS leaves ``._x.jpg``), sorted."""

    folders: list[str]
    images: list[str]  # names with the ending of an image
    links: set[str]  # those of the folders that are symbolic links


def _refuse(error: OSError) -> NoReturn:
    name = os.fsdecode(error.filename)
    raise FozoError(f"cannot list {name:.200}: {error.strerror}; give a folder you may read") from error


class Tree:
    """Folders below a root. Each is listed once, when it is first needed."""

    def __init__(self, root: Path, listings: dict[str, Listing] | None = None) -> None:
        self.root = root
        self._listings: dict[str, Listing] = {} if listings is None else listings

    def below(self, folder: str) -> Tree:
        """The tree of a sub-folder; what is listed already is not listed again."""
        return Tree(self.root / folder, self._listings)

    def listing(self, folder: str = "") -> Listing:
        return self.listings((folder,))[0]

    def listings(self, folders: Iterable[str]) -> list[Listing]:
        """List many folders; one Python call serves a thousand classes."""
        listed = []
        for folder in folders:
            path = f"{self.root}/{folder}" if folder else str(self.root)
            if path not in self._listings:
                listing = Listing([], [], set())
                try:
                    with os.scandir(path) as entries:
                        for entry in entries:
                            name = entry.name
                            if name.startswith("."):
                                continue
                            if name.lower().endswith(EXTENSIONS):
                                listing.images.append(name)
                            elif entry.is_dir():
                                listing.folders.append(name)
                                if entry.is_symlink():
                                    listing.links.add(name)
                except OSError as error:
                    _refuse(error)
                listing.folders.sort()
                listing.images.sort()
                self._listings[path] = listing
            listed.append(self._listings[path])
        return listed

    def classes(self) -> dict[str, list[str]]:
        """Map every class folder to the paths of its images (``class/file``), all sorted."""
        paths: dict[str, list[str]] = {}
        names = self.listing().folders
        for name, listing in zip(names, self.listings(names), strict=True):
            paths[name] = list(map(f"{name}/".__add__, listing.images))
            if listing.folders:
                self._descend(name, listing, paths[name])
        return paths

    def _descend(self, folder: str, listing: Listing, paths: list[str]) -> None:
        """Add the images in the sub-folders of a class; a link among them could lead back up and never end."""
        inside = [f"{folder}/{name}" for name in listing.folders if name not in listing.links]
        if inside and folder.count("/") >= MAX_DEPTH:
            raise FozoError(f"{self.root} has folders nested by the hundred; give a folder of classes")
        for name, deeper in zip(inside, self.listings(inside), strict=True):
            paths += map(f"{name}/".__add__, deeper.images)
            self._descend(name, deeper, paths)


def label(found: Mapping[str, Sequence[str]], classes: Sequence[str]) -> tuple[Sample, ...]:
    """Label images by the position of their class folder in ``classes``; folders may be absent."""
    index = {name: position for position, name in enumerate(classes)}
    if len(index) != len(classes):
        raise FozoError(f"the class list has {len(classes)} entries of which {len(index)} differ; name each once")
    unknown = [name for name in found if name not in index]
    if unknown:
        raise FozoError(
            f"{len(unknown)} of {len(found)} class folders are not among the {len(classes)} expected classes "
            f"(like {classes[0]}): {some(unknown)}; remove them, or pass classes= with the right list"
        )
    samples: list[Sample] = []
    for name, paths in found.items():
        samples += map(Sample, paths, repeat(index[name]))  # no call of Python's for each of a million files
    return tuple(samples)


def open_folder(tree: Tree, classes: Sequence[str] | None = None) -> ImageSet:
    """Open ``class/.../image`` folders; without ``classes`` the sorted folder names are the classes."""
    by_class = tree.classes()
    empty = [name for name, paths in by_class.items() if not paths]
    if not by_class or empty:
        fault = f"{some(empty)} hold no images" if empty else "there are no folders"
        should = f"{tree.root} should hold one folder of images for each class"
        raise FozoError(f"{should}, but {fault}; give the folder above the classes")
    return from_classes("folder", tree.root, by_class, tuple(by_class if classes is None else classes))


def from_classes(name: str, root: Path, found: Mapping[str, Sequence[str]], classes: tuple[str, ...]) -> ImageSet:
    return with_size(ImageSet(name, label(found, classes), classes, FolderStore({CLEAN: root})))


def unlabelled(name: str, root: Path, paths: Iterable[str]) -> ImageSet:
    """Make a set of image files without labels: all have the label 0."""
    return ImageSet(name, tuple(Sample(path, 0) for path in paths), ("",), FolderStore({CLEAN: root}))


def image_paths(root: Path, empty: bool = False) -> list[str]:
    """List every image below a folder, sorted by name; folders mean nothing. ``empty``: there may be none."""
    files = (Path(folder, name) for folder, _, names in os.walk(root, onerror=_refuse) for name in names)
    images = (file for file in files if file.name.lower().endswith(EXTENSIONS) and not file.name.startswith("."))
    paths = sorted(file.relative_to(root).as_posix() for file in images if file.is_file())
    if not paths and not empty:
        raise FozoError(f"{root} holds no images ({', '.join(EXTENSIONS)}); check the path")
    return paths


def open_unlabelled(root: Path) -> ImageSet:
    if not root.is_dir():
        raise FozoError(f"{root} is not a folder; give a folder of images")
    return with_size(unlabelled("unlabelled", root, image_paths(root)))


@dataclass(frozen=True)
class ArrayStore:
    """Images in one array, each called by its number."""

    pixels: Pixels

    def read(self, path: str, domain: Domain) -> Pixels:
        """Copy one image; gray ones are repeated into three channels, as from files."""
        image = np.array(self.pixels[int(path)])
        return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image

    def measure(self, path: str, domain: Domain) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[2]

    def stamps(self, paths: Sequence[str], domain: Domain) -> list[int]:
        return [zlib.crc32(self.read(path, domain).tobytes()) for path in paths]


def open_arrays(tree: Tree, classes: Names = None) -> ImageSet:
    """Open images packed into one ``.npz`` file, with its own class names unless others are given.

    Its arrays are ``images`` (``uint8 [N, height, width]``, or ``[N, height, width, 3]``), ``labels`` (``[N]``) and
    ``classes`` (names, ``[C]``).
    """
    root = tree.root
    with (
        unreadable(f"{root} is not a readable .npz of images, labels and classes", "write it again"),
        open_npz(root, kinds="biufU", ratio=RATIO, spare=SPARE) as (specs, read),
    ):
        pixels, numbers, names = (specs[name] for name in ("images", "labels", "classes"))
        fits = pixels.dtype == np.uint8 and pixels.shape[3:] in ((), (3,)) and len(pixels.shape) > 2
        if not fits or numbers.dtype.kind not in "iu" or math.prod(numbers.shape) != pixels.shape[0]:
            raise FozoError(
                f"{root} holds {pixels.dtype} images of shape {list(pixels.shape)} and {numbers.dtype} labels of shape "
                f"{list(numbers.shape)}; give uint8 images [N, height, width(, 3)] and N whole numbers"
            )
        if names.dtype.kind != "U" or len(names.shape) != 1 or 0 in pixels.shape:
            raise ValueError("classes is not a list of names, or the images have no pixels")
        images = read("images").view(np.uint8)
        labels = read("labels").astype(np.int64).ravel().tolist()
        named = tuple(map(str, read("classes") if classes is None else classes))
    samples = tuple(Sample(f"{number:06d}", label) for number, label in enumerate(labels))
    low = min(labels)
    high = max(labels)
    if low < 0 or high >= len(named):
        raise FozoError(f"{root} has labels from {low} to {high} for {len(named)} classes; pass classes= to name them")
    size = (images.shape[1], images.shape[2])
    return ImageSet("arrays", samples, named, ArrayStore(images), size=size)


@lru_cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids of ImageNet-1k; a class's label is its position here."""
    return tuple(files("fozo.data.sets").joinpath("imagenet_wnids.txt").read_text().split())


@lru_cache
def imagenet_r_wnids() -> tuple[str, ...]:
    return tuple(files("fozo.data.sets").joinpath("imagenet_r_wnids.txt").read_text().split())


def _open_whole(name: str, title: str, tree: Tree, classes: tuple[str, ...]) -> ImageSet:
    by_class = tree.classes()
    missing = [folder for folder in classes if not by_class.get(folder)]
    extra = [folder for folder in by_class if folder not in set(classes)]
    if missing or extra:
        raise FozoError(
            f"{title} should have {len(classes)} class folders ({classes[0]} ... {classes[-1]}) with images, "
            f"but {tree.root} lacks {len(missing)} ({some(missing)}) and has {len(extra)} others ({some(extra)}); "
            f"give the folder above the classes of the whole set"
        )
    return from_classes(name, tree.root, {folder: by_class[folder] for folder in classes}, classes)


def open_imagenet(tree: Tree) -> ImageSet:
    """Open the validation set or any subset of it, in wnid folders."""
    return from_classes("imagenet", tree.root, tree.classes(), imagenet_wnids())


def open_imagenet_r(tree: Tree) -> ImageSet:
    """Open ImageNet-R: labels 0-199, with the mask of the 200 model outputs that they mean."""
    images = _open_whole("imagenet-r", "ImageNet-R", tree, imagenet_r_wnids())
    return replace(images, mask=tuple(map(imagenet_wnids().index, images.classes)))


def open_imagenet_v2(tree: Tree) -> ImageSet:
    """Open ImageNet-V2, whose folders 0 ... 999 are the labels; sorted as strings they would be wrong."""
    images = _open_whole("imagenet-v2", "ImageNet-V2", tree, tuple(map(str, range(1000))))
    return replace(images, classes=imagenet_wnids())


def open_imagenet_sketch(tree: Tree) -> ImageSet:
    return _open_whole("imagenet-sketch", "ImageNet-Sketch", tree, imagenet_wnids())


def robustbench_list(file: str | Path) -> tuple[str, ...]:
    """Read RobustBench's 5000 validation images in its order, for :meth:`ImageSet.select`.

    The file ``robustbench/helper_files/imagenet_test_image_ids.txt`` has lines ``wnid/ILSVRC2012_val_XXXXXXXX.JPEG``.
    """
    paths = tuple(line.strip() for line in read_text(file).splitlines() if line.strip())
    wrong = [path for path in paths if not re.fullmatch(rf"{WNID.pattern}/{FLAT.pattern}", path)]
    if wrong or not paths:
        raise FozoError(
            f"{file} should hold lines like n01440764/ILSVRC2012_val_00000293.JPEG, but has "
            f"{repr(wrong[0]) if wrong else 'none'}; give RobustBench's imagenet_test_image_ids.txt"
        )
    return paths


def kind_folders(tree: Tree) -> dict[str, str]:
    """Find the folders of an ImageNet-C-shaped tree: ``kind/severity/class``, or that below group folders.

    The published tars unpack to noise/, blur/, weather/, digital/ and extra/ with the kinds inside. A kind is a folder
    that holds severities 1-5 and nothing else, with class folders in them, whatever its name: so ImageNet-3DCC or
    ImageNet-C-bar open as well.
    """
    folder_of: dict[str, str] = {}
    folders = tree.listing().folders
    for _ in ("kinds", "groups of kinds"):
        inside: list[str] = []
        for folder, listing in zip(folders, tree.listings(folders), strict=True):
            names = listing.folders
            if not names:
                continue
            if set(names) <= set(SEVERITIES) and tree.listing(f"{folder}/{names[0]}").folders:
                folder_of[folder.rpartition("/")[2]] = folder
            else:
                inside += map(f"{folder}/".__add__, names)
        folders = inside
    return {kind: folder_of[kind] for kind in in_paper_order(folder_of)}


def read_record(root: Path) -> dict[str, object] | None:
    """Read how a tree was made; ``None`` for a tree that fozo did not make."""
    path = root / RECORD
    return read_json(path, "choose another folder") if path.exists() else None


def open_imagenet_c(
    tree: Tree, classes: Names = None, kinds: Names = None, severities: Sequence[int] | None = None
) -> ImageSet:
    """Open ``kind/severity/class/file``; every domain must hold the same images, all of one size.

    All 75 published domains list 3.75 million files: pass ``kinds`` or ``severities`` to look at fewer.
    """
    root = tree.root
    folders = {
        Domain(kind, int(severity)): f"{folder}/{severity}"
        for kind, folder in kind_folders(tree).items()
        for severity in tree.listing(folder).folders
    }
    if not folders:
        raise FozoError(
            f"{root} should hold folders kind/severity/class like gaussian_noise/5/n01440764, perhaps below groups "
            f"like noise, but has {some(tree.listing().folders)}; give the folder above the kinds"
        )
    domains = choose(list(folders), kinds, severities)
    by_class = tree.below(folders[domains[0]]).classes()
    paths = set(chain.from_iterable(by_class.values()))
    for domain in domains[1:]:
        others = set(chain.from_iterable(tree.below(folders[domain]).classes().values()))
        if others != paths:
            odd = sorted(others ^ paths)[0]
            raise FozoError(
                f"{domain.name} has {len(others)} images and {domains[0].name} {len(paths)}, and only one of them has "
                f"{odd}; complete the tree, or pass kinds= and severities= that are complete"
            )
    if classes is None:
        classes = imagenet_wnids() if all(map(WNID.fullmatch, by_class)) else tuple(by_class)
    store = FolderStore({domain: root / folders[domain] for domain in domains})
    images = ImageSet("imagenet-c", label(by_class, classes), tuple(classes), store, domains, record=read_record(root))
    sizes = probe(images)
    images = replace(images, size=next(iter(sizes.values()), None))
    for (path, domain), size in sizes.items():
        images.check_size(path, domain, size)
    return images
