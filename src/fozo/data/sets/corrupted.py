"""Sets stored under corruptions: ImageNet-C trees of files, and CIFAR-10-C/100-C arrays."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fozo.data.corruptions import KINDS
from fozo.data.sets.arrays import ArrayStore
from fozo.data.sets.base import Domain, ImageSet, Sample, mixed_sizes, probe
from fozo.data.sets.folder import FolderStore, Tree, label, some
from fozo.data.sets.imagenet import WNID, imagenet_wnids
from fozo.errors import FozoError
from fozo.io import open_regular, read_array_spec, read_json

RECORD = "corruptions.json"
"""The file in which ``fozo corrupt`` records how a tree was made."""
SEVERITIES = ("1", "2", "3", "4", "5")


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
    return {kind: found[kind] for kind in _in_paper_order(found)}


def _in_paper_order(kinds: Collection[str]) -> list[str]:
    """The paper's kinds first, in its order; then others by name."""
    return [kind for kind in KINDS if kind in kinds] + sorted(set(kinds) - set(KINDS))


def read_record(root: Path) -> dict[str, object] | None:
    """Read how a tree was made; ``None`` for a tree that fozo did not make."""
    path = root / RECORD
    return read_json(path, "choose another folder") if path.exists() else None


def choose(found: Sequence[Domain], kinds: Sequence[str] | None, severities: Sequence[int] | None) -> list[Domain]:
    """Keep the wanted kinds and severities, refusing those that are not there."""
    present_kinds, present_levels = {domain.kind for domain in found}, {domain.severity for domain in found}
    for what, wanted, present in (("kind", kinds, present_kinds), ("severity", severities, present_levels)):
        absent = [value for value in wanted or () if value not in present]
        if absent:
            has = ", ".join(map(str, sorted(present)))
            raise FozoError(f"there is no {what} {absent[0]!r} in this set; it has {has}")
    wanted_kinds = present_kinds if kinds is None else kinds
    wanted_levels = present_levels if severities is None else severities
    return [domain for domain in found if domain.kind in wanted_kinds and domain.severity in wanted_levels]


def open_imagenet_c(
    tree: Tree,
    classes: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
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
            f"{root} should hold folders kind/severity/class like gaussian_noise/5/n01440764, perhaps below "
            f"noise, blur, weather, digital and extra, but has {some(tree.listing().folders)}; "
            f"give the folder above the kinds"
        )
    domains = tuple(choose(list(folders), kinds, severities))
    found = tree.below(folders[domains[0]]).classes()
    paths = set(chain.from_iterable(found.values()))
    for domain in domains[1:]:
        others = set(chain.from_iterable(tree.below(folders[domain]).classes().values()))
        if others != paths:
            odd = sorted(others ^ paths)[0]
            raise FozoError(
                f"every domain should hold the same images, but {domain.name} has {len(others)} and "
                f"{domains[0].name} has {len(paths)}, and only one of them has {odd}; complete the tree, or "
                f"pass kinds= and severities= that are complete"
            )
    if classes is None:
        classes = imagenet_wnids() if all(map(WNID.fullmatch, found)) else tuple(found)
    store = FolderStore({domain: root / folders[domain] for domain in domains})
    images = ImageSet("imagenet-c", label(found, classes), tuple(classes), store, domains, record=read_record(root))
    sizes = probe(images)
    images = replace(images, size=next(iter(sizes.values()), None))
    for (path, domain), size in sizes.items():
        if size != images.size:
            raise mixed_sizes(images, path, domain, size)
    return images


def _map(file: Path) -> npt.NDArray[np.generic]:
    """Map an array into memory, once its header agrees with the length of its file."""
    try:
        with open_regular(file) as stream:
            spec, start = read_array_spec(stream), stream.tell()
            if start + spec.bytes != os.fstat(stream.fileno()).st_size:
                raise ValueError("it is not as long as its header says")
            array: npt.NDArray[np.generic] = np.memmap(
                stream, spec.dtype, "r", start, spec.shape, "F" if spec.fortran else "C"
            )
    except FozoError:
        raise
    except Exception as error:  # numpy raises nearly anything on a damaged header
        raise FozoError(f"{file} is not a readable .npy array ({error}); download it again") from error
    return array


def open_cifar_c(
    tree: Tree,
    classes: Sequence[str] | None = None,
    kinds: Sequence[str] | None = None,
    severities: Sequence[int] | None = None,
) -> ImageSet:
    """Open ``kind.npy`` files of 5 x N images beside ``labels.npy``; the classes are numbers unless given."""
    root = tree.root
    if not (root / "labels.npy").is_file():
        raise FozoError(f"CIFAR-C should have a labels.npy beside its kind.npy files, but {root} has none")
    names = {file.stem for file in root.glob("*.npy")} - {"labels"}
    present = [Domain(kind, severity) for kind in _in_paper_order(names) for severity in range(1, 6)]
    if not present:
        raise FozoError(f"CIFAR-C should have files such as gaussian_noise.npy, but {root} has only labels.npy")
    domains = tuple(choose(present, kinds, severities))
    labels = np.asarray(_map(root / "labels.npy"))
    rows = len(labels) if labels.ndim == 1 else 0
    per_severity = rows // 5
    if not rows or rows % 5 or labels.dtype.kind not in "iu" or (labels.reshape(5, -1) != labels[:per_severity]).any():
        raise FozoError(
            f"{root / 'labels.npy'} should hold the same N whole numbers five times over, once for each "
            f"severity, but is {labels.dtype} of shape {list(labels.shape)}; download it again"
        )
    arrays: dict[str, npt.NDArray[np.uint8]] = {}
    for kind in dict.fromkeys(domain.kind for domain in domains):
        array = _map(root / f"{kind}.npy")
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[0] != rows or array.shape[3] != 3:
            raise FozoError(
                f"{root / kind}.npy should be uint8 of shape [{rows}, height, width, 3] as labels.npy has "
                f"{rows} rows, but is {array.dtype} of shape {list(array.shape)}; download it again"
            )
        arrays[kind] = array.view(np.uint8)
    sizes = {array.shape[1:3] for array in arrays.values()}
    if len(sizes) > 1:
        raise FozoError(f"all arrays of a CIFAR-C set should have one image size, but {root} has {sorted(sizes)}")
    samples = tuple(Sample(f"{i:05d}", int(value)) for i, value in enumerate(labels[:per_severity]))
    if classes is None:
        classes = tuple(map(str, range(10 if labels.max() < 10 else 100)))
    if labels.min() < 0 or labels.max() >= len(classes):
        raise FozoError(
            f"the labels in {root} go from {labels.min()} to {labels.max()}, but there are {len(classes)} "
            f"classes; pass classes= with a name for each"
        )
    height, width = sizes.pop()
    return ImageSet("cifar-c", samples, tuple(classes), ArrayStore(arrays, per_severity), domains, size=(height, width))
