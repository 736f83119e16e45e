"""Digital processing: tone, colour, geometry, resolution, compression."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from PIL import Image

from fozo.data.corruptions.common import opencv, quantise
from fozo.data.images import Pixels


def brightness(image: Pixels, rng: Generator, rise: float) -> Pixels:
    """Raise the value of HSV. With hue and saturation kept, RGB is proportional to the value."""
    clean = image / 255
    value = clean.max(axis=2, keepdims=True)
    raised = np.clip(value + rise, 0, 1)
    black = value == 0
    return quantise(np.where(black, raised, clean * (raised / np.where(black, 1, value))))


def saturate(image: Pixels, rng: Generator, factor: float, offset: float) -> Pixels:
    """Scale the saturation of HSV. With hue and value kept, distances to the value are proportional to it."""
    clean = image / 255
    value = clean.max(axis=2, keepdims=True)
    lack = value - clean
    chroma = lack.max(axis=2, keepdims=True)
    gray = chroma == 0
    saturation = chroma / np.where(gray, 1, value)
    target = np.clip(saturation * factor + offset, 0, 1)
    # A gray pixel has hue 0 by convention, so an offset turns it red.
    lack = np.where(gray, value * (0, 1, 1), lack)
    return quantise(value - lack * (target / np.where(gray, 1, saturation)))


def contrast(image: Pixels, rng: Generator, factor: float) -> Pixels:
    """Pull every value towards its channel's mean."""
    clean = image / 255
    mean = clean.mean(axis=(0, 1), keepdims=True)
    return quantise((clean - mean) * factor + mean)


def elastic_transform(image: Pixels, rng: Generator, *shares: float) -> Pixels:
    """Stretch the image by a random affine map and then by a smooth random field."""
    from scipy.ndimage import map_coordinates

    cv2 = opencv()
    height, width = image.shape[:2]
    side = min(height, width)
    alpha, smoothness, shift = (side * share for share in shares)
    centre = np.array([width // 2, height // 2], np.float32)
    arm = side // 3
    corners = (centre + np.array([[arm, arm], [arm, -arm], [-arm, -arm]])).astype(np.float32)
    moved = corners + rng.uniform(-shift, shift, size=(3, 2)).astype(np.float32)
    affine, clean = cv2.getAffineTransform(corners, moved), image.astype(np.float32) / 255
    warped = cv2.warpAffine(clean, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    right = alpha * _smooth_reflect(rng.uniform(-1, 1, size=(height, width)), smoothness)
    down = alpha * _smooth_reflect(rng.uniform(-1, 1, size=(height, width)), smoothness)
    coordinates = np.stack([np.arange(height)[:, None] + down, np.arange(width) + right])
    channels = [map_coordinates(warped[..., c], coordinates, order=1, mode="reflect") for c in range(image.shape[2])]
    return quantise(np.stack(channels, axis=2))


def _smooth_reflect(field: npt.NDArray[np.float64], sigma: float) -> npt.NDArray[np.float64]:
    """Blur by a Gaussian cut at 3 sigma, with reflected edges: a product in the basis of the cosine transform.

    So the cost does not grow with ``sigma``, which is up to 0.76 of the image's side here.
    """
    if sigma == 0:
        return field
    from scipy import fft

    response = np.outer(_response(field.shape[0], sigma), _response(field.shape[1], sigma))
    smoothed: npt.NDArray[np.float64] = fft.idctn(fft.dctn(field) * response)
    return smoothed


@lru_cache(maxsize=16)
def _response(length: int, sigma: float) -> npt.NDArray[np.float64]:
    taps = np.arange(-int(3 * sigma + 0.5), int(3 * sigma + 0.5) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    frequency = np.pi / length * np.arange(length)
    response: npt.NDArray[np.float64] = np.cos(np.outer(frequency, taps)) @ (weights / weights.sum())
    return response


def pixelate(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Shrink and enlarge again, both by box averages."""
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Pixels, rng: Generator, quality: float) -> Pixels:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=int(quality))
    return np.array(Image.open(stream))
