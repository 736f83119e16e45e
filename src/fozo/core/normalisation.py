"""Whether images have the shape and the values that a model reads.

:func:`check_images` refuses images of another shape, broken ones and absurd values before anything is adapted. Pixels
in [0, 1], normalised with a model's mean and std, have known bounds. What is merely suspicious is an
:class:`~fozo.errors.ImageWarning`.

In pixels, ``normalised * std + mean``, where mean and std are known:

==================  =============================================================================================
-0.3 to 1.3         fine: sharp resampling overshoots by a fifth where edges meet, and jitter of colours by less
-3 to 4             suspicious; images normalised twice lie here (-2.2 to 2.7 with ImageNet's mean and std)
beyond              refused, unless within 8 of zero after normalisation: tests use standard normal noise.
                    Floats of 0..255 lie here, unless a frame is all but black
==================  =============================================================================================

Where they are not known, normalised values beyond 20 are suspicious (no usual mean and std lead there) and beyond 1020
refused (the same -3 to 4 for a model that reads 0..255). A method then also compares its images with the range of the
clean ones (:class:`InputRange`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError, ImageWarning
from fozo.state import State
from fozo.types import Array, Images, Spec

Normalisation = tuple[tuple[float, ...], tuple[float, ...]]  # mean and std of each channel, for pixels in [0, 1]

NONE: Normalisation = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
HALF: Normalisation = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
IMAGENET: Normalisation = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: Normalisation = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
BYTES: Normalisation = ((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))
COMMON = {
    "pixels of 0 to 1 (as if Normalize had been left out)": NONE,
    "pixels normalised with a mean and std of 0.5": HALF,
    "pixels normalised with ImageNet's mean and std": IMAGENET,
    "pixels normalised with CLIP's mean and std": CLIP,
    "pixels of 0 to 255 (as if they had been neither divided nor normalised)": BYTES,
}

UNKNOWN: Normalisation = ((0.0,), (1.0,))  # values are taken as they are where mean and std are not known
USUAL_PIXELS = -0.3, 1.3
ABSURD_PIXELS = -3.0, 4.0
USUAL_VALUES = -20.0, 20.0  # after normalisation, where mean and std are not known
ABSURD_VALUES = -1020.0, 1020.0
NOISE_VALUE = 8.0  # after normalisation; standard normal noise stays below
RANGE_MARGIN = (
    0.3  # part of the clean range by which later values may exceed it: sharp resampling overshoots by a fifth
)
END_TOLERANCE = 0.01  # distance from black and white at which a range shows its normalisation
FIRST_CHECKED = 16  # batches that are compared with the clean images before only some are
ADVICE = "leave it out, or divide its pixels by 255 and normalise them once as the training images were"
CHECKED_EVERY = 16  # later one in so many batches is compared


@lru_cache
def common(channels: int) -> tuple[Normalisation, ...]:
    """Usual normalisations of images with ``channels`` channels; those of ImageNet and CLIP have three."""
    gray = tuple((mean[:1] * channels, std[:1] * channels) for mean, std in (NONE, HALF, BYTES))
    return (*gray, IMAGENET, CLIP) if channels == 3 else gray


def name_of(normalisation: Normalisation) -> str:
    for name, usual in COMMON.items():
        if np.shape(normalisation) == np.shape(usual) and np.allclose(normalisation, usual, rtol=0, atol=1e-6):
            return name
    mean, std = (", ".join(f"{value:.4g}" for value in values) for values in normalisation)
    return f"pixels normalised with mean {mean} and std {std}"


def extremes(images: Images, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Smallest and largest values over axes of a batch ``[B, C, H, W]``. A NaN is handed on."""
    if isinstance(images, np.ndarray):
        return images.min(axes).astype(np.float64), images.max(axes).astype(np.float64)
    low, high = (values.detach().double().cpu().numpy() for values in (images.amin(axes), images.amax(axes)))
    return low, high


def in_pixels(low: Array, high: Array, normalisation: Normalisation) -> tuple[Array, Array]:
    """Smallest and largest values as they were before normalisation, where black is 0 and white is 1."""
    mean, std = np.asarray(normalisation)
    return low * std + mean, high * std + mean


@dataclass(frozen=True, eq=False)
class InputRange(State):
    """The values that clean images had: each channel's least and most, and the normalisation where it is known."""

    low: Array
    high: Array
    normalisation: Normalisation | None

    @classmethod
    def of(cls, images: Images, own: Normalisation | None) -> InputRange:
        """Look at a batch ``[B, C, H, W]``; ``own`` is the model's normalisation where that is known."""
        return cls(*extremes(images, (0, 2, 3)), own)

    def __post_init__(self) -> None:
        """Refuse what no images have."""
        if self.low.shape != self.high.shape or (self.low > self.high).any():
            raise ValueError("inputs has a range below 0")
        if self.normalisation is not None and min(self.normalisation[1], default=0) <= 0:
            raise ValueError("inputs has a std that is not positive")

    def merge(self, other: InputRange) -> InputRange:
        """The range of both collections of images. Where two normalisations differ, neither counts."""
        known = {one for one in (self.normalisation, other.normalisation) if one is not None}
        agreed = known.pop() if len(known) == 1 else None
        return InputRange(np.minimum(self.low, other.low), np.maximum(self.high, other.high), agreed)

    def inferred(self) -> Normalisation | None:
        """The normalisation, or the only common one under which the range is from black to white."""
        if self.normalisation is not None:
            return self.normalisation
        fits = []
        for candidate in common(len(self.low)):
            dark, bright = in_pixels(self.low, self.high, candidate)
            if np.abs([dark, bright - 1]).max() <= END_TOLERANCE:
                fits.append(candidate)
        return fits[0] if len(fits) == 1 else None

    def objection(self, images: Images) -> str | None:
        """Say in a few words why a batch can hardly have been prepared as the clean images were; ``None`` if it may."""
        low, high = extremes(images, (0, 2, 3))
        normalisation = self.inferred()
        if normalisation is not None and _is_raw(low, high, normalisation):
            return f"it lies within [0, 1], but the clean images were {name_of(normalisation)}"
        margin = RANGE_MARGIN * (self.high - self.low)
        if (low >= self.low - margin).all() and (high <= self.high + margin).all():
            return None
        return (
            f"it holds values of {low.min():.3g} to {high.max():.3g}, but the clean images had "
            f"{self.low.min():.3g} to {self.high.max():.3g}"
        )


