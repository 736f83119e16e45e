"""Sets of images packed into one ``.npz`` file, such as the bundled sample.

Its arrays are ``images`` (``uint8 [N, height, width]``, or ``[N, height, width, 3]``), ``labels``
(``[N]``) and ``classes`` (names, ``[C]``).
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fozo.data.images import Pixels
from fozo.data.sets.base import Domain, ImageSet, Names, Sample
from fozo.data.sets.folder import Tree
from fozo.errors import FozoError
from fozo.io import open_npz, unreadable

# Unpacked, a set may have ``RATIO * file + SPARE`` bytes: drawings shrink to a twentieth, a bomb to a thousandth.
RATIO, SPARE = 50.0, 64 << 20


@dataclass(frozen=True)
class ArrayStore:
    """Images in one array, each called by its number."""

    pixels: Pixels

    def read(self, path: str, domain: Domain) -> Pixels:
        """Copy one image; gray ones are repeated into three channels, as from files."""
        image = np.array(self.pixels[int(path)])
        return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image

    def measure(self, path: str, domain: Domain) -> tuple[int, int]:
        return self.pixels.shape[1], self.pixels.shape[2]

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
    low, high = min(labels), max(labels)
    if low < 0 or high >= len(named):
        raise FozoError(f"{root} has labels from {low} to {high} for {len(named)} classes; pass classes= to name them")
    size = (images.shape[1], images.shape[2])
    return ImageSet("arrays", samples, named, ArrayStore(images), size=size)
