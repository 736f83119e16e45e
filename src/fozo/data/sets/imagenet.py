"""ImageNet and its natural shifts: validation set, R, V2 and Sketch, and RobustBench's list of 5000.

Labels always come from the full list of 1000 WordNet ids in sorted order, never from the position of a
folder, so a subset of ImageNet is labelled like the whole. The sets that are always scored whole (R, V2,
Sketch) must have all their classes: a missing one would silently change the score.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from fozo.data.sets.base import CLEAN, ImageSet, Sample, with_size
from fozo.data.sets.folder import FolderStore, Tree, from_classes, some
from fozo.data.sets.ground_truth import read_ground_truth
from fozo.errors import FozoError
from fozo.io import read_text

WNID = re.compile(r"n\d{8}")
FLAT = re.compile(r"ILSVRC2012_val_\d{8}\.JPEG")
ROBUSTBENCH = Path("helper_files", "imagenet_test_image_ids.txt")


@lru_cache
def imagenet_wnids() -> tuple[str, ...]:
    """The 1000 WordNet ids of ImageNet-1k; a class's label is its position here."""
    return tuple(files("fozo.data.sets").joinpath("imagenet_wnids.txt").read_text().split())


@lru_cache
def imagenet_r_wnids() -> tuple[str, ...]:
    """The 200 of them that ImageNet-R has."""
    return tuple(files("fozo.data.sets").joinpath("imagenet_r_wnids.txt").read_text().split())


def _open_whole(name: str, title: str, tree: Tree, classes: tuple[str, ...]) -> ImageSet:
    """Open a set that must have images of every class and no other folders."""
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


def open_imagenet(tree: Tree, labels: str | Path | None = None) -> ImageSet:
    """Open the validation set or any subset of it: wnid folders, or flat files plus a file of labels."""
    root = tree.root
    flat = [name for name in tree.listing().images if FLAT.fullmatch(name)]
    if not flat:
        if labels is not None:
            raise FozoError(f"labels= is for flat ILSVRC2012_val files, but {root} has class folders; leave it out")
        return from_classes("imagenet", root, tree.classes(), imagenet_wnids())
    if labels is None:
        raise FozoError(
            f"{root} holds {len(flat)} flat validation files, whose names do not give the class; pass labels= "
            f"with the devkit's ILSVRC2012_validation_ground_truth.txt, a val.txt, or LOC_val_solution.csv"
        )
    truth = read_ground_truth(Path(labels), imagenet_wnids())
    unknown = [name for name in flat if name not in truth]
    if unknown:
        raise FozoError(
            f"{labels} gives no label for {len(unknown)} of {len(flat)} files ({some(unknown)}); give the full list"
        )
    index = {wnid: position for position, wnid in enumerate(imagenet_wnids())}
    # Named as in the folder layout, so that lists, shuffles and corruption noise are the same for both.
    samples = sorted(Sample(f"{truth[name]}/{name}", index[truth[name]]) for name in flat)
    return with_size(ImageSet("imagenet", tuple(samples), imagenet_wnids(), FolderStore({CLEAN: root}, flat=True)))


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


def robustbench_list(file: str | Path | None = None) -> tuple[str, ...]:
    """Read RobustBench's 5000 validation images in its order, for :meth:`ImageSet.select`.

    Args:
        file: a list of ``wnid/ILSVRC2012_val_XXXXXXXX.JPEG`` lines; by default the one in an installed
            ``robustbench``, which is not imported.
    """
    if file is None:
        package = find_spec("robustbench")
        if package is None or not package.submodule_search_locations:
            raise FozoError(
                "robustbench is not installed; run pip install --no-deps robustbench, or give its file "
                "imagenet_test_image_ids.txt"
            )
        file = Path(package.submodule_search_locations[0]) / ROBUSTBENCH
    paths = tuple(line.strip() for line in read_text(file).splitlines() if line.strip())
    wrong = [path for path in paths if not re.fullmatch(rf"{WNID.pattern}/{FLAT.pattern}", path)]
    if wrong or not paths:
        raise FozoError(
            f"{file} should hold lines like n01440764/ILSVRC2012_val_00000293.JPEG, but has "
            f"{repr(wrong[0]) if wrong else 'none'}; give RobustBench's imagenet_test_image_ids.txt"
        )
    return paths
