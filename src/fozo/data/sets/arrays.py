"""One ``.npz`` file with images, labels and class names: small sets of small images, such as the bundled sample.

The arrays are ``images`` (``uint8 [N, height, width]``, or ``[N, height, width, 3]``), ``labels`` (``[N]``) and
``classes`` (names, ``[C]``).
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fozo.data.images import Pixels
from fozo.data.sets.base import CLEAN, Domain, ImageSet, Sample
from fozo.errors import FozoError


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
        """Tell the size that all images of an array share."""
        height, width = self.arrays[domain.kind].shape[1:3]
        return height, width

    def stamp(self, path: str, domain: Domain) -> int:
        """Checksum of one image."""
        return zlib.crc32(self.read(path, domain).tobytes())


def open_arrays(root: Path, classes: Sequence[str] | None = None) -> ImageSet:
    """Open an ``.npz`` file, with its own class names unless others are given."""
    try:
        with np.load(root, allow_pickle=False) as archive:
            images, labels, names = (archive[name] for name in ("images", "labels", "classes"))
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise FozoError(
            f"{root} is not a readable .npz of images, labels and classes ({type(error).__name__}: {error}); "
            f"write it again"
        ) from error
    colours = images.shape[3:]
    if images.dtype != np.uint8 or colours not in ((), (3,)) or images.ndim < 3 or len(images) != labels.size:
        raise FozoError(
            f"{root} holds {images.dtype} images of shape {list(images.shape)} and {labels.size} labels; uint8 images "
            f"[N, height, width] or [N, height, width, 3] and as many labels are needed"
        )
    named = tuple(map(str, names)) if classes is None else tuple(classes)
    if labels.size and not 0 <= labels.min() <= labels.max() < len(named):
        raise FozoError(f"{root} has labels from {labels.min()} to {labels.max()} for {len(named)} classes; check both")
    samples = tuple(Sample(f"{number:06d}", int(label)) for number, label in enumerate(labels.ravel()))
    size = (images.shape[1], images.shape[2])
    return ImageSet("arrays", samples, named, ArrayStore({CLEAN.kind: images}, len(images)), size=size)
