"""A second test set: 22 kinds of corruption that no method here was chosen on.

Ten kinds are those of ImageNet-C-bar (Mintun et al., "On Interaction Between Augmentations and Corruptions in Natural
Corruption Robustness", NeurIPS 2021), written from their descriptions. Twelve are faults of cameras and of their links.
Each has five severities. Their strengths were set with a plain ViT-Tiny alone, so that its accuracy falls about as it
does under ImageNet-C's fifteen kinds; no adaptation method was looked at.

They are corrupted with :func:`fozo.data.corruptions.corrupt`, as all kinds are.

A function takes an image (``uint8 [height, width, 3]``), a generator and the strength of a severity. Lengths are shares
of the shorter side, so any image of 8 x 8 pixels or more is accepted.
"""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from numpy.random import Generator
from PIL import Image

from fozo.data.corruptions.common import plasma, quantise
from fozo.data.images import Pixels
from fozo.io import read_toml

Field = npt.NDArray[np.float64]

C_BAR_KINDS: tuple[str, ...] = (
    "blue_noise_sample", "brownish_noise", "caustic_refraction", "checkerboard_cutout", "cocentric_sine_waves",
    "inverse_sparkles", "perlin_noise", "plasma_noise", "single_frequency_greyscale", "sparkles",
)  # fmt: skip
CAMERA_KINDS: tuple[str, ...] = (
    "flicker_bands", "white_balance", "vignette", "lost_rows", "bit_errors", "low_bitrate", "dithering", "flash",
    "lens_flare", "rolling_shutter", "stuck_columns", "demosaic",
)  # fmt: skip
UNSEEN_KINDS: tuple[str, ...] = C_BAR_KINDS + CAMERA_KINDS
BROWN_EXPONENT = 1.75  # of the frequency, by which the amplitude of brownish noise falls
BLUE_CUTOFF = 0.25  # cycles a pixel below which blue noise has nothing
BOARD_CELLS = 8  # cells of the checkerboard along the shorter side
SPARKLES = 10  # stars in a picture
SPARKLE_RAYS = 4
PACKET_SHARE = 0.02  # height of a packet of rows, as a share of the picture's
BAYER_4 = np.array([[0, 8, 2, 10], [12, 4, 14, 6], [3, 11, 1, 9], [15, 7, 13, 5]]) / 16 + 1 / 32
FLASH_RADIUS = 0.3
GHOSTS = 6  # reflections of the light in a lens


def _grid(image: Pixels) -> tuple[Field, Field]:
    """Rows and columns of the pixels in units of the shorter side, the centre of the picture being 0."""
    height, width = image.shape[:2]
    side = min(height, width)
    rows = (np.arange(height) + 0.5 - height / 2) / side
    columns = (np.arange(width) + 0.5 - width / 2) / side
    return rows[:, None] + 0 * columns, columns + 0 * rows[:, None]


def _spectral_noise(shape: tuple[int, int], rng: Generator, gain: Callable[[Field], Field]) -> Field:
    """White noise filtered by a gain of the frequency (cycles a pixel), with a standard deviation of 1."""
    frequency = np.hypot(np.fft.fftfreq(shape[0])[:, None], np.fft.rfftfreq(shape[1]))
    spectrum = np.fft.rfft2(rng.normal(size=shape)) * gain(frequency)
    spectrum[0, 0] = 0
    noise = np.fft.irfft2(spectrum, shape)
    return np.asarray(noise / max(noise.std(), 1e-12))


def _gradient_noise(image: Pixels, rng: Generator, cells: int) -> Field:
    """Perlin's gradient noise with about ``cells`` cells along the shorter side."""
    rows, columns = _grid(image)
    y = (rows - rows.min()) * cells
    x = (columns - columns.min()) * cells
    top = y.astype(int)
    left = x.astype(int)
    angles = rng.uniform(0, 2 * np.pi, (top.max() + 2, left.max() + 2))
    total = np.zeros(y.shape)
    for down in (0, 1):
        for right in (0, 1):
            angle = angles[top + down, left + right]
            dy = y - top - down
            dx = x - left - right
            weight = (1 - _fade(np.abs(dy))) * (1 - _fade(np.abs(dx)))
            total += weight * (np.sin(angle) * dy + np.cos(angle) * dx)
    return total


def _fade(t: Field) -> Field:
    """Perlin's smooth step, 6 t^5 - 15 t^4 + 10 t^3."""
    return t**3 * (t * (6 * t - 15) + 10)


