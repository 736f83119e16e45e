"""ImageNet: its validation set, its list of RobustBench's 5000, its natural shifts R, V2 and Sketch, and ImageNet-C.

Labels always come from the full list of 1000 WordNet ids in sorted order, never from the position of a
folder, so a subset of ImageNet is labelled like the whole. The sets that are always scored whole (R, V2,
Sketch) must have all their classes: a missing one would silently change the score.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from itertools import chain
from pathlib import Path

from fozo.data.sets.base import Domain, ImageSet, Names, choose, in_paper_order, probe
from fozo.data.sets.folder import FolderStore, Tree, from_classes, label, some
from fozo.errors import FozoError
from fozo.io import read_json, read_text

WNID = re.compile(r"n\d{8}")
FLAT = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")
RECORD = "corruptions.json"  # in which ``fozo corrupt`` records how a tree was made
SEVERITIES = ("1", "2", "3", "4", "5")


@lru_cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids of ImageNet-1k; a class's label is its position here."""
    return tuple(files("fozo.data.sets").joinpath("imagenet_wnids.txt").read_text().split())


@lru_cache
def imagenet_r_wnids() -> tuple[str, ...]:
    return tuple(files("fozo.data.sets").joinpath("imagenet_r_wnids.txt").read_text().split())


def _open_whole(name: str, title: str, tree: Tree, classes: tuple[str, ...]) -> ImageSet:
    found = tree.classes()
    missing = [folder for folder in classes if not found.get(folder)]
    extra = [folder for folder in found if folder not in set(classes)]
    if missing or extra:
        raise FozoError(
            f"{title} should have {len(classes)} class folders ({classes[0]} ... {classes[-1]}) with images, "
            f"but {tree.root} lacks {len(missing)} ({some(missing)}) and has {len(extra)} others ({some(extra)}); "
            f"give the folder above the classes of the whole set"
        )
    return from_classes(name, tree.root, {folder: found[folder] for folder in classes}, classes)


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
    found: dict[str, str] = {}
    folders = tree.listing().folders
    for _ in ("kinds", "groups of kinds"):
        inside: list[str] = []
        for folder, listing in zip(folders, tree.listings(folders), strict=True):
            names = listing.folders
            if not names:
                continue
            if set(names) <= set(SEVERITIES) and tree.listing(f"{folder}/{names[0]}").folders:
                found[folder.rpartition("/")[2]] = folder
            else:
                inside += map(f"{folder}/".__add__, names)
        folders = inside
    return {kind: found[kind] for kind in in_paper_order(found)}


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
    found = tree.below(folders[domains[0]]).classes()
    paths = set(chain.from_iterable(found.values()))
    for domain in domains[1:]:
        others = set(chain.from_iterable(tree.below(folders[domain]).classes().values()))
        if others != paths:
            odd = sorted(others ^ paths)[0]
            raise FozoError(
                f"{domain.name} has {len(others)} images and {domains[0].name} {len(paths)}, and only one of them has "
                f"{odd}; complete the tree, or pass kinds= and severities= that are complete"
            )
    if classes is None:
        classes = imagenet_wnids() if all(map(WNID.fullmatch, found)) else tuple(found)
    store = FolderStore({domain: root / folders[domain] for domain in domains})
    images = ImageSet("imagenet-c", label(found, classes), tuple(classes), store, domains, record=read_record(root))
    sizes = probe(images)
    images = replace(images, size=next(iter(sizes.values()), None))
    for (path, domain), size in sizes.items():
        images.check_size(path, domain, size)
    return images
