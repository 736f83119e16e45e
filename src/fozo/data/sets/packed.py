"""Sets of images packed into files: arrays in an ``.npz`` (the bundled sample, say), CIFAR-10-C/100-C, WebDataset tars.

The arrays of an ``.npz`` file are ``images`` (``uint8 [N, height, width]``, or ``[N, height, width, 3]``), ``labels``
(``[N]``) and ``classes`` (names, ``[C]``). Tars have ``key.jpg`` beside ``key.cls``, and are read without unpacking.
"""

import math
import os
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fozo.data.images import EXTENSIONS, MAX_BYTES, Pixels, header_size, read_image
from fozo.data.sets.base import CLEAN, Domain, ImageSet, Names, Sample, check_labels, choose, in_paper_order, with_size
from fozo.data.sets.folder import Tree, some
from fozo.errors import FozoError
from fozo.io import open_npz, open_regular, read_array_spec, unreadable

# Unpacked, a set may have ``RATIO * file + SPARE`` bytes: drawings shrink to a twentieth, a bomb to a thousandth.
RATIO, SPARE = 50.0, 64 << 20
MAX_CLASSES = 100_000  # classes of a tar that does not name them: four times ImageNet-21k's


@dataclass(frozen=True)
class ArrayStore:
    """Images in arrays, in memory or mapped into it, each called by its number.

    Row ``(severity - 1) * images + i`` of a kind's array is image i, as in CIFAR-C; a clean array has row i.
    """

    arrays: Mapping[str, Pixels]
    images: int

    def read(self, path: str, domain: Domain) -> Pixels:
        """Copy one image; gray ones are repeated into three channels, as from files."""
        image = np.array(self.arrays[domain.kind][max(domain.severity - 1, 0) * self.images + int(path)])
        return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image

    def measure(self, path: str, domain: Domain) -> tuple[int, int]:
        height, width = self.arrays[domain.kind].shape[1:3]
        return height, width

    def stamps(self, paths: Sequence[str], domain: Domain) -> list[int]:
        return [zlib.crc32(self.read(path, domain).tobytes()) for path in paths]


def open_arrays(tree: Tree, classes: Names = None) -> ImageSet:
    """Open an ``.npz`` file, with its own class names unless others are given."""
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
        images, labels = read("images").view(np.uint8), read("labels").astype(np.int64).ravel().tolist()
        named = tuple(map(str, read("classes") if classes is None else classes))
    samples = tuple(Sample(f"{number:06d}", label) for number, label in enumerate(labels))
    check_labels(root, samples, named)
    size = (images.shape[1], images.shape[2])
    return ImageSet("arrays", samples, named, ArrayStore({CLEAN.kind: images}, len(images)), size=size)


def _map(file: Path) -> npt.NDArray[np.generic]:
    """Map an array into memory, once its header agrees with the length of its file."""
    with unreadable(f"{file} is not a readable .npy array", "download it again"), open_regular(file) as stream:
        spec, start = read_array_spec(stream), stream.tell()
        if start + spec.bytes != os.fstat(stream.fileno()).st_size:
            raise ValueError("it is not as long as its header says")
        return np.memmap(stream, spec.dtype, "r", start, spec.shape, "F" if spec.fortran else "C")


def open_cifar_c(
    tree: Tree, classes: Names = None, kinds: Names = None, severities: Sequence[int] | None = None
) -> ImageSet:
    """Open ``kind.npy`` files of 5 x N images beside ``labels.npy``; the classes are numbers unless given."""
    root = tree.root
    names = {file.stem for file in root.glob("*.npy")} - {"labels"}
    present = [Domain(kind, severity) for kind in in_paper_order(names) for severity in range(1, 6)]
    if not present:
        raise FozoError(f"CIFAR-C should have files such as gaussian_noise.npy beside labels.npy, but {root} has none")
    domains = choose(present, kinds, severities)
    labels = np.asarray(_map(root / "labels.npy"))
    rows = len(labels) if labels.ndim == 1 else 0
    per_severity = rows // 5
    if not rows or rows % 5 or labels.dtype.kind not in "iu" or (labels.reshape(5, -1) != labels[:per_severity]).any():
        raise FozoError(
            f"{root / 'labels.npy'} should hold the same N whole numbers five times, once for each severity, but is "
            f"{labels.dtype} of shape {list(labels.shape)}; download it again"
        )
    arrays: dict[str, Pixels] = {}
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
    check_labels(root, samples, classes)
    store = ArrayStore(arrays, per_severity)
    return ImageSet("cifar-c", samples, tuple(classes), store, domains, size=store.measure("", domains[0]))


class Member(NamedTuple):
    """Where an image's bytes are in a tar."""

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
    unlabelled = [key for key in images if key not in labels]
    if unlabelled or not images:
        raise FozoError(
            f"{root} should hold a key.cls with the class number for every key.jpg, but of {len(images)} images "
            f"{len(unlabelled)} have none ({some(unlabelled)}); give a WebDataset-like tar"
        )
    highest = max(labels[key] for key in images)
    if classes is None and highest >= MAX_CLASSES:
        raise FozoError(f"{root} has a label {highest}, above the limit of {MAX_CLASSES}; name classes with classes=")
    names = tuple(map(str, range(highest + 1)) if classes is None else classes)
    samples = tuple(Sample(path, labels[key]) for key, (path, _) in images.items())
    check_labels(root, samples, names)
    return with_size(ImageSet("webdataset", samples, names, TarStore(dict(images.values()))))
