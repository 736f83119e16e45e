"""WebDataset-like tars: ``key.jpg`` beside ``key.cls``, read in place without unpacking."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from fozo.data.images import EXTENSIONS, MAX_BYTES, Pixels, header_size, read_image, unreadable
from fozo.data.sets.base import Domain, ImageSet, Sample, with_size
from fozo.data.sets.folder import Tree, some
from fozo.errors import FozoError
from fozo.io import open_regular

MAX_CLASSES = 100_000  # classes of a tar that does not name them: four times ImageNet-21k's


class Member(NamedTuple):
    """Where an image's bytes are."""

    tar: Path
    offset: int
    size: int


@dataclass(frozen=True)
class TarStore:
    """Image files inside uncompressed tars, found by offset."""

    members: Mapping[str, Member]

    def _bytes(self, path: str) -> tuple[bytes, str]:
        member = self.members[path]
        # Opening for every image keeps reads independent of each other, so threads need no lock.
        with open_regular(member.tar) as file:
            file.seek(member.offset)
            return file.read(min(member.size, MAX_BYTES + 1)), f"{path} in {member.tar}"

    def read(self, path: str, domain: Domain) -> Pixels:
        return read_image(*self._bytes(path))

    def measure(self, path: str, domain: Domain) -> tuple[int, int]:
        return header_size(*self._bytes(path))

    def stamps(self, paths: Sequence[str], domain: Domain) -> list[int]:
        return [self.members[path].size for path in paths]


def _index(tar: Path, images: dict[str, tuple[str, Member]], labels: dict[str, int]) -> None:
    """Add the image and the label of every key in one tar, in the tar's order."""
    with (
        unreadable(f"{tar} is not a readable uncompressed tar", "unzip or download it again"),
        open_regular(tar, bounded=True) as stream,
        tarfile.open(fileobj=stream, mode="r:") as archive,  # no compression: it cannot be read at an offset
    ):
        for entry in archive:
            folder, slash, file = entry.name.removeprefix("./").rpartition("/")
            stem, _, extension = file.partition(".")
            key = f"{folder}{slash}{stem}"
            if not entry.isreg() or entry.issparse() or file.startswith("."):
                continue
            if file.lower().endswith(EXTENSIONS):
                if key in images:
                    raise FozoError(f"the key {key!r} has a second image in {tar}; keys must differ")
                images[key] = f"{folder}{slash}{file}", Member(tar, entry.offset_data, entry.size)
            elif extension == "cls":
                content = archive.extractfile(entry)
                text = content.read(32).decode("ascii", "replace").strip() if content else ""
                if not text.isdecimal():
                    raise FozoError(f"{entry.name} in {tar} should hold a class number, but holds {text!r}")
                labels[key] = int(text)


def open_tar(tree: Tree, classes: Sequence[str] | None = None) -> ImageSet:
    """Open one tar or a folder of tars; the classes are the numbers up to the largest unless given."""
    root = tree.root
    images: dict[str, tuple[str, Member]] = {}
    labels: dict[str, int] = {}
    for shard in [root] if root.is_file() else sorted(root.glob("*.tar")):
        _index(shard, images, labels)
    bare = [key for key in images if key not in labels]
    if bare or not images:
        raise FozoError(
            f"{root} should hold a key.cls with the class number for every key.jpg, but of {len(images)} images "
            f"{len(bare)} have none ({some(bare)}); give a WebDataset-like tar"
        )
    highest = max(labels[key] for key in images)
    if classes is None and highest >= MAX_CLASSES:
        raise FozoError(f"{root} has a label {highest}, above the limit of {MAX_CLASSES}; name classes with classes=")
    names = tuple(map(str, range(highest + 1))) if classes is None else tuple(classes)
    if highest >= len(names):
        raise FozoError(f"{root} has a label {highest}, but there are only {len(names)} classes; complete classes=")
    samples = tuple(Sample(path, labels[key]) for key, (path, _) in images.items())
    return with_size(ImageSet("webdataset", samples, names, TarStore(dict(images.values()))))
