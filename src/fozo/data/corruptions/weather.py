"""Weather: snow, frost, fog, and spatter of water or mud."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from fozo.data.corruptions.common import clipped_zoom, line_blur, opencv, plasma, quantise, smooth
from fozo.data.corruptions.frost import textures
from fozo.data.images import Pixels

WATER = np.array([175, 238, 238], np.float32) / 255  # pale turquoise
MUD = np.array([63, 42, 20], np.float32) / 255


def snow(image: Pixels, rng: Generator, *constants: float) -> Pixels:
    """Whiten the scene and add streaks of falling flakes, once as drawn and once turned by 180 degrees."""
    mean, scale, zoom, threshold, radius, sigma, share = constants
    clean = image.astype(np.float32) / 255
    flakes = clipped_zoom(rng.normal(mean, scale, size=image.shape[:2]).astype(np.float32), zoom)
    flakes[flakes < threshold] = 0
    streaks = line_blur(quantise(flakes), radius, sigma, angle=rng.uniform(-135, -45)) / np.float32(255)
    gray = clean @ np.array([0.299, 0.587, 0.114], np.float32)
    white = np.maximum(clean, gray[..., None] * 1.5 + 0.5)
    streaks += streaks[::-1, ::-1].copy()
    return quantise(share * clean + (1 - share) * white + streaks[..., None])


def frost(image: Pixels, rng: Generator, weight: float, strength: float, shrink: float) -> Pixels:
    """Lay a random part of a photograph of frost over the scene."""
    choices = textures(shrink)
    texture = choices[rng.integers(len(choices))]
    height, width = image.shape[:2]
    factor = max(height / texture.shape[0], width / texture.shape[1])
    if factor > 1:  # enlarged, in its proportions, until the image can be cut out of it
        size = (int(np.ceil(texture.shape[1] * factor)), int(np.ceil(texture.shape[0] * factor)))
        texture = opencv().resize(texture, size, interpolation=opencv().INTER_CUBIC)
    top = rng.integers(max(texture.shape[0] - height, 1))
    left = rng.integers(max(texture.shape[1] - width, 1))
    ice = texture[top : top + height, left : left + width]
    return np.clip(weight * image + strength * ice, 0, 255).astype(np.uint8)


def fog(image: Pixels, rng: Generator, thickness: float, decay: float) -> Pixels:
    """Add a cloudy fractal, then darken so that the brightest value stays what it was."""
    height, width = image.shape[:2]
    clean = image / 255
    brightest = clean.max()
    cloud = plasma(1 << (max(height, width) - 1).bit_length(), decay, rng)[:height, :width, None]
    return quantise((clean + thickness * cloud) * brightest / (brightest + thickness))


def spatter(image: Pixels, rng: Generator, *constants: float) -> Pixels:
    """Drops of water (severities 1-3) or of mud (4-5) on the lens."""
    mean, scale, smoothness, threshold, strength, mud = constants
    clean = image.astype(np.float32) / 255
    liquid = smooth(rng.normal(mean, scale, size=image.shape[:2]), smoothness)
    liquid[liquid < threshold] = 0
    if mud:
        cover = smooth((liquid > threshold).astype(np.float32), strength)[..., None]
        cover[cover < 0.8] = 0
        return quantise(clean * (1 - cover) + MUD * cover)
    # Values above 1 would wrap around in a byte. They are far out in the tail, but no draw is impossible.
    drops = (np.minimum(liquid, 1) * 255).astype(np.uint8)
    light = drops * _rim_light(drops)
    if light.max() > 0:
        light *= strength / light.max()
    return quantise(clean + light[..., None] * WATER)


def _rim_light(drops: Pixels) -> npt.NDArray[np.float32]:
    """Light falling on drops from one corner: an emboss of the distance to their rims."""
    cv2 = opencv()
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    shallow = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], np.float32)
    lit = cv2.filter2D(cv2.equalizeHist(shallow), cv2.CV_8U, emboss)
    light: npt.NDArray[np.float32] = cv2.blur(lit, (3, 3)).astype(np.float32)
    return light
