"""Image-quality statistics in a photographer's terms: brightness, contrast, detail, noise, colour cast.

Each is a number per image, on the scale on which clean images vary evenly (mostly a logarithm). Its *change* against
clean images is what users read, in the unit that :data:`STATISTICS` gives it. They are measured on pixels, so the
model's mean and std have to be known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fozo.core.descriptor import Spectra, spectra
from fozo.data.inputs import batches
from fozo.errors import FozoError
from fozo.state import State
from fozo.types import Array, Floats, Spec

LUMA = np.array([0.2126, 0.7152, 0.0722])  # Rec. 709: how bright red, green and blue are to the eye
GAMMA = 2.2
BLOCK = 8  # pixels of a JPEG block
LEVEL = 1 / 255  # what 8 bits resolve; added where a logarithm needs a floor
BURNT_LEVEL = 0.98  # of full scale
BLOCKED_LEVEL = 0.02  # of full scale
MEDIAN_TO_SIGMA = 0.6745  # median of |x| of a standard normal x
OCTAVES = ("finest detail", "fine detail", "medium detail")  # the three finest octaves
MIN_DEVIATIONS = 0.5  # of clean images: smaller changes of a mean are not named, as narrow content may cause them
MAX_NAMED = 3
ONLY_MORE = ("noise", "blockiness")  # only an increase of these is named; a blur lowers noise too
RATIOS = ("evenness of noise", "blockiness", "sideways detail")  # have no unit
UNNAMED = ("evenness of noise",)  # distinguishes corruptions, but is not meaningful to users


@dataclass(frozen=True)
class Statistic:
    """One image-quality statistic."""

    name: str
    unit: str
    """Unit in which a :class:`Change` is written."""
    min_change: float
    """Smaller changes are not reported, however significant they are."""
    meaning: str


STATISTICS = tuple(  # in the order of the columns of `QualityStatistics`
    Statistic(*row)
    for row in (
        ("brightness", "stops", 0.15, "mean luminance in linear light, in stops (a stop is a factor of two)"),
        ("contrast", "%", 0.05, "standard deviation of luma"),
        ("saturation", "%", 0.08, "mean difference between the strongest and the weakest channel"),
        ("warmth", "points", 0.02, "red less blue, as a part of full scale: above 0 is warmer, below cooler"),
        ("green", "points", 0.02, "green less the mean of red and blue, as a part of full scale: below 0 is magenta"),
        ("finest detail", "%", 0.08, "amplitude of luma at 2 to 4 pixels a period"),
        ("fine detail", "%", 0.08, "amplitude of luma at 4 to 8 pixels a period"),
        ("medium detail", "%", 0.08, "amplitude of luma at 8 to 16 pixels a period"),
        ("noise", "times", 0.2, "median deviation between neighbouring pixels, as the sigma of gaussian noise"),
        ("evenness of noise", "times", 0.1, "median over mean of these deviations: high for noise, low for specks"),
        ("blockiness", "%", 0.05, "steps of luma at the borders of 8 x 8 blocks over those elsewhere"),
        ("sideways detail", "%", 0.08, "steps of luma across over those down: falls where motion blurs sideways"),
        ("burnt highlights", "points", 0.02, "pixels at 98 % of full scale or more"),
        ("blocked shadows", "points", 0.02, "pixels at 2 % of full scale or less"),
    )
)
NAMES = tuple(statistic.name for statistic in STATISTICS)
UNITS = {statistic.name: statistic.unit for statistic in STATISTICS}
MIN_CHANGES = {statistic.name: statistic.min_change for statistic in STATISTICS}
EXPLAINED = 0.7  # of a loss of detail, in logarithms: from here on haze explains it, not a blur
CONTRAST_FELL = ("contrast", False)
DARKENED = ("brightness", False)
ADVICE = {  # what a person can do, by the statistic and whether it grew
    **dict.fromkeys((DARKENED, ("blocked shadows", True)), "raise the exposure"),
    **dict.fromkeys((("brightness", True), ("burnt highlights", True)), "lower the exposure"),
    **dict.fromkeys((CONTRAST_FELL, ("saturation", False)), "clean the lens, or wait for haze to clear"),
    **dict.fromkeys(((name, False) for name in OCTAVES), "check the focus"),
    **dict.fromkeys((("sideways detail", grew) for grew in (False, True)), "keep the camera still"),
    **dict.fromkeys(((name, grew) for name in ("warmth", "green") for grew in (False, True)), "set the white balance"),
    ("noise", True): "add light, or lower the gain",
    ("blockiness", True): "compress less",
}


@dataclass(frozen=True)
class Change(State):
    """A clear change of a statistic against clean images; as a text ``contrast -41 %``."""

    statistic: str
    amount: float
    """How much it changed, on the scale of :class:`QualityStatistics`."""

    @property
    def direction(self) -> tuple[str, bool]:
        """The statistic, and whether it grew."""
        return self.statistic, self.amount > 0

    def __str__(self) -> str:
        amount = self.amount
        unit = UNITS[self.statistic]
        if unit == "%":
            text = f"{100 * np.expm1(amount):+.0f} %"
        elif unit == "stops":
            text = f"{amount:+.1f} stops"
        elif unit == "times":
            text = f"{'x' if amount > 0 else '/'}{np.exp(abs(amount)):.1f}"
        else:
            text = f"{100 * amount:+.0f} points"
        return f"{self.statistic} {text}"


class QualityStatistics:
    """Measures the quality statistics of a model's images, and their descriptors."""

    def __init__(self, spec: Spec) -> None:
        if spec.mean is None or spec.std is None:
            raise FozoError(
                f"the mean and std of {spec.name} are unknown, so its images cannot be turned into pixels; pass mean= "
                f"and std= to load_engine"
            )
        shape = (1, spec.channels, 1, 1)
        self.mean = np.asarray(spec.mean, dtype=np.float32).reshape(shape)
        self.std = np.asarray(spec.std, dtype=np.float32).reshape(shape)
        self.spectra: Spectra = spectra(*spec.image_shape)
        self.width = len(STATISTICS) + spec.channels * (1 + self.spectra.bands)

    def __call__(self, images: Floats, descriptors: Array | None = None) -> Array:
        """Measure normalised images ``[B, channels, height, width]``: statistics, then descriptors, ``[B, width]``.

        ``descriptors`` are :func:`fozo.core.descriptor.describe` of them, where the method has computed them already.
        """
        if descriptors is None:
            descriptors = self.spectra.transform(images)[1]
        rows = np.array([_measure(image) for image in self.pixels(images)]).reshape(len(images), -1)
        # Log amplitude of the finest three octaves of brightness: each is two half octaves of energy.
        energies = self.spectra.log_energies(descriptors)[:, self.spectra.brightness].mean(axis=1)
        half_octaves = np.minimum(np.arange(2 * len(OCTAVES)), self.spectra.bands - 1)
        detail = energies[:, half_octaves].reshape(len(images), len(OCTAVES), 2).mean(axis=2) / 2
        first = NAMES.index(OCTAVES[0])
        return np.concatenate([rows[:, :first], detail, rows[:, first:], descriptors], axis=1)

    def pixels(self, images: Floats) -> Floats:
        """Normalised images as pixels in [0, 1]."""
        return np.asarray(np.asarray(images, dtype=np.float32) * self.std + self.mean)


