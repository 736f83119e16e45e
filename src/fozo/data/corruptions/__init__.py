"""The corruptions of ImageNet-C, 15 kinds and 4 extra ones, and a second test set of 22, at severities 1 to 5.

>>> foggy = corrupt(image, "fog", severity=5, seed=0, image_id="n01440764/a.JPEG")

A corruption is a pure function. Its randomness comes from a private generator keyed by the image's name,
the kind, the severity and the seed, so an image is corrupted in the same way whatever was corrupted before
it, in whichever process. Constants and definitions are the published ones of hendrycks/robustness; the code
is fozo's own. What differs from the published program, and why:

* Random draws come from another generator: equal in distribution, not in bits.
* Motion blur, and the streaks of snow, are computed here instead of by ImageMagick, by its definition.
* Frost needs photographs that fozo may not ship: see :func:`frost_source`.
* Any image of 8 x 8 pixels or more is accepted, square or not, in colour or gray. Noise on a gray image is
  gray; the other kinds see it as three equal channels, and what they return is converted back to gray.

The second test set (:mod:`fozo.data.corruptions.unseen`) has kinds that no method of fozo was chosen on.
"""

import difflib
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image

from fozo.data.corruptions import functions, unseen
from fozo.data.corruptions.functions import frost_source
from fozo.data.corruptions.unseen import UNSEEN_KINDS
from fozo.data.images import Pixels
from fozo.errors import FozoError
from fozo.io import read_toml

__all__ = [
    "ALL_KINDS", "EXTRA_KINDS", "KINDS", "SMALLEST_SIDE", "UNSEEN_KINDS", "check_kind", "check_severity", "corrupt",
    "frost_source",
]  # fmt: skip

KINDS: tuple[str, ...] = (  # in the order of the paper's tables, which is that of the continual stream
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip
EXTRA_KINDS: tuple[str, ...] = ("speckle_noise", "gaussian_blur", "spatter", "saturate")  # ImageNet-C's for validation
ALL_KINDS: tuple[str, ...] = (*KINDS, *EXTRA_KINDS, *UNSEEN_KINDS)
SMALLEST_SIDE = 8  # px: below it the kernels have nothing left to act on
LARGEST_SIDES = ((32, 48), (64, 96))  # constants published for 32 px are taken up to 48 px, those for 64 px up to 96 px


def _read_constants() -> dict[str, dict[int, tuple[tuple[float, ...], ...]]]:
    """The published constants of ImageNet-C, CIFAR-C and Tiny-ImageNet-C, as ``[kind][scale][severity - 1]``."""
    tables = read_toml(Path(__file__).with_name("constants.toml"))
    constants = {
        kind: {int(scale): tuple(map(tuple, rows)) for scale, rows in table.items()} for kind, table in tables.items()
    }
    # The published program has 244 where it means 224; that is what made ImageNet-C, so it stays.
    elastic = constants["elastic_transform"]
    elastic[224] = tuple(tuple(244 / 224 * value for value in values) for values in elastic[224])
    return constants


CONSTANTS = _read_constants()


def corrupt(image: Pixels, kind: str, severity: int, seed: int, *, image_id: str = "") -> Pixels:
    """Corrupt one image; the same arguments always give the same pixels.

    The shorter side decides which constants are taken: those published for 32 px up to 48 px, for 64 px up to 96 px,
    else for 224 px.

    Examples:
        >>> foggy = corrupt(images.read(0), "fog", severity=3, seed=0)
        >>> foggy.shape, foggy.dtype
        ((28, 28, 3), dtype('uint8'))

    Args:
        image: ``uint8 [height, width, 3]``, or gray ``[height, width]`` or ``[height, width, 1]``.
        kind: one of :data:`ALL_KINDS`.
        severity: 1 to 5.
        seed: changes every random draw.
        image_id: the image's name. Images with different names get different draws from one seed.

    Returns:
        The corrupted image, of the same shape and type. The input is not changed.
    """
    check_kind(kind)
    check_severity(severity)
    if image.dtype != np.uint8:
        raise FozoError(f"the image has {image.dtype} pixels; give uint8 values from 0 to 255")
    if image.ndim not in (2, 3) or image.shape[2:] not in ((), (1,), (3,)):
        raise FozoError(f"the image has shape {image.shape}; give [height, width, 3], or gray [height, width]")
    side = min(image.shape[:2])
    if side < SMALLEST_SIDE:
        size = f"{image.shape[1]} x {image.shape[0]}"
        raise FozoError(f"the image is {size} px; a corruption needs at least {SMALLEST_SIDE} x {SMALLEST_SIDE}")
    second_set = kind in UNSEEN_KINDS
    # JSON keeps the parts apart (no two different tuples have the same text), and a hash of 128 bits is the whole key
    # of the counter-based Philox, so that streams of different images never overlap.
    text = json.dumps([*(["unseen"] if second_set else []), image_id, kind, int(severity), int(seed)])
    key = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")
    rng = np.random.Generator(np.random.Philox(key=key))
    if second_set:
        constants: tuple[float, ...] = (unseen.STRENGTHS[kind][severity - 1],)
        corruption: Callable[..., Pixels] = unseen.corruption(kind)
    else:
        published_side = next((scale for scale, largest in LARGEST_SIDES if side <= largest), 224)
        constants = CONSTANTS[kind][published_side][severity - 1]
        corruption = getattr(functions, kind)
    takes_gray = kind.endswith("_noise") and not second_set
    if image.shape[2:] == (3,) or takes_gray:
        return np.ascontiguousarray(corruption(image, rng, *constants))
    coloured = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
    corrupted = Image.fromarray(corruption(coloured, rng, *constants))
    return np.array(corrupted.convert("L")).reshape(image.shape)


def check_kind(kind: str) -> None:
    if kind not in ALL_KINDS:
        close = difflib.get_close_matches(kind, ALL_KINDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose among {', '.join(ALL_KINDS)}"
        raise FozoError(f"there is no corruption {kind!r}; {hint}")


def check_severity(severity: int) -> None:
    if severity not in (1, 2, 3, 4, 5):
        raise FozoError(f"severity is {severity}, but ImageNet-C has 1 (slight) to 5 (strong)")
