"""Image-quality statistics in a photographer's terms: brightness, contrast, detail, noise, colour cast.

Each is a number per image, on the scale on which clean images vary evenly (mostly a logarithm). Its *change* against
clean images is what users read, in the unit that :data:`STATISTICS` gives it. They are measured on pixels, so the
model's mean and std have to be known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fozo.core.descriptor import Spectra, spectra
from fozo.data.inputs import batches
from fozo.errors import FozoError
from fozo.types import Array, Floats, Spec

LUMA = np.array([0.2126, 0.7152, 0.0722])  # Rec. 709: how bright red, green and blue are to the eye
GAMMA = 2.2
BLOCK = 8  # pixels of a JPEG block
LEVEL = 1 / 255  # what 8 bits resolve; added where a logarithm needs a floor
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
    unit: str  # in which `changes` writes a change
    min_change: float  # smaller changes are not reported, however significant they are
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
NAMES = tuple(each.name for each in STATISTICS)
EXPLAINED = 0.7  # of a loss of detail, in logarithms: from here on haze explains it, not a blur
ADVICE = {  # what a person can do, by the statistic and the direction in which it changed
    **dict.fromkeys(("brightness -", "blocked shadows +"), "raise the exposure"),
    **dict.fromkeys(("brightness +", "burnt highlights +"), "lower the exposure"),
    **dict.fromkeys(("contrast -", "saturation -"), "clean the lens, or wait for haze to clear"),
    **dict.fromkeys((f"{name} -" for name in OCTAVES), "check the focus"),
    **dict.fromkeys(("sideways detail -", "sideways detail +"), "keep the camera still"),
    **dict.fromkeys(("warmth -", "warmth +", "green -", "green +"), "set the white balance"),
    **{"noise x": "add light, or lower the gain", "blockiness +": "compress less"},
}


class QualityStatistics:
    """Measures the quality statistics of a model's images, and their descriptors."""

    def __init__(self, spec: Spec) -> None:
        if spec.mean is None or spec.std is None:
            raise FozoError(
                f"the mean and std of {spec.name} are unknown, so its images cannot be turned into pixels; pass mean= "
                f"and std= to load_engine"
            )
        shape = (1, spec.channels, 1, 1)
        self.mean, self.std = (np.asarray(v, dtype=np.float32).reshape(shape) for v in (spec.mean, spec.std))
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
        bright = self.spectra.log_energies(descriptors)[:, self.spectra.brightness].mean(axis=1)
        halves = np.minimum(np.arange(2 * len(OCTAVES)), self.spectra.bands - 1)
        detail = bright[:, halves].reshape(len(images), len(OCTAVES), 2).mean(axis=2) / 2
        first = NAMES.index(OCTAVES[0])
        return np.concatenate([rows[:, :first], detail, rows[:, first:], descriptors], axis=1)

    def pixels(self, images: Floats) -> Floats:
        """Normalised images as pixels in [0, 1]."""
        return np.asarray(np.asarray(images, dtype=np.float32) * self.std + self.mean)


