"""Class folders: the plain ImageFolder layout, and the listing that the ImageNet layouts share."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fozo.data.images import EXTENSIONS
from fozo.data.sets.base import CLEAN, FolderStore, ImageSet, Sample, ready_size
from fozo.errors import FozoError


def some(names: Sequence[str], count: int = 3) -> str:
    """List the first few names for an error message."""
    listed = ", ".join(names[:count])
    return f"{listed} and {len(names) - count} more" if len(names) > count else listed or "nothing"


def is_image(name: str) -> bool:
    """Whether a file name is an image's."""
    return name.lower().endswith(EXTENSIONS)


def entries(folder: Path) -> tuple[list[str], list[str]]:
    """List the visible sub-folders and the image files of a folder, both sorted."""
    folders, files = [], []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                if entry.name.startswith("."):  # macOS leaves ._x.jpg
                    continue
                if is_image(entry.name):
                    files.append(entry.name)
                elif entry.is_dir():
                    folders.append(entry.name)
    except OSError as error:
        raise FozoError(f"cannot list {folder}: {error.strerror}; give a folder you may read") from error
    return sorted(folders), sorted(files)


def scan(root: Path) -> dict[str, list[str]]:
    """Map every class folder to the paths of its images (``class/file``), all sorted."""
    try:
        return {name: _below(root / name, f"{name}/") for name in entries(root)[0]}
    except RecursionError as error:
        raise FozoError(f"{root} has folders nested by the hundred; give a folder of classes") from error


def _below(folder: Path, prefix: str) -> list[str]:
    folders, files = entries(folder)
    paths = [prefix + name for name in files]
    for name in folders:
        # A link to a folder inside a class could lead back up and never end.
        if not (folder / name).is_symlink():
            paths += _below(folder / name, f"{prefix}{name}/")
    return paths


def label(found: Mapping[str, Sequence[str]], classes: Sequence[str]) -> tuple[Sample, ...]:
    """Label images by their class folder's place in ``classes``, whichever folders are present."""
    index = {name: position for position, name in enumerate(classes)}
    if len(index) != len(classes):
        raise FozoError(f"the class list has {len(classes)} entries of which {len(index)} differ; name each once")
    unknown = [name for name in found if name not in index]
    if unknown:
        raise FozoError(
            f"{len(unknown)} of {len(found)} class folders are not among the {len(classes)} expected classes "
            f"(like {classes[0]}): {some(unknown)}; remove them, or pass classes= with the right list"
        )
    return tuple(Sample(path, index[name]) for name, paths in found.items() for path in paths)


def open_folder(root: Path, classes: Sequence[str] | None = None) -> ImageSet:
    """Open ``class/.../image`` folders; without ``classes`` the sorted folder names are the classes."""
    found = scan(root)
    empty = [name for name, paths in found.items() if not paths]
    if not found or empty:
        fault = f"{some(empty)} hold no images" if empty else "there are no folders"
        raise FozoError(
            f"{root} should hold one folder of images for each class, but {fault}; give the folder above the classes"
        )
    return from_folders("folder", root, found, tuple(found if classes is None else classes))


def from_folders(name: str, root: Path, found: Mapping[str, Sequence[str]], classes: tuple[str, ...]) -> ImageSet:
    """Make a clean set of what :func:`scan` found."""
    images = ImageSet(name, label(found, classes), classes, FolderStore({CLEAN: root}))
    return replace(images, size=ready_size(images))


def open_unlabelled(root: Path) -> ImageSet:
    """List every image below a folder, in the order of their names; folders mean nothing."""
    if not root.is_dir():
        raise FozoError(f"{root} is no folder; give a folder of images")
    paths = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in EXTENSIONS and not path.name.startswith(".") and path.is_file()
    )
    if not paths:
        raise FozoError(f"{root} holds no images ({', '.join(EXTENSIONS)}); check the path")
    images = ImageSet("unlabelled", tuple(Sample(path, 0) for path in paths), ("",), FolderStore({CLEAN: root}))
    return replace(images, size=ready_size(images))
