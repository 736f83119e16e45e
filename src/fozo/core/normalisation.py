"""Which mean and std images were normalised with, inferred from their values.

Nearly all images have 8 bits before they are normalised, so their values afterwards lie on a grid:
``(k / 255 - mean) / std`` for whole numbers k from 0 to 255. A handful of pixels shows whether they lie on the grid of
one mean and std and not on another's, whatever they show: a foggy, a bright or a noisy image is on the same grid as a
clean one. So drift is not mistaken for another normalisation, nor the other way round. Images that were resized or
augmented as floats lie on no grid, and of them only the range says something.

:func:`check_images` refuses what no engine can read: images of another shape, broken ones, and absurd values. Pixels in
[0, 1], normalised with a model's mean and std, have known bounds. A batch with values far beyond them is refused before
anything is adapted; what is merely suspicious is an :class:`~fozo.errors.ImageWarning`.

In pixels, ``normalised * std + mean``, where mean and std are known:

==================  =============================================================================================
-0.3 to 1.3         fine: sharp resampling overshoots by a fifth where edges meet, and jitter of colours by less
-3 to 4             suspicious; images normalised twice lie here (-2.2 to 2.7 with ImageNet's mean and std)
beyond              refused, unless within 8 of zero after normalisation: no standard normal noise, of which tests
                    are made, is absurd. Floats of 0..255 lie here, unless a frame is all but black
==================  =============================================================================================

Where they are not known, normalised values beyond 20 are suspicious (no usual mean and std lead there) and beyond 1020
refused (the same -3 to 4 for a model that reads 0..255).

Within these bounds, the grid of 8-bit pixels shows whether images were normalised for another model, or not at all;
that is suspicious too.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

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

ON_GRID = 0.03  # distance from a whole number that a pixel of 0..255 may have in single precision
MOSTLY = 0.95  # part of the values that have to be on a grid: padding and masks need not be
SELDOM = 0.75  # part on the model's own grid above which no other is tried: half of 0..1 are on that of 0.5
DISTINCT = 12  # different values that have to be on a grid: those of a flat image may be there by chance
FIRST, EVERY = 16, 16  # batches that are compared with the clean images: the first ones, then every sixteenth
BEYOND = 0.3  # part of the clean range that values may lie outside of it: sharp resampling overshoots by a fifth
SATURATED = 0.01  # distance from black and white that extremes may have for a range to show its normalisation
SIDE = 8  # pixels looked at down and across each image
IMAGES = 4  # images of a batch that are looked at


@lru_cache
def common(channels: int) -> tuple[Normalisation, ...]:
    """Usual normalisations of images with ``channels`` channels; those of ImageNet and CLIP have three."""
    gray = tuple((mean[:1] * channels, std[:1] * channels) for mean, std in (NONE, HALF, BYTES))
    return (*gray, IMAGENET, CLIP) if channels == 3 else gray


def name_of(normalisation: Normalisation) -> str:
    for name, usual in COMMON.items():
        if np.shape(normalisation) == np.shape(usual) and np.allclose(normalisation, usual, rtol=0, atol=1e-6):
            return name
    mean, std = (", ".join(f"{value:.4g}" for value in part) for part in normalisation)
    return f"pixels normalised with mean {mean} and std {std}"


def recognise(images: Images, own: Normalisation | None = None) -> Normalisation | None:
    """Recognise the normalisation of images ``[B, C, H, W]`` by a few pixels of the first images.

    Returns the model's ``own``, or the only common one whose grid they are on, else ``None``.
    """
    down, across = -(-int(images.shape[2]) // SIDE), -(-int(images.shape[3]) // SIDE)
    some: Any = images[:IMAGES, :, down // 2 :: down, across // 2 :: across]
    some = some if isinstance(some, np.ndarray) else some.detach().double().cpu().numpy()
    values: Array = np.asarray(some, dtype=np.float64).swapaxes(0, 1).reshape(images.shape[1], -1)
    most = MOSTLY * values.size
    if own is not None:
        count = _on_grids(values, (own,))[0]
        if count > SELDOM * values.size:
            return own if count >= most else None
    usual = common(len(values))
    fits = np.flatnonzero(_on_grids(values, usual) >= most)
    return usual[fits[0]] if len(fits) == 1 and len(np.unique(values)) >= DISTINCT else None


def _on_grids(values: Array, normalisations: Sequence[Normalisation]) -> npt.NDArray[np.intp]:
    """Count, for each mean and std, the values ``[C, n]`` on its grid."""
    mean, std = np.asarray(normalisations).swapaxes(0, 1)[..., None]
    pixels = 255 * (values * std + mean)
    whole = np.rint(pixels)
    fits = (np.abs(pixels - whole) < ON_GRID) & (whole >= 0) & (whole <= 255)
    counts: npt.NDArray[np.intp] = np.count_nonzero(fits, axis=(1, 2))
    return counts


def extremes(images: Images, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Smallest and largest values over axes of a batch ``[B, C, H, W]``. A NaN is handed on."""
    if isinstance(images, np.ndarray):
        return images.min(axes).astype(np.float64), images.max(axes).astype(np.float64)
    low, high = (part.detach().double().cpu().numpy() for part in (images.amin(axes), images.amax(axes)))
    return low, high