def _stars(image: Pixels, rng: Generator, size: float) -> Field:
    """Light of several stars with rays, each of a radius of about ``size``."""
    rows, columns = _grid(image)
    light = np.zeros(rows.shape)
    for _ in range(SPARKLES):
        dy = rows - rng.uniform(rows.min(), rows.max())
        dx = columns - rng.uniform(columns.min(), columns.max())
        angle = np.arctan2(dy, dx) * SPARKLE_RAYS / 2 + rng.uniform(0, np.pi)
        reach = size * rng.uniform(0.5, 1.5) * (0.2 + 0.8 * np.abs(np.cos(angle)) ** 6)
        light += np.exp(-np.hypot(dy, dx) / reach)
    return light


def blue_noise_sample(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Pixels are lost evenly over the picture, in the pattern of blue noise."""
    noise = _spectral_noise(image.shape[:2], rng, lambda frequency: (frequency > BLUE_CUTOFF).astype(float))
    lost = noise < np.quantile(noise, share)
    return np.where(lost[..., None], 0, image).astype(np.uint8)


def brownish_noise(image: Pixels, rng: Generator, scale: float) -> Pixels:
    """Gray noise whose amplitude falls with the frequency."""
    noise = _spectral_noise(image.shape[:2], rng, lambda f: 1 / np.maximum(f, 1e-3) ** BROWN_EXPONENT)
    return quantise(image / 255 + scale * noise[..., None])


def caustic_refraction(image: Pixels, rng: Generator, depth: float) -> Pixels:
    """Seen through moving water: bent by the slope of its surface, lit by what the surface focuses."""
    from scipy.ndimage import map_coordinates

    surface = _gradient_noise(image, rng, 5) + 0.5 * _gradient_noise(image, rng, 10)
    side = min(image.shape[:2])
    down, right = np.gradient(surface * side)
    focus = np.clip(1 + 0.15 * depth * (np.gradient(down, axis=0) + np.gradient(right, axis=1)) * side / 50, 0.2, 3)
    rows, columns = np.indices(image.shape[:2])
    coordinates = np.stack([rows + depth * side * 0.02 * down, columns + depth * side * 0.02 * right])
    channels = [map_coordinates(image[..., c] / 255, coordinates, order=1, mode="reflect") for c in range(3)]
    return quantise(np.stack(channels, axis=2) * focus[..., None])


def checkerboard_cutout(image: Pixels, rng: Generator, cut: float) -> Pixels:
    """Squares are cut out in the pattern of a turned checkerboard; at 1 they are as large as its cells."""
    rows, columns = _grid(image)
    angle = rng.uniform(0, np.pi / 2)
    shift_y, shift_x = rng.uniform(0, 2, 2)
    y = (np.cos(angle) * rows - np.sin(angle) * columns) * BOARD_CELLS + shift_y
    x = (np.sin(angle) * rows + np.cos(angle) * columns) * BOARD_CELLS + shift_x
    covered = np.zeros(y.shape, bool)
    for offset in (0, 1):
        from_y = np.abs((y + offset) % 2 - 1)
        from_x = np.abs((x + offset) % 2 - 1)
        covered |= np.maximum(from_y, from_x) < cut / 2
    return np.where(covered[..., None], 128, image).astype(np.uint8)


def cocentric_sine_waves(image: Pixels, rng: Generator, amplitude: float) -> Pixels:
    """Rings around a random centre are added."""
    rows, columns = _grid(image)
    centre_y, centre_x = rng.uniform(-0.5, 0.5, 2)
    radius = np.hypot(rows - centre_y, columns - centre_x)
    waves = np.sin(2 * np.pi * (rng.uniform(8, 20) * radius + rng.random()))
    return quantise(image / 255 + amplitude * waves[..., None])


def inverse_sparkles(image: Pixels, rng: Generator, size: float) -> Pixels:
    """Dark stars cover the picture."""
    return quantise(image / 255 - 2 * _stars(image, rng, size)[..., None])


def perlin_noise(image: Pixels, rng: Generator, amplitude: float) -> Pixels:
    """Gray clouds of two sizes, light and dark."""
    noise = _gradient_noise(image, rng, 8) + 0.5 * _gradient_noise(image, rng, 16)
    return quantise(image / 255 + amplitude * noise[..., None])


def plasma_noise(image: Pixels, rng: Generator, amplitude: float) -> Pixels:
    """A coloured fractal is added."""
    height, width = image.shape[:2]
    size = 1 << (max(height, width) - 1).bit_length()
    clouds = [plasma(size, 1.6, rng)[:height, :width] - 0.5 for _ in range(3)]
    return quantise(image / 255 + amplitude * np.stack(clouds, axis=2))


def single_frequency_greyscale(image: Pixels, rng: Generator, amplitude: float) -> Pixels:
    """A gray plane wave of a random direction is added."""
    rows, columns = _grid(image)
    angle = rng.uniform(0, np.pi)
    along = np.sin(angle) * rows + np.cos(angle) * columns
    wave = np.sin(2 * np.pi * (rng.uniform(15, 45) * along + rng.random()))
    return quantise(image / 255 + amplitude * wave[..., None])


def sparkles(image: Pixels, rng: Generator, size: float) -> Pixels:
    """Bright stars cover the picture."""
    return quantise(image / 255 + 2 * _stars(image, rng, size)[..., None])


def flicker_bands(image: Pixels, rng: Generator, depth: float) -> Pixels:
    """A lamp that flickers under a rolling shutter: bands of rows are darker, a little shifted in each colour."""
    rows = _grid(image)[0][..., None]
    phase = rng.random() + np.array([0, 0.06, 0.12])
    wave = 0.5 + 0.5 * np.sin(2 * np.pi * (rng.uniform(3, 6) * rows + phase))
    return quantise(image / 255 * np.maximum(1 - depth * wave, 0))


def white_balance(image: Pixels, rng: Generator, cast: float) -> Pixels:
    """The wrong light is taken for white: one colour gains what the opposite one loses."""
    hue = 2 * np.pi * (rng.random() + np.array([0, 1 / 3, 2 / 3]))
    return quantise(image / 255 * np.exp(cast * np.cos(hue)))


def vignette(image: Pixels, rng: Generator, fall: float) -> Pixels:
    """The picture darkens away from a point near its centre."""
    rows, columns = _grid(image)
    centre_y, centre_x = rng.uniform(-0.15, 0.15, 2)
    squared = (rows - centre_y) ** 2 + (columns - centre_x) ** 2
    return quantise(image / 255 / (1 + fall * squared[..., None]) ** 2)


def lost_rows(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Packets of rows never arrive and stay black."""
    height = image.shape[0]
    packet = max(1, round(PACKET_SHARE * height))
    lost = rng.random(-(-height // packet)) < share
    return np.where(np.repeat(lost, packet)[:height, None, None], 0, image).astype(np.uint8)


def bit_errors(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Two bits of a share of the values are flipped."""
    broken = rng.random(image.shape) < share
    first = rng.integers(0, 8, image.shape)
    second = (first + rng.integers(1, 8, image.shape)) % 8
    flips = (1 << first) + (1 << second)
    return np.where(broken, image ^ flips, image).astype(np.uint8)


def low_bitrate(image: Pixels, rng: Generator, loss: float) -> Pixels:
    """Sent twice at a low bitrate: smaller, coarsely quantised in blocks with coarse colours, and enlarged again."""
    height, width = image.shape[:2]
    size = (max(8, round(width / (1 + loss))), max(8, round(height / (1 + loss))))
    picture = Image.fromarray(image).resize(size, Image.Resampling.BOX)
    quality = max(1, round(30 / (1 + 2 * loss)))
    for _ in range(2):
        stream = io.BytesIO()
        picture.save(stream, "JPEG", quality=quality, subsampling=2)
        picture = Image.open(stream).convert("RGB")
        picture = Image.fromarray(np.roll(np.asarray(picture), (3, 5), axis=(0, 1)))
    picture = Image.fromarray(np.roll(np.asarray(picture), (-6, -10), axis=(0, 1)))
    return np.array(picture.resize((width, height), Image.Resampling.BILINEAR))


def dithering(image: Pixels, rng: Generator, step: float) -> Pixels:
    """Few levels, a ``step`` apart, hidden by an ordered pattern; beyond a step of 1 the dots grow."""
    dot = max(1.0, step)
    height, width = image.shape[:2]
    small = Image.fromarray(image).resize((max(8, round(width / dot)), max(8, round(height / dot))))
    values = np.asarray(small) / 255
    tiles = (-(-values.shape[0] // 4), -(-values.shape[1] // 4))
    threshold = np.tile(BAYER_4, tiles)[: values.shape[0], : values.shape[1], None]
    spacing = min(step, 1.0)
    levels = quantise(np.floor(values / spacing + threshold) * spacing)
    return np.array(Image.fromarray(levels).resize((width, height), Image.Resampling.NEAREST))


def flash(image: Pixels, rng: Generator, power: float) -> Pixels:
    """A flash overexposes what is near the centre."""
    rows, columns = _grid(image)
    centre_y, centre_x = rng.uniform(-0.15, 0.15, 2)
    squared = (rows - centre_y) ** 2 + (columns - centre_x) ** 2
    light = power * np.exp(-squared / (2 * FLASH_RADIUS**2))[..., None]
    clean = image / 255
    return quantise(clean * (1 + light) + 0.3 * light)


def lens_flare(image: Pixels, rng: Generator, power: float) -> Pixels:
    """A lamp in the picture: its glare, a streak, and coloured ghosts on the line through the centre."""
    rows, columns = _grid(image)
    lamp_y, lamp_x = rng.uniform(-0.45, 0.45, 2)
    distance = np.hypot(rows - lamp_y, columns - lamp_x)
    glare = np.exp(-distance / 0.15) + 0.35 * np.exp(-distance / 0.5)
    streak = np.exp(-np.abs(rows - lamp_y) / 0.015) * np.exp(-np.abs(columns - lamp_x) / 0.4)
    light = np.repeat((glare + streak)[..., None], 3, axis=2)
    for _ in range(GHOSTS):
        along = rng.uniform(-1.5, 0.7)
        radius = rng.uniform(0.04, 0.15)
        from_ghost = np.hypot(rows - along * lamp_y, columns - along * lamp_x)
        with np.errstate(over="ignore"):  # far from the ghost of a long picture: there it is 0
            ghost = 1 / (1 + np.exp((from_ghost - radius) / 0.01))
        light += ghost[..., None] * rng.uniform(0, 0.4, 3)
    return quantise(image / 255 + power * light)


def rolling_shutter(image: Pixels, rng: Generator, speed: float) -> Pixels:
    """The camera shakes while its rows are read one after the other: they are shifted, and lean."""
    height, width = image.shape[:2]
    rows = _grid(image)[0][:, 0]
    lean = rng.choice([-1, 1]) * rows
    shake = 0.3 * np.sin(2 * np.pi * (rng.uniform(2, 5) * rows + rng.random()))
    shift = np.rint(speed * (lean + shake) * width).astype(int)
    columns = np.abs((np.arange(width) - shift[:, None]) % (2 * width))
    mirrored = np.minimum(columns, 2 * width - 1 - columns)
    shaken: Pixels = image[np.arange(height)[:, None], mirrored]
    return shaken


def stuck_columns(image: Pixels, rng: Generator, share: float) -> Pixels:
    """Columns of the sensor are stuck, each at a colour of its own."""
    width = image.shape[1]
    stuck = np.asarray(rng.random(width) < share)
    colours = rng.integers(0, 256, (width, 3))
    return np.where(stuck[None, :, None], colours, image).astype(np.uint8)


def demosaic(image: Pixels, rng: Generator, pitch: float) -> Pixels:
    """A coarse sensor with a colour filter on each pixel, whose missing colours come from the next pixel."""
    height, width = image.shape[:2]
    size = (max(4, 2 * round(width / pitch / 2)), max(4, 2 * round(height / pitch / 2)))
    sensor = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX))
    red = sensor[::2, ::2, 0]
    green = sensor[::2, 1::2, 1]
    other_green = sensor[1::2, ::2, 1]
    blue = sensor[1::2, 1::2, 2]
    full = np.empty_like(sensor)
    full[..., 0] = np.repeat(np.repeat(red, 2, axis=0), 2, axis=1)
    full[::2, :, 1] = np.repeat(green, 2, axis=1)
    full[1::2, :, 1] = np.repeat(other_green, 2, axis=1)
    full[..., 2] = np.repeat(np.repeat(blue, 2, axis=0), 2, axis=1)
    return np.array(Image.fromarray(full).resize((width, height), Image.Resampling.NEAREST))


STRENGTHS: dict[str, tuple[float, ...]] = {
    kind: tuple(row) for kind, row in read_toml(Path(__file__).with_name("strengths.toml")).items()
}
"""Of each kind, at severities 1 to 5."""


def corruption(kind: str) -> Callable[[Pixels, Generator, float], Pixels]:
    """Return the function of a kind, which takes any strength."""
    function: Callable[[Pixels, Generator, float], Pixels] = globals()[kind]
    return function
