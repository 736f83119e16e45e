"""What several corruptions share: quantising, Gaussian smoothing, bilinear zoom, line blur, plasma."""

from types import ModuleType

import numpy as np
import numpy.typing as npt

from fozo.data.images import Pixels
from fozo.errors import FozoError
from fozo.types import Floats


def opencv() -> ModuleType:
    try:
        import cv2
    except ImportError as error:
        raise FozoError("this corruption needs OpenCV; run: pip install 'fozo[bench]'") from error
    return cv2


def quantise(image: Floats) -> Pixels:
    """Turn values in [0, 1] into bytes, rounding down as the published program does."""
    return (np.clip(image, 0, 1) * 255).astype(np.uint8)


def smooth(image: Floats, sigma: float) -> Floats:
    """Blur the first two axes by a Gaussian cut at 4 sigma, edges repeated (scikit-image's defaults)."""
    from scipy.ndimage import gaussian_filter

    sigmas = (sigma, sigma) + (0,) * (image.ndim - 2)
    return np.asarray(gaussian_filter(image, sigmas, mode="nearest", truncate=4))


def clipped_zoom(image: npt.NDArray[np.float32], factor: float) -> npt.NDArray[np.float32]:
    """Magnify the middle of ``[..., height, width]`` bilinearly, keeping its size.

    Of each axis the middle ``ceil(n / factor)`` samples are stretched so that their ends meet the ends of the longer
    result, which is then trimmed to ``n``.
    """
    for axis in (-2, -1):
        length = image.shape[axis]
        source = int(np.ceil(length / factor))
        target = round(source * factor)
        position = (np.arange(length) + (target - length) // 2) * ((source - 1) / max(target - 1, 1))
        low = np.minimum(position.astype(np.intp), max(source - 2, 0))
        high = np.minimum(low + 1, source - 1)
        weight = (position - low).astype(np.float32).reshape((-1, 1) if axis == -2 else -1)
        start = (length - source) // 2
        below: npt.NDArray[np.float32] = np.take(image, low + start, axis)
        image = np.take(image, high + start, axis)
        # In place: the arrays are large, and this is the inner loop of zoom_blur.
        image -= below
        image *= weight
        image += below
    return image


def line_blur(image: Pixels, radius: float, sigma: float, angle: float) -> Pixels:
    """Blur along a line as ImageMagick's ``MotionBlurImage`` does.

    Its kernel is one half of a Gaussian: ``2 ceil(radius) + 1`` taps at 0, 1, 2, ... pixels in the direction of
    ``angle`` (degrees, clockwise from the x axis), each at the nearest pixel, edges repeated.
    """
    taps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(taps**2) / (2 * sigma**2))
    weights /= weights.sum()
    # Halves go down, as in ImageMagick, which takes ceil(x - 0.5).
    right = np.ceil(taps * np.cos(np.deg2rad(angle)) - 0.5).astype(int)
    down = np.ceil(taps * np.sin(np.deg2rad(angle)) - 0.5).astype(int)
    height, width = image.shape[:2]
    border = int(max(abs(right).max(), abs(down).max()))
    padding = [(border, border)] * 2 + [(0, 0)] * (image.ndim - 2)
    padded = np.pad(image, padding, mode="edge").astype(np.float32)
    total = np.zeros(image.shape, np.float32)
    for weight, y, x in zip(weights.astype(np.float32), down + border, right + border, strict=True):
        total += weight * padded[y : y + height, x : x + width]
    # ImageMagick 6 holds 16 bits in between, and rounds down when it writes 8 of them.
    return (np.rint(total * 257).astype(np.uint32) // 257).astype(np.uint8)


def plasma(size: int, decay: float, rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Draw a diamond-square fractal on a torus of ``size`` (a power of two), scaled to [0, 1].

    Each level halves the grid and gives every new point the mean of its four neighbours plus uniform noise. Its range
    is the *square* of a roughness that starts at 100 and is divided by ``decay`` at each level.
    """
    field = np.zeros((1, 1))
    roughness = 100.0

    def between(neighbours: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return neighbours / 4 + rng.uniform(-(roughness**2), roughness**2, neighbours.shape)

    while len(field) < size:
        beside = field + np.roll(field, -1, axis=1)
        centre = between(beside + np.roll(beside, -1, axis=0))
        finer = np.empty((2 * len(field), 2 * len(field)))
        finer[::2, ::2] = field
        finer[1::2, 1::2] = centre
        finer[::2, 1::2] = between(beside + centre + np.roll(centre, 1, axis=0))
        finer[1::2, ::2] = between(field + np.roll(field, -1, axis=0) + centre + np.roll(centre, 1, axis=1))
        field = finer
        roughness /= decay
    return np.asarray((field - field.min()) / (field.max() - field.min()))
