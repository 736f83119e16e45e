"""One ``.npz`` file with images, labels and class names: small sets of small images, such as the bundled sample.

The arrays are ``images`` (``uint8 [N, height, width]``, or ``[N, height, width, 3]``), ``labels`` (``[N]``) and
``classes`` (names, ``[C]``).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fozo.data.images import Pixels
from fozo.data.sets.base import CLEAN, Domain, ImageSet, Sample
from fozo.data.sets.folder import Tree
from fozo.errors import FozoError
from fozo.io import ArraySpec, read_npz

RATIO, SPARE = 50.0, 64 << 20
"""Unpacked, a set may have ``RATIO * file + SPARE`` bytes: drawings shrink to a twentieth, a decompression bomb to a
thousandth."""


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
        """The size that all images of an array share."""
        height, width = self.arrays[domain.kind].shape[1:3]
        return height, width

    def stamps(self, paths: Sequence[str], domain: Domain) -> list[int]:
        """The checksums of the images."""
        return [zlib.crc32(self.read(path, domain).tobytes()) for path in paths]


def open_arrays(tree: Tree, classes: Sequence[str] | None = None) -> ImageSet:
    """Open an ``.npz`` file, with its own class names unless others are given."""
    root = tree.root

    def judge(specs: Mapping[str, ArraySpec], read: object) -> None:
        images, labels, names = (specs[name] for name in ("images", "labels", "classes"))
        fits = images.dtype == np.uint8 and images.shape[3:] in ((), (3,)) and len(images.shape) > 2
        if not fits or labels.dtype.kind not in "iu" or math.prod(labels.shape) != images.shape[0]:
            raise FozoError(
                f"{root} holds {images.dtype} images of shape {list(images.shape)} and {labels.dtype} labels of shape "
                f"{list(labels.shape)}; uint8 images [N, height, width] or [N, height, width, 3] and as many labels are"
                f" needed, whole numbers"
            )
        if names.dtype.kind != "U" or len(names.shape) != 1 or 0 in images.shape:
            raise ValueError("classes is not a list of names, or the images have no pixels")

    try:
        found = read_npz(root, judge, kinds="biufU", ratio=RATIO, spare=SPARE)
        images, labels = found["images"].view(np.uint8), found["labels"].astype(np.int64)
        named = tuple(map(str, found["classes"])) if classes is None else tuple(classes)
    except FozoError:
        raise
    except Exception as error:  # zipfile and numpy raise nearly anything on a damaged file
        raise FozoError(
            f"{root} is not a readable .npz of images, labels and classes ({type(error).__name__}: {error}); "
            f"write it again"
        ) from error
    if not 0 <= labels.min() <= labels.max() < len(named):
        raise FozoError(f"{root} has labels from {labels.min()} to {labels.max()} for {len(named)} classes; check both")
    samples = tuple(Sample(f"{number:06d}", int(label)) for number, label in enumerate(labels.ravel()))
    size = (images.shape[1], images.shape[2])
    return ImageSet("arrays", samples, named, ArrayStore({CLEAN.kind: images}, len(images)), size=size)