@dataclass(frozen=True, eq=False)
class InputRange(State):
    """The values that clean images had: each channel's least and most, and the normalisation where it is known."""

    low: Array
    high: Array
    normalisation: Normalisation | None

    @classmethod
    def of(cls, images: Images, own: Normalisation | None) -> InputRange:
        """Look at a batch ``[B, C, H, W]``; ``own`` is the model's normalisation where that is known."""
        return cls(*extremes(images, (0, 2, 3)), recognise(images, own))

    def __post_init__(self) -> None:
        """Refuse what no images have."""
        if self.low.shape != self.high.shape or (self.low > self.high).any():
            raise ValueError("inputs has a range below 0")
        if self.normalisation is not None and min(self.normalisation[1], default=0) <= 0:
            raise ValueError("inputs has a std that is not positive")

    def merge(self, other: InputRange) -> InputRange:
        """Of both collections of images; of two different normalisations neither counts."""
        one, two = self.normalisation, other.normalisation
        agreed = (one or two) if None in (one, two) or one == two else None
        return InputRange(np.minimum(self.low, other.low), np.maximum(self.high, other.high), agreed)

    def inferred(self, own: Normalisation | None = None) -> Normalisation | None:
        """The normalisation, or ``own`` or the only common one under which the range is from black to white."""
        if self.normalisation is not None:
            return self.normalisation
        candidates = (*common(len(self.low)), *([own] if own else ()))
        fits = [one for one in candidates if np.abs(self._pixels(one) - [[0], [1]]).max() <= SATURATED]
        return own if own in fits else fits[0] if len(fits) == 1 else None

    def _pixels(self, normalisation: Normalisation) -> Array:
        """The range as pixels under a normalisation, where black is 0 and white is 1: ``[2, C]``."""
        mean, std = (np.asarray(part) for part in normalisation)
        pixels: Array = np.stack([self.low, self.high]) * std + mean
        return pixels

    def objection(self, images: Images) -> str | None:
        """Say in a few words why a batch can hardly have been prepared as the clean images were; ``None`` if it may."""
        own = self.inferred()
        batch = InputRange.of(images, own)
        found = batch.inferred(own)
        if found is not None:
            ends = self._pixels(found)
            # The range of clean images whose normalisation is unknown may still be that of black to white.
            fits = ends.min() >= -BEYOND and ends.max() <= 1 + BEYOND and np.ptp(ends) >= 1 - BEYOND
            if found == own or (own is None and fits):
                return None
            clean = "were something else" if own is None else f"were {name_of(own)}"
            return f"it looks like {name_of(found)}, but the clean images {clean}"
        room = BEYOND * (self.high - self.low)
        if (batch.low < self.low - room).any() or (batch.high > self.high + room).any():
            return (
                f"it holds values of {batch.low.min():.3g} to {batch.high.max():.3g}, but the clean images had "
                f"{self.low.min():.3g} to {self.high.max():.3g}"
            )
        return None


class Watch:
    """Compares the images of a method with its clean images: the first batches, then now and then. It warns once.

    Where the model's mean and std are known, its engine checks every batch, and nothing is left to do here.
    """

    def __init__(self) -> None:
        self.batches, self.warned = 0, False

    def __call__(self, images: Images, spec: Spec, clean: InputRange) -> None:
        self.batches += 1
        if spec.normalisation is not None or self.warned:
            return
        if self.batches > FIRST and self.batches % EVERY:
            return
        objection = clean.objection(images)
        if objection is not None:
            what = f"the batch was prepared in another way than the clean images: {objection}"
            warnings.warn(f"{what}; prepare both the same", ImageWarning, stacklevel=3)
            self.warned = True  # after it: where warnings are errors, such batches are refused


USUAL = -0.3, 1.3
ABSURD = -3.0, 4.0
NOISE = 8.0
UNKNOWN = ((0.0,), (1.0,))  # values are taken as they are where mean and std are not known
USUAL_UNKNOWN = -20.0, 20.0
ABSURD_UNKNOWN = -1020.0, 1020.0