class Watch:
    """Compares the images of a method with its clean images: the first batches, then some. It warns once.

    Where the model's mean and std are known, its engine checks every batch, and nothing is left to do here.
    """

    def __init__(self) -> None:
        self.batches = 0
        self.warned = False

    def __call__(self, images: Images, spec: Spec, clean: InputRange) -> None:
        self.batches += 1
        if spec.normalisation is not None or self.warned:
            return
        if self.batches > FIRST_CHECKED and self.batches % CHECKED_EVERY:
            return
        objection = clean.objection(images)
        if objection is not None:
            sentence = (
                f"the batch was prepared in another way than the clean images: {objection}; prepare both the same"
            )
            warnings.warn(sentence, ImageWarning, stacklevel=3)
            self.warned = True  # after it: where warnings are errors, such batches are refused


def check_images(images: Images, spec: Spec, warned: set[str]) -> None:
    """Refuse a batch that the model cannot read; ``warned`` is where the engine keeps what it has warned of."""
    _check_form(images, spec)
    # Two reductions and no copy. Comparisons with NaN fail, so nothing else looks for one.
    low, high = extremes(images, (2, 3))
    normalisation = spec.normalisation or UNKNOWN
    usual, absurd = (USUAL_PIXELS, ABSURD_PIXELS) if spec.normalisation else (USUAL_VALUES, ABSURD_VALUES)
    dark, bright = in_pixels(low, high, normalisation)
    if dark.min() >= usual[0] and bright.max() <= usual[1]:
        if _is_raw(low, high, normalisation):
            _warn(f"the batch lies within [0, 1]: it looks un-normalised; {ADVICE}", "un-normalised", warned)
        return
    broken = ~(np.isfinite(low) & np.isfinite(high))
    if broken.any():
        raise FozoError(f"image {_first(broken)} of the batch holds NaN or infinite values; leave it out")
    refused = ((dark < absurd[0]) & (low < -NOISE_VALUE)) | ((bright > absurd[1]) & (high > NOISE_VALUE))
    suspicious = (dark < usual[0]) | (bright > usual[1])
    image = _first(refused if refused.any() else suspicious)
    least = low[image].min()
    most = high[image].max()
    cause = "it looks like 0..255" if least >= 0 and 2 < most <= 256 else "it was damaged, or prepared in another way"
    mean, std = np.asarray(normalisation)
    black, white = (0, 1) if spec.normalisation else usual
    sentence = (
        f"image {image} of the batch holds values of {least:.4g} to {most:.4g}, where {spec.name} reads "
        f"{((black - mean) / std).min():.3g} to {((white - mean) / std).max():.3g}: {cause}; {ADVICE}"
    )
    if refused.any():
        raise FozoError(sentence)
    _warn(sentence, cause, warned)


def _check_form(images: Images, spec: Spec) -> None:
    """Refuse a wrong shape, an empty batch, and what is not floats."""
    shape = tuple(images.shape)
    channels, *size = spec.image_shape
    wanted = f"{spec.name} reads float images of shape [B, {channels}, {size[0]}, {size[1]}]"
    if len(shape) != 4 or shape[1:] != spec.image_shape:
        remedy = "give a batch of such images"
        if len(shape) == 3:
            remedy = "one image is a batch of one: images[None]"
        elif shape[1:] == (*size, channels):
            remedy = "put the channels first: images.transpose(0, 3, 1, 2), or permute in torch"
        elif len(shape) == 4 and shape[1] == channels:
            remedy = f"resize the images to {size[0]}x{size[1]} px"
        raise FozoError(f"{wanted}, but the batch has shape {list(shape)}; {remedy}")
    if shape[0] == 0:
        raise FozoError("the batch has no images; give at least one")
    if "float" not in getattr(images.dtype, "name", str(images.dtype)):  # NumPy writes '>f4' for what it names float32
        raise FozoError(
            f"{wanted}, but the batch holds {images.dtype}; give normalised floats, or pixels of 0..255 as uint8 to an "
            f"adapter or to engine.spec.normalise"
        )


def _is_raw(low: Array, high: Array, normalisation: Normalisation) -> bool:
    """Whether a batch looks like pixels of 0 to 1 where normalised ones are read.

    Exactly 0 is black, and frequent, before normalisation; after it black is below 0, and 0 next to no pixel.
    """
    mean, std = np.asarray(normalisation)
    return bool(low.min() == 0 and 0.5 < high.max() <= 1 and (mean / std).min() > 0.1)


def _first(faulty: npt.NDArray[np.bool_]) -> int:
    """The first image with a fault in any channel: ``[B, channels]``."""
    return int(faulty.any(axis=1).argmax())


def _warn(sentence: str, cause: str, warned: set[str]) -> None:
    if cause not in warned:
        warnings.warn(sentence, ImageWarning, stacklevel=4)
        warned.add(cause)  # after it: where warnings are errors, every such batch is refused
