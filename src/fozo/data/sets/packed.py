"""Sets of images packed into arrays: an ``.npz`` (the bundled sample, say), and CIFAR-10-C/100-C.

The arrays of an ``.npz`` file are ``images`` (``uint8 [N, height, width]``, or ``[N, height, width, 3]``), ``labels``
(``[N]``) and ``classes`` (names, ``[C]``).
"""

import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fozo.data.images import Pixels
from fozo.data.sets.base import CLEAN, Domain, ImageSet, Names, Sample, check_labels, choose, in_paper_order
from fozo.data.sets.folder import Tree
from fozo.errors import FozoError
from fozo.io import open_npz, open_regular, read_array_spec, unreadable

# Unpacked, a set may have ``RATIO * file + SPARE`` bytes: drawings shrink to a twentieth, a bomb to a thousandth.
RATIO, SPARE = 50.0, 64 << 20


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
