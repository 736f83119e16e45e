"""What every engine refuses to read: images of another shape, broken ones, and values that no pixel can have.

Pixels in [0, 1], normalised with a model's mean and std, have known bounds, so a mistake in how images were prepared
shows in their smallest and largest values. What is absurd is refused: the whole batch, by the number of the image,
before anything has been adapted. What is merely suspicious is an :class:`~fozo.errors.ImageWarning`.

In pixels, ``normalised * std + mean``, where mean and std are known:

==================  =============================================================================================
-0.3 to 1.3         fine: sharp resampling overshoots by a fifth where edges meet, and jitter of colours by less
-3 to 4             suspicious; images normalised twice lie here (-2.2 to 2.7 with ImageNet's mean and std)
beyond              refused, unless within 8 of zero after normalisation: no standard normal noise, of which tests
                    are made, is absurd. Floats of 0..255 lie here, unless a frame is all but black
==================  =============================================================================================

Where they are not known, normalised values beyond 20 are suspicious (no usual mean and std lead there) and beyond 1020
refused (the same -3 to 4 for a model that reads 0..255).

Within these bounds, :mod:`fozo.core.normalisation` tells by the grid of 8-bit pixels whether images were normalised for
another model, or not at all; that is suspicious too.
"""

from __future__ import annotations

import warnings

import numpy as np

from fozo.core.normalisation import name_of, recognise, recognise_range, sample
from fozo.errors import FozoError, ImageWarning
from fozo.types import Array, Images, Spec

USUAL = -0.3, 1.3
ABSURD = -3.0, 4.0
NOISE = 8.0
USUAL_UNKNOWN = -20.0, 20.0
ABSURD_UNKNOWN = -1020.0, 1020.0


def check_images(images: Images, spec: Spec, warned: set[str]) -> None:
    """Refuse a batch that the model cannot read; ``warned`` is where the engine keeps what it has warned of."""
    want = f"float images of shape [B, {', '.join(map(str, spec.image_shape))}]"
    shape = tuple(images.shape)
    if len(shape) != 4 or shape[1:] != spec.image_shape:
        raise FozoError(f"{spec.name} reads {want}, but the batch has shape {list(shape)}; {_reshape(shape, spec)}")
    if shape[0] == 0:
        raise FozoError("the batch has no images; give at least one")
    if "float" not in getattr(images.dtype, "name", str(images.dtype)):  # NumPy writes '>f4' for what it names float32
        raise FozoError(
            f"{spec.name} reads {want}, but the batch holds {images.dtype}; give normalised floats, or pixels of "
            f"0..255 as uint8 to an adapter or to engine.spec.normalise"
        )
    # Two reductions and no copy. Both hand a NaN on, and comparisons with NaN fail, so nothing else looks for one.
    if isinstance(images, np.ndarray):
        low, high = (np.asarray(part, dtype=np.float64) for part in (images.min(axis=(2, 3)), images.max(axis=(2, 3))))
    else:
        low, high = (part.detach().double().cpu().numpy() for part in (images.amin((2, 3)), images.amax((2, 3))))
    if spec.mean is None or spec.std is None:
        if not (low.min() >= USUAL_UNKNOWN[0] and high.max() <= USUAL_UNKNOWN[1]):
            _object(low, high, spec, warned)
        return
    mean, std = np.asarray(spec.mean), np.asarray(spec.std)
    own = spec.mean, spec.std
    if not ((low * std + mean).min() >= ABSURD[0] and (high * std + mean).max() <= ABSURD[1]):
        _object(low, high, spec, warned)
    elif (
        found := recognise(sample(images), own) or recognise_range(low.min(axis=0), high.max(axis=0), own)
    ) is not None and found != own:
        looks = name_of(found)
        _warn(f"the batch looks like {looks}, but {spec.name} reads {name_of(own)}; {_advice(spec)}", looks, warned)
    elif not ((low * std + mean).min() >= USUAL[0] and (high * std + mean).max() <= USUAL[1]):
        _object(low, high, spec, warned)
    elif low.min() == 0 and 0.5 < high.max() <= 1 and (mean / std).min() > 0.1:
        # Exactly 0 is black, and frequent, before normalisation; after it black is below 0, and 0 next to no pixel.
        _warn(f"the batch lies within [0, 1]: it looks un-normalised; {_advice(spec)}", "un-normalised", warned)


