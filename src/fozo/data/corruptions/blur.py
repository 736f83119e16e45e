"""Blur: lens out of focus, frosted glass, moving camera, zooming camera, Gaussian."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from fozo.data.corruptions.common import clipped_zoom, line_blur, opencv, quantise, smooth
from fozo.data.images import Pixels


def gaussian_blur(image: Pixels, rng: Generator, sigma: float) -> Pixels:
    return quantise(smooth(image / 255, sigma))


def defocus_blur(image: Pixels, rng: Generator, radius: float, alias: float) -> Pixels:
    """Lens out of focus: the average over a disk."""
    cv2 = opencv()
    border = 8 if radius <= 8 else radius
    axis = np.arange(-border, border + 1)
    disk = (axis[:, None] ** 2 + axis**2 <= radius**2).astype(np.float32)
    window = (3, 3) if radius <= 8 else (5, 5)
    kernel = cv2.GaussianBlur(disk / disk.sum(), window, sigmaX=alias)
    return quantise(cv2.filter2D(image / 255, -1, kernel))


def glass_blur(image: Pixels, rng: Generator, sigma: float, distance: float, rounds: float) -> Pixels:
    """Frosted glass: every pixel is replaced by one nearby, between two slight blurs."""
    distance = int(distance)
    shuffled = quantise(smooth(image / 255, sigma))
    rows, columns = (max(side - 2 * distance, 0) for side in image.shape[:2])
    for _ in range(int(rounds)):
        shuffled = displace(shuffled, rng.integers(-distance, distance, size=(rows, columns, 2)), distance)
    return quantise(smooth(shuffled / 255, sigma))


def displace(image: Pixels, draws: npt.NDArray[np.int64], distance: int) -> Pixels:
    """Give every pixel the colour of a pixel nearby, in order from the last pixel to the first.

    The published loop visits the pixels ``(h, w)`` from ``(H - distance, W - distance)`` down to ``distance + 1`` and
    means to swap ``(h, w)`` with ``(h + dy, w + dx)``. Its NumPy rows are views, so it copies the second onto the
    first, and that made ImageNet-C. A copy from a visited pixel fetches what was copied there: the sources form a
    forest, whose roots are found by jumping to the parent's parent.

    Args:
        image: ``[H, W, channels]``.
        draws: ``(dx, dy)`` in the order of the visits, ``[H - 2 distance, W - 2 distance, 2]``.
        distance: the draws are in ``[-distance, distance)``.
    """
    height, width = image.shape[:2]
    size: int = height * width
    rows = np.arange(height - distance, distance, -1)[:, None]
    columns = np.arange(width - distance, distance, -1)
    # The loop goes down the pixel numbers. A node is a pixel after its visit; a node + size, before it.
    here = rows * width + columns
    there = here + draws[..., 1] * width + draws[..., 0]
    visited = np.zeros((height, width), bool)
    visited[distance + 1 : height - distance + 1, distance + 1 : width - distance + 1] = True
    fresh = (there > here) & visited.ravel()[there]
    before = np.arange(size, 2 * size)
    parent = np.concatenate([before, before])
    parent[here] = np.where(fresh, there, there + size)
    while True:
        grandparent = parent[parent]
        if np.array_equal(grandparent, parent):
            source = parent[:size] - size
            return np.take(image.reshape(size, -1), source, axis=0).reshape(image.shape)
        parent = grandparent


def motion_blur(image: Pixels, rng: Generator, radius: float, sigma: float) -> Pixels:
    """Camera moving along a line."""
    return line_blur(image, radius, sigma, angle=rng.uniform(-45, 45))


def zoom_blur(image: Pixels, rng: Generator, stop: float, step: float) -> Pixels:
    """Camera moving towards the scene: the average over a range of zooms."""
    # Channels first: the columns are then gathered as single numbers, which NumPy does fastest.
    clean = np.ascontiguousarray((image / 255).astype(np.float32).transpose(2, 0, 1))
    factors = np.arange(1, stop, step)
    total = clean.copy()
    for factor in factors:
        total += clipped_zoom(clean, factor)
    return quantise(np.ascontiguousarray((total / (len(factors) + 1)).transpose(1, 2, 0)))
