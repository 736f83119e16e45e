"""Textures for the frost corruption: the published photographs where they are installed, else drawn ones.

The photographs are not ours to ship. The ``imagecorruptions`` package carries them, and when it is
installed they are read from its folder (it is never imported: it needs an older NumPy). Otherwise five
textures are drawn: a cloudy haze with feathers of ice, with the mean and standard deviation of each photograph's
colours. Accuracies on them are not comparable with published ones, so every corrupted tree records
:func:`frost_source`.
"""

import importlib.util
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from fozo.data.corruptions.common import opencv, plasma
from fozo.data.images import Pixels, read_image

# The published program lists six files and draws among the first five.
FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
COLOURS = (  # mean and standard deviation of the red, green and blue of each file
    ((78, 149, 166), (27, 16, 15)),
    ((201, 205, 214), (21, 22, 23)),
    ((201, 205, 214), (21, 22, 23)),
    ((138, 153, 165), (28, 28, 30)),
    ((112, 123, 135), (44, 43, 42)),
)


def _folder() -> Path | None:
    spec = importlib.util.find_spec("imagecorruptions")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "frost"
        if all((folder / name).is_file() for name in FILES):
            return folder
    return None


def frost_source() -> Literal["imagecorruptions", "procedural"]:
    """Say where the frost comes from: the published photographs, or fozo's drawn textures."""
    return "procedural" if _folder() is None else "imagecorruptions"


@lru_cache(maxsize=8)
def textures(shrink: float) -> tuple[Pixels, ...]:
    """Return the five textures, ``uint8 [height, width, 3]``, at ``shrink`` of their size."""
    folder = _folder()
    images = map(draw_texture, range(len(COLOURS))) if folder is None else (read_image(folder / name) for name in FILES)
    if shrink == 1:
        return tuple(images)
    return tuple(opencv().resize(image, (0, 0), fx=shrink, fy=shrink) for image in images)


def draw_texture(index: int, size: int = 512) -> Pixels:
    """Draw frost: feathers of ice over a haze, in the colours of photograph ``index``."""
    rng = np.random.Generator(np.random.Philox(key=index))
    haze = plasma(size, 1.7, rng)
    ice = _feathers(size, rng)
    # Ice is where the haze is thick; grain is the sparkle of single crystals.
    pattern = haze + 1.6 * ice * (0.4 + haze) + 0.07 * rng.normal(size=haze.shape)
    pattern = (pattern - pattern.mean()) / pattern.std()
    mean, std = (np.array(colour, np.float64) for colour in COLOURS[index])
    return np.asarray(np.clip(mean + std * pattern[..., None], 0, 255), np.uint8)


def _feathers(size: int, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw many feathers: a bent stem with barbs at about 60 degrees, as ice grows, shorter at the tip."""
    cv2 = opencv()
    canvas = np.zeros((size, size), np.uint8)
    # The brightest last, so that it lies on top.
    for light in np.sort(rng.integers(40, 220, size)):
        length = rng.uniform(size / 20, size / 5)
        steps = rng.uniform(1.5, 6, int(length / 3.5))
        along = np.cumsum(steps) / steps.sum()
        heading = rng.uniform(0, 2 * np.pi) + rng.uniform(-1, 1) * along
        stem = rng.uniform(0, size, 2) + np.cumsum(steps * np.stack([np.cos(heading), np.sin(heading)]), axis=1).T
        # OpenCV draws between pixels when coordinates carry fractional bits: 4 of them, a 16th of a pixel.
        lines = [np.rint(16 * stem).astype(np.int32)]
        for side in (-np.pi / 3, np.pi / 3):
            barb = heading + side + rng.normal(0, 0.15, along.shape)
            extent = 0.35 * length * (1 - along) * rng.uniform(0.3, 1, along.shape)
            tips = stem + (extent * np.stack([np.cos(barb), np.sin(barb)])).T
            lines.extend(np.rint(16 * np.stack([stem, tips], axis=1)).astype(np.int32))
        cv2.polylines(canvas, lines, False, int(light), int(rng.integers(1, 3)), cv2.LINE_AA, 4)
    return np.asarray(canvas / 255)
