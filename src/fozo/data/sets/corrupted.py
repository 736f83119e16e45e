"""ImageNet-C: trees of files stored under corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from fozo.data.sets.base import Domain, ImageSet, Names, choose, in_paper_order, mixed_sizes, probe
from fozo.data.sets.folder import FolderStore, Tree, label, some
from fozo.data.sets.imagenet import WNID, imagenet_wnids
from fozo.errors import FozoError
from fozo.io import read_json

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
        if size != images.size:
            raise mixed_sizes(images, path, domain, size)
    return images