def check_images(images: Images, spec: Spec, warned: set[str]) -> None:
    """Refuse a batch that the model cannot read; ``warned`` is where the engine keeps what it has warned of."""
    shape, want = tuple(images.shape), f"float images of shape [B, {str(spec.image_shape)[1:-1]}]"
    if len(shape) != 4 or shape[1:] != spec.image_shape:
        raise FozoError(f"{spec.name} reads {want}, but the batch has shape {list(shape)}; {_reshape(shape, spec)}")
    if shape[0] == 0:
        raise FozoError("the batch has no images; give at least one")
    if "float" not in getattr(images.dtype, "name", str(images.dtype)):  # NumPy writes '>f4' for what it names float32
        raise FozoError(
            f"{spec.name} reads {want}, but the batch holds {images.dtype}; give normalised floats, or pixels of "
            f"0..255 as uint8 to an adapter or to engine.spec.normalise"
        )
    # Two reductions and no copy. Comparisons with NaN fail, so nothing else looks for one.
    low, high = extremes(images, (2, 3))
    own = spec.normalisation
    mean, std = np.asarray(own or UNKNOWN)
    usual, absurd = (USUAL, ABSURD) if own else (USUAL_UNKNOWN, ABSURD_UNKNOWN)
    darkest, brightest = (low * std + mean).min(), (high * std + mean).max()
    is_usual = darkest >= usual[0] and brightest <= usual[1]
    if own and darkest >= absurd[0] and brightest <= absurd[1]:
        found = InputRange(low.min(axis=0), high.max(axis=0), recognise(images, own)).inferred(own)
        if found not in (None, own):
            name = name_of(found)
            _warn(f"the batch looks like {name}, but {spec.name} reads {name_of(own)}; {_advice(spec)}", name, warned)
            return
        if is_usual and low.min() == 0 and 0.5 < high.max() <= 1 and (mean / std).min() > 0.1:
            # Exactly 0 is black, and frequent, before normalisation; after it black is below 0, and 0 next to no pixel.
            _warn(f"the batch lies within [0, 1]: it looks un-normalised; {_advice(spec)}", "un-normalised", warned)
    if not is_usual:
        _object(low, high, spec, warned)


def _reshape(shape: tuple[int, ...], spec: Spec) -> str:
    channels, *size = spec.image_shape
    if len(shape) == 3:
        return "one image is a batch of one: images[None]"
    if len(shape) == 4 and shape[1:] == (*size, channels):
        return "put the channels first: images.transpose(0, 3, 1, 2), or permute in torch"
    if len(shape) == 4 and shape[1] != channels and list(shape[2:]) == size:
        gray = ", by repeating the gray channel say" if shape[1] == 1 and channels == 3 else ""
        return f"give images of {channels} channels{gray}"
    if len(shape) == 4 and shape[1] == channels:
        return f"resize the images to {size[0]}x{size[1]} px"
    return "give a batch of images, channels first"


def _object(low: Array, high: Array, spec: Spec, warned: set[str]) -> None:
    """Refuse the batch, or warn, by the first of the worst images; the extremes are ``[B, channels]``."""
    mean, std = np.asarray(spec.normalisation or UNKNOWN)
    usual, absurd = (USUAL, ABSURD) if spec.normalisation else (USUAL_UNKNOWN, ABSURD_UNKNOWN)
    dark, bright = low * std + mean, high * std + mean
    below, above = ~np.isfinite(low), ~np.isfinite(high)
    broken = refused = bool((below | above).any())
    if not broken:
        below, above = (dark < absurd[0]) & (low < -NOISE), (bright > absurd[1]) & (high > NOISE)
        refused = bool((below | above).any())
    if not refused:
        below, above = dark < usual[0], bright > usual[1]
    images = np.flatnonzero((below | above).any(axis=1))
    image = images[0]
    more = f" ({len(images)} such images in the batch)" if len(images) > 1 else ""
    if broken:
        raise FozoError(f"image {image} of the batch holds NaN or infinite values{more}; leave it out")
    channel = int((below | above)[image].argmax())
    value = (low if below[image, channel] else high)[image, channel]
    ends = (0, 1) if spec.normalisation else usual  # black and white, without the tolerance
    least, most = (np.broadcast_to((limit - mean) / std, spec.channels)[channel] for limit in ends)
    cause, advice = _cause(low[image], high[image], spec)
    sentence = (
        f"image {image} of the batch holds {value:.4g} in channel {channel}, where {spec.name} reads "
        f"{least:.3g} to {most:.3g}{more}: {cause}; {advice}"
    )
    if refused:
        raise FozoError(sentence)
    _warn(sentence, cause, warned)


def _cause(low: Array, high: Array, spec: Spec) -> tuple[str, str]:
    """Tell from the extremes of an image's channels how it was probably prepared, and what to do instead."""
    if low.min() >= 0 and 2 < high.max() <= 256:
        return "it looks like 0..255", _advice(spec)
    if spec.normalisation is None:
        return "no usual normalisation leads there", _advice(spec)
    mean, std = np.asarray(spec.normalisation)
    dark, bright = low * std + mean, high * std + mean
    if dark.min() >= USUAL[0] and 16 < bright.max() <= 256:
        return "it looks like 0..255, normalised without dividing by 255", _advice(spec)
    if dark.min() < USUAL[0] and (dark * std + mean).min() >= -0.05 and (bright * std + mean).max() <= 1.05:
        return "it looks normalised twice", "normalise it once"
    return "it was damaged, or normalised for another model", _advice(spec)


def _advice(spec: Spec) -> str:
    if spec.normalisation is None:
        return "leave it out, or divide pixels by 255 and normalise them as the training images were"
    return "leave it out, or use engine.spec.normalise on uint8 pixels"


def _warn(sentence: str, cause: str, warned: set[str]) -> None:
    if cause not in warned:
        warnings.warn(sentence, ImageWarning, stacklevel=4)
        warned.add(cause)  # after it: where warnings are errors, every such batch is refused