def _measure(image: Floats) -> list[float]:
    """Measure one image of pixels in [0, 1], ``[channels, height, width]``; all but its detail."""
    is_colour = len(image) == 3
    luma = np.tensordot(LUMA.astype(np.float32), image, axes=1) if is_colour else image.mean(axis=0)
    linear = float(np.mean(np.clip(luma, 0, 1) ** np.float32(GAMMA)))
    means = image.mean(axis=(1, 2))
    red, green, blue = (means if is_colour else means.mean().repeat(3)).tolist()
    chroma = float((image.max(axis=0) - image.min(axis=0)).mean()) if is_colour else 0.0
    columns = np.abs(np.diff(luma, axis=1)).mean(axis=0)
    rows = np.abs(np.diff(luma, axis=0)).mean(axis=1)
    column_borders = columns[BLOCK - 1 :: BLOCK]
    row_borders = rows[BLOCK - 1 :: BLOCK]
    borders = len(column_borders) + len(row_borders)
    at_borders = column_borders.sum() + row_borders.sum()
    elsewhere = (columns.sum() + rows.sum() - at_borders) / max(columns.size + rows.size - borders, 1)
    # The finest diagonal detail of a Haar transform: pictures have nearly none, noise as much as anywhere.
    even = luma[: luma.shape[0] // 2 * 2, : luma.shape[1] // 2 * 2]
    diagonal = np.abs(even[::2, ::2] - even[1::2, ::2] - even[::2, 1::2] + even[1::2, 1::2]) / 2
    sigma = float(np.median(diagonal)) / MEDIAN_TO_SIGMA
    mean = float(diagonal.mean())
    return [
        float(np.log2(linear + LEVEL**2)),
        float(np.log(luma.std() + LEVEL)),
        float(np.log(chroma + LEVEL)),
        red - blue,
        green - (red + blue) / 2,
        float(np.log(sigma + LEVEL)),
        float(np.log((sigma + LEVEL) / (mean + LEVEL))),
        float(np.log((at_borders / max(borders, 1) + LEVEL) / (elsewhere + LEVEL))),
        float(np.log((columns.mean() + LEVEL) / (rows.mean() + LEVEL))),
        float((luma >= BURNT_LEVEL).mean()),
        float((luma <= BLOCKED_LEVEL).mean()),
    ]


def pixel_spec(size: int = 224) -> Spec:
    """Describe a model that reads RGB pixels in [0, 1], to measure images without a model."""
    return Spec("fozo.describe", 0, 0, 0, 3, (size, size), (size, size), 0, "", (0.0,) * 3, (1.0,) * 3)


def describe(images: object, size: int = 224) -> dict[str, Array]:
    """Measure image-quality statistics: a column of one number an image each, named with its unit.

    Units are ``stops`` (0 is white), ``%`` of full scale or of the pixels, and ``ratio``; :data:`STATISTICS` says what
    each means. A DataFrame takes the columns as they are.

    Examples:
        >>> night = np.full((2, 64, 64, 3), 30, dtype=np.uint8)
        >>> columns = fozo.describe(night, size=64)
        >>> columns["brightness (stops)"].round(1).tolist()
        [-6.8, -6.8]
        >>> table = pandas.DataFrame(columns)  # doctest: +SKIP

    Args:
        images: anything that :func:`fozo.calibrate` takes: a folder, PIL images, ``uint8 [n, height, width, 3]``, or
            floats ``[n, 3, height, width]`` in [0, 1].
        size: pixels of a side that all but floats are resized and cropped to, because detail depends on it.
    """
    spec = pixel_spec(size)
    measured = [np.zeros((0, len(NAMES)))]
    for batch in batches(images, spec):
        pixels = np.asarray(batch, dtype=np.float32)
        if not (pixels.shape[1:2] == (3,) and pixels.min() >= -LEVEL and pixels.max() <= 1 + LEVEL):
            raise FozoError(
                f"images of shape {list(pixels.shape)} from {pixels.min():.3g} to {pixels.max():.3g} are not RGB "
                f"pixels; give uint8, or floats [n, 3, height, width] in [0, 1], not normalised"
            )
        height, width = pixels.shape[2:]
        statistics = QualityStatistics(replace(spec, image_size=(height, width)))
        measured.append(statistics(pixels)[:, : len(NAMES)])
    return dict(map(_column, STATISTICS, np.concatenate(measured).T))


def _column(statistic: Statistic, values: Array) -> tuple[str, Array]:
    """Name a column with its unit, and give its numbers in that unit."""
    name = statistic.name
    if statistic.unit in ("%", "times"):  # a logarithm
        floor = 0 if name in (*OCTAVES, *RATIOS) else LEVEL
        values = np.exp(values) - floor
    if name in RATIOS:
        return f"{name} (ratio)", values
    if statistic.unit == "stops":
        return f"{name} (stops)", values
    return f"{name} (%)", 100 * values


def changes(features: Array, mean: Array, std: Array) -> tuple[dict[str, float], tuple[Change, ...]]:
    """Change of each statistic of images ``[n, width]`` against clean ones, and the clearest changes.

    Of the octaves of detail, only one is among these.
    """
    shift = (features.mean(axis=0) - mean).tolist()
    clear: list[tuple[float, str, Change]] = []
    for statistic, amount, deviation in zip(STATISTICS, shift, std.tolist(), strict=False):
        name = statistic.name
        is_named = name not in UNNAMED and (amount >= 0 or name not in ONLY_MORE)
        deviations = abs(amount) / deviation
        if is_named and deviations >= MIN_DEVIATIONS and abs(amount) >= statistic.min_change:
            clear.append((deviations, name, Change(name, amount)))
    clear.sort(reverse=True)
    octaves = [name for _, name, _ in clear if name in OCTAVES]
    clearest = tuple(change for _, name, change in clear if name not in octaves[1:])[:MAX_NAMED]
    return dict(zip(NAMES, shift, strict=False)), clearest


def advice(clearest: Sequence[Change], quality: Mapping[str, float]) -> str:
    """Say what a person can do about the clearest changes; nothing where there is nothing to do.

    Motion explains a loss of detail, and so does one of contrast that is nearly as large; darkness explains both.
    """
    contrast = quality.get("contrast", 0.0)
    # Where pixels are multiplied by a factor, brightness falls by GAMMA / log(2) of contrast, in stops.
    is_dark = quality.get("brightness", 0.0) < EXPLAINED * GAMMA / np.log(2) * contrast < 0
    for change in sorted(clearest, key=lambda change: change.statistic != "sideways detail"):
        cause = change.direction
        if change.statistic in OCTAVES and contrast < EXPLAINED * quality[change.statistic] < 0:
            cause = CONTRAST_FELL
        if is_dark and cause == CONTRAST_FELL:
            cause = DARKENED
        if cause in ADVICE:
            return ADVICE[cause]
    return ""
