"""The 19 kinds of corruption, one function for each: noise, blur, weather, digital.

A function takes an image (``uint8 [height, width, 3]``; noise takes any number of channels, each with its own draws), a
generator and the constants of a severity.
"""

import importlib.util
import io
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from PIL import Image

from fozo.data.corruptions.common import clipped_zoom, line_blur, opencv, plasma, quantise, smooth
from fozo.data.images import Pixels, read_image

WATER = np.array([175, 238, 238], np.float32) / 255  # pale turquoise
MUD = np.array([63, 42, 20], np.float32) / 255
# The published program lists six files and draws among the first five.
FROST_FILES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
FROST_COLOURS = (  # mean and standard deviation of the red, green and blue of each file
    ((78, 149, 166), (27, 16, 15)),
    ((201, 205, 214), (21, 22, 23)),
    ((201, 205, 214), (21, 22, 23)),
    ((138, 153, 165), (28, 28, 30)),
    ((112, 123, 135), (44, 43, 42)),
)


def gaussian_noise(image: Pixels, rng: Generator, scale: float) -> Pixels:
    """Low light: normal noise of one strength everywhere."""
    return quantise(image / 255 + rng.normal(scale=scale, size=image.shape))


def shot_noise(image: Pixels, rng: Generator, photons: float) -> Pixels:
    """Few photons: each value is a Poisson count."""
    return quantise(rng.poisson(image / 255 * photons) / photons)


def impulse_noise(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Bit errors: a share of the values becomes black or white, with equal chances."""
    broken = rng.random(image.shape) <= share
    white = rng.random(image.shape) <= 0.5
    return np.where(broken, np.where(white, 255, 0), quantise(image / 255)).astype(np.uint8)


def speckle_noise(image: Pixels, rng: Generator, scale: float) -> Pixels:
    """Normal noise proportional to the value."""
    clean = image / 255
    return quantise(clean + clean * rng.normal(scale=scale, size=image.shape))


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

    ``draws`` are ``(dx, dy)`` in ``[-distance, distance)``, in the order of the visits: ``[H - 2 distance,
    W - 2 distance, 2]``.
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
    choices = frost_textures(shrink)
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
    return np.asarray(cv2.blur(lit, (3, 3)), np.float32)


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
    clean = image / 255
    mean = clean.mean(axis=(0, 1), keepdims=True)
    return quantise((clean - mean) * factor + mean)


def elastic_transform(image: Pixels, rng: Generator, *shares: float) -> Pixels:
    """Stretch the image by a random affine map and then by a smooth random field."""
    from scipy.ndimage import gaussian_filter, map_coordinates

    cv2 = opencv()
    height, width = image.shape[:2]
    side = min(height, width)
    alpha, smoothness, shift = (side * share for share in shares)
    centre = np.array([width // 2, height // 2], np.float32)
    arm = side // 3
    corners = (centre + np.array([[arm, arm], [arm, -arm], [-arm, -arm]])).astype(np.float32)
    moved = corners + rng.uniform(-shift, shift, size=(3, 2)).astype(np.float32)
    affine = cv2.getAffineTransform(corners, moved)
    clean = image.astype(np.float32) / 255
    warped = cv2.warpAffine(clean, affine, (width, height), borderMode=cv2.BORDER_REFLECT_101)
    fields = (rng.uniform(-1, 1, size=(height, width)) for _ in range(2))
    right, down = (alpha * gaussian_filter(field, smoothness, mode="reflect", truncate=3) for field in fields)
    coordinates = np.stack([np.arange(height)[:, None] + down, np.arange(width) + right])
    channels = [map_coordinates(warped[..., c], coordinates, order=1, mode="reflect") for c in range(image.shape[2])]
    return quantise(np.stack(channels, axis=2))


def pixelate(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Shrink and enlarge again, both by box averages."""
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return np.array(small.resize((width, height), Image.Resampling.BOX))


def jpeg_compression(image: Pixels, rng: Generator, quality: float) -> Pixels:
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=int(quality))
    return np.array(Image.open(stream))


def _frost_folder() -> Path | None:
    spec = importlib.util.find_spec("imagecorruptions")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "frost"
        if all((folder / name).is_file() for name in FROST_FILES):
            return folder
    return None


def frost_source() -> Literal["imagecorruptions", "procedural"]:
    """Say where the frost comes from: the published photographs where they are installed, else fozo's drawn textures.

    The photographs are not ours to ship. The ``imagecorruptions`` package carries them, and when it is installed they
    are read from its folder (it is never imported: it needs an older NumPy). Otherwise five textures are drawn: a
    cloudy haze with feathers of ice, with the mean and standard deviation of each photograph's colours. Accuracies on
    them are not comparable with published ones, so every corrupted tree records this.
    """
    return "procedural" if _frost_folder() is None else "imagecorruptions"


@lru_cache(maxsize=8)
def frost_textures(shrink: float) -> tuple[Pixels, ...]:
    """Return the five textures, ``uint8 [height, width, 3]``, at ``shrink`` of their size."""
    folder = _frost_folder()
    images = (
        map(draw_frost, range(len(FROST_COLOURS)))
        if folder is None
        else (read_image(folder / name) for name in FROST_FILES)
    )
    if shrink == 1:
        return tuple(images)
    return tuple(opencv().resize(image, (0, 0), fx=shrink, fy=shrink) for image in images)


def draw_frost(index: int, size: int = 512) -> Pixels:
    """Draw frost: feathers of ice over a haze, in the colours of photograph ``index``."""
    rng = np.random.Generator(np.random.Philox(key=index))
    haze = plasma(size, 1.7, rng)
    ice = _feathers(size, rng)
    # Ice is where the haze is thick; grain is the sparkle of single crystals.
    pattern = haze + 1.6 * ice * (0.4 + haze) + 0.07 * rng.normal(size=haze.shape)
    pattern = (pattern - pattern.mean()) / pattern.std()
    mean, std = (np.array(colour, np.float64) for colour in FROST_COLOURS[index])
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
