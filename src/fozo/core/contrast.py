"""Contrast of luminance planes: CLAHE (Zuiderveld, Graphics Gems IV, 1994) as OpenCV computes it, in NumPy.

A plane is cut into ``tiles`` x ``tiles`` tiles. Each has a histogram, clipped at ``clip`` times its mean and the rest
spread evenly; its cumulative sum is the tile's lookup table. A pixel is the bilinear mean of the tables of the four
nearest tiles. Those four are packed into one 32-bit table a cell, so that each pixel is looked up once.
"""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.types import Floats

Bytes = npt.NDArray[np.uint8]
LEVELS = 256
LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue in luminance (BT.601)


def luminance(images: Floats) -> Floats:
    """Luminance ``[n, H, W]`` of RGB ``[n, 3, H, W]``; the mean of any other number of channels."""
    channels = images.shape[1]
    weights = LUMA if channels == len(LUMA) else (1 / channels,) * channels
    luma: Floats = images[:, 0] * images.dtype.type(weights[0])
    for channel in range(1, channels):
        luma += images[:, channel] * images.dtype.type(weights[channel])
    return luma


def clahe(luma: Floats, clip: float = 2.0, tiles: int = 8) -> Floats:
    """Equalise planes ``[n, H, W]`` in [0, 1], read in 256 levels, by contrast-limited adaptive histograms."""
    if luma.ndim != 3 or min(luma.shape[1:]) < tiles:
        raise FozoError(f"clahe takes planes [n, H, W] of at least {tiles}x{tiles} px, not {list(luma.shape)}")
    equalised = np.empty(luma.shape, dtype=np.float32)
    for plane, target in zip(luma, equalised, strict=True):  # one by one: a plane and its indices stay in the cache
        _equalise(np.rint(np.clip(plane, 0, 1) * 255).astype(np.uint8), clip, tiles, target)
    equalised *= np.float32(1 / 255)
    return equalised


def _equalise(pixels: Bytes, clip: float, tiles: int, target: Floats) -> None:
    height, width = pixels.shape
    down, across, tile, cell, rows, columns = _grid(height, width, tiles)
    padded = pixels if tile.shape == pixels.shape else np.pad(pixels, ((0, down), (0, across)), mode="reflect")
    area = padded.size // tiles**2
    counts = np.bincount((tile + padded).ravel(), minlength=tiles**2 * LEVELS).reshape(tiles, tiles, LEVELS)
    tables = np.pad(_tables(counts, area, clip), ((1, 1), (1, 1), (0, 0)), mode="edge")
    four = np.stack([tables[:-1, :-1], tables[:-1, 1:], tables[1:, :-1], tables[1:, 1:]], axis=-1)
    corners = four.view(np.uint32).ravel().take(cell + pixels).view(np.uint8).reshape(height, width, 4)
    # (left, right) of the upper and of the lower tiles: first across, then down.
    upper = corners[..., 0] * (1 - columns) + corners[..., 1] * columns
    lower = corners[..., 2] * (1 - columns) + corners[..., 3] * columns
    upper *= 1 - rows
    lower *= rows
    np.add(upper, lower, out=target)


def _tables(counts: npt.NDArray[np.intp], area: int, clip: float) -> Bytes:
    """Lookup tables ``[tiles, tiles, 256]`` of histograms over ``area`` pixels each, clipped as OpenCV does."""
    limit = max(int(clip * area / LEVELS), 1)
    limited = np.minimum(counts, limit)
    share, rest = np.divmod(area - limited.sum(-1, keepdims=True), LEVELS)
    step = np.maximum(LEVELS // np.maximum(rest, 1), 1)  # the rest goes to every step-th level
    level = np.arange(LEVELS)
    limited += share + ((level % step == 0) & (level < step * rest))
    heights = np.cumsum(limited, axis=-1) * np.float32((LEVELS - 1) / area)
    tables: Bytes = np.rint(heights).clip(0, LEVELS - 1).astype(np.uint8)
    return tables


@lru_cache(maxsize=4)  # 17 bytes a pixel each
def _grid(
    height: int, width: int, tiles: int
) -> tuple[int, int, npt.NDArray[np.intp], npt.NDArray[np.intp], Floats, Floats]:
    """Padding down and across, each padded pixel's tile and each pixel's cell (both times 256), and weights."""
    down = 0
    across = 0
    if height % tiles or width % tiles:  # OpenCV then pads both sides, by a whole row of tiles where one fits
        down = tiles - height % tiles
        across = tiles - width % tiles
    tile_height = (height + down) // tiles
    tile_width = (width + across) // tiles
    tile = (np.arange(height + down) // tile_height)[:, None] * tiles + np.arange(width + across) // tile_width
    row, row_weight = _between_centres(height, tile_height)
    column, column_weight = _between_centres(width, tile_width)
    cell = (row[:, None] + 1) * (tiles + 1) + column + 1
    return down, across, tile * LEVELS, cell.astype(np.intp) * LEVELS, row_weight[:, None], column_weight


def _between_centres(pixels: int, side: int) -> tuple[Floats, Floats]:
    """The tile whose centre comes before each pixel of an axis, and how far the pixel is from there to the next."""
    position = np.arange(pixels, dtype=np.float32) * np.float32(1 / side) - np.float32(0.5)
    before = np.floor(position)
    return before, position - before