def _measure(image: Floats) -> list[float]:
    """Measure one image of pixels in [0, 1], ``[channels, height, width]``; all but its detail."""
    colour = len(image) == 3
    luma = np.tensordot(LUMA.astype(np.float32), image, axes=1) if colour else image.mean(axis=0)
    linear = float(np.mean(np.clip(luma, 0, 1) ** np.float32(GAMMA)))
    means = image.mean(axis=(1, 2))
    red, green, blue = (means if colour else means.mean().repeat(3)).tolist()
    chroma = float((image.max(axis=0) - image.min(axis=0)).mean()) if colour else 0.0
    across, down = np.abs(np.diff(luma, axis=1)), np.abs(np.diff(luma, axis=0))
    columns, rows = across.mean(axis=0), down.mean(axis=1)
    at_border = columns[BLOCK - 1 :: BLOCK].sum() + rows[BLOCK - 1 :: BLOCK].sum()
    borders = len(columns[BLOCK - 1 :: BLOCK]) + len(rows[BLOCK - 1 :: BLOCK])
    elsewhere = (columns.sum() + rows.sum() - at_border) / max(columns.size + rows.size - borders, 1)
    # The finest diagonal detail of a Haar transform: pictures have nearly none, noise as much as anywhere.
    even = luma[: luma.shape[0] // 2 * 2, : luma.shape[1] // 2 * 2]
    diagonal = np.abs(even[::2, ::2] - even[1::2, ::2] - even[::2, 1::2] + even[1::2, 1::2]) / 2
    sigma, mean = float(np.median(diagonal)) / 0.6745, float(diagonal.mean())
    return [
        float(np.log2(linear + LEVEL**2)),
        float(np.log(luma.std() + LEVEL)),
        float(np.log(chroma + LEVEL)),
        red - blue,
        green - (red + blue) / 2,
        float(np.log(sigma + LEVEL)),
        float(np.log((sigma + LEVEL) / (mean + LEVEL))),
        float(np.log((at_border / max(borders, 1) + LEVEL) / (elsewhere + LEVEL))),
        float(np.log((columns.mean() + LEVEL) / (rows.mean() + LEVEL))),
        float((luma >= 0.98).mean()),
        float((luma <= 0.02).mean()),
    ]


def pixel_spec(size: int = 224) -> Spec:
    """Of a model that reads RGB pixels in [0, 1]: to measure images without a model."""
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
    found = [np.zeros((0, len(NAMES)))]
    for batch in batches(images, spec):
        pixels = np.asarray(batch, dtype=np.float32)
        if not (pixels.shape[1:2] == (3,) and pixels.min() >= -LEVEL and pixels.max() <= 1 + LEVEL):
            raise FozoError(
                f"images of shape {list(pixels.shape)} from {pixels.min():.3g} to {pixels.max():.3g} are not RGB "
                f"pixels; give uint8, or floats [n, 3, height, width] in [0, 1], not normalised"
            )
        height, width = pixels.shape[2:]
        found.append(QualityStatistics(replace(spec, image_size=(height, width)))(pixels)[:, : len(NAMES)])
    columns = {}
    for each, values in zip(STATISTICS, np.concatenate(found).T, strict=True):
        unit = "ratio" if each.name in RATIOS else "stops" if each.unit == "stops" else "%"
        if each.unit in ("%", "times"):  # a logarithm
            values = np.exp(values) - (0 if each.name in (*OCTAVES, *RATIOS) else LEVEL)
        columns[f"{each.name} ({unit})"] = 100 * values if unit == "%" else values
    return columns


def changes(features: Array, mean: Array, std: Array) -> tuple[dict[str, float], tuple[str, ...]]:
    """Change of each statistic of images ``[n, width]`` against clean ones, and the clearest changes in words.

    Words are such as ``contrast -41 %``; of the octaves of detail, only one is named.
    """
    shift = (features.mean(axis=0) - mean).tolist()
    found: list[tuple[float, str, str]] = []
    for each, change, deviation in zip(STATISTICS, shift, std.tolist(), strict=False):
        named = each.name not in UNNAMED and (change >= 0 or each.name not in ONLY_MORE)
        deviations = abs(change) / deviation
        if named and deviations >= MIN_DEVIATIONS and abs(change) >= each.min_change:
            text = {
                "%": f"{100 * np.expm1(change):+.0f} %",
                "stops": f"{change:+.1f} stops",
                "times": f"{'x' if change > 0 else '/'}{np.exp(abs(change)):.1f}",
                "points": f"{100 * change:+.0f} points",
            }[each.unit]
            found.append((deviations, each.name, f"{each.name} {text}"))
    found.sort(reverse=True)
    octaves = [name for _, name, _ in found if name in OCTAVES]
    words = tuple(text for _, name, text in found if name not in octaves[1:])[:MAX_NAMED]
    return dict(zip(NAMES, shift, strict=False)), words


def direction(words: str) -> str:
    """Statistic and sign of a change in words: ``contrast -`` of ``contrast -41 %``."""
    return next(words[: len(name) + 2] for name in NAMES if words.startswith(name))


def advice(words: Sequence[str], quality: Mapping[str, float]) -> list[str]:
    """What a person can do about the clearest of the changes in words, if anything.

    Motion explains a loss of detail, and so does one of contrast that is nearly as large; darkness explains both.
    """
    contrast, brightness, found = quality.get("contrast", 0.0), quality.get("brightness", 0.0), list[str]()
    dark = brightness < EXPLAINED * GAMMA / np.log(2) * contrast < 0  # as where pixels are multiplied by a factor
    for each in sorted(map(direction, words), key=lambda each: not each.startswith("sideways")):
        hazy = each[:-2] in OCTAVES and contrast < EXPLAINED * quality[each[:-2]] < 0
        each = "contrast -" if hazy else each
        found += [ADVICE["brightness -" if dark and each == "contrast -" else each]] if each in ADVICE else []
    return found[:1]