def _reshape(shape: tuple[int, ...], spec: Spec) -> str:
    """Say what makes a batch of another shape readable."""
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
    usual, absurd = _limits(spec)
    wrong = {
        "broken": ~(np.isfinite(low) & np.isfinite(high)),
        "absurd": (low < absurd[0]) | (high > absurd[1]),
        "suspicious": (low < usual[0]) | (high > usual[1]),
    }
    kind = next(name for name, channels in wrong.items() if channels.any())
    images = np.flatnonzero(wrong[kind].any(axis=1))
    image = images[0]
    more = f" ({len(images)} such images in the batch)" if len(images) > 1 else ""
    if kind == "broken":
        raise FozoError(f"image {image} of the batch holds NaN or infinite values{more}; leave it out")
    channel = int(wrong[kind][image].argmax())
    below = low[image, channel] < (absurd if kind == "absurd" else usual)[0][channel]
    value = (low if below else high)[image, channel]
    cause, advice = _cause(low[image], high[image], spec)
    sentence = (
        f"image {image} of the batch holds {value:.4g} in channel {channel}, where {spec.name} reads "
        f"{usual[0][channel]:.3g} to {usual[1][channel]:.3g}{more}: {cause}; {advice}"
    )
    if kind == "absurd":
        raise FozoError(sentence)
    _warn(sentence, cause, warned)


def _limits(spec: Spec) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """The least and most normalised values that are usual, and those beyond which they are absurd, by channel."""
    if spec.mean is None or spec.std is None:
        ones = np.ones(spec.channels)
        usual, absurd = ((least * ones, most * ones) for least, most in (USUAL_UNKNOWN, ABSURD_UNKNOWN))
        return usual, absurd
    mean, std = np.asarray(spec.mean), np.asarray(spec.std)
    usual, absurd = (((least - mean) / std, (most - mean) / std) for least, most in (USUAL, ABSURD))
    return usual, (np.minimum(absurd[0], -NOISE), np.maximum(absurd[1], NOISE))


def _cause(low: Array, high: Array, spec: Spec) -> tuple[str, str]:
    """Tell from the extremes of an image's channels how it was probably prepared, and what to do instead."""
    if low.min() >= 0 and 2 < high.max() <= 256:
        return "it looks like 0..255", _advice(spec)
    if spec.mean is None or spec.std is None:
        return "no usual normalisation leads there", _advice(spec)
    mean, std = np.asarray(spec.mean), np.asarray(spec.std)
    dark, bright = low * std + mean, high * std + mean
    if dark.min() >= USUAL[0] and 16 < bright.max() <= 256:
        return "it looks like 0..255, normalised without dividing by 255", _advice(spec)
    if dark.min() < USUAL[0] and (dark * std + mean).min() >= -0.05 and (bright * std + mean).max() <= 1.05:
        return "it looks normalised twice", "normalise it once"
    return "it was damaged, or normalised for another model", _advice(spec)


def _advice(spec: Spec) -> str:
    if spec.mean is None or spec.std is None:
        return "leave it out, or divide pixels by 255 and normalise them as the training images were"
    return "leave it out, or use engine.spec.normalise on uint8 pixels"


def _warn(sentence: str, cause: str, warned: set[str]) -> None:
    if cause not in warned:
        warnings.warn(sentence, ImageWarning, stacklevel=4)
        warned.add(cause)  # after it: where warnings are errors, every such batch is refused
