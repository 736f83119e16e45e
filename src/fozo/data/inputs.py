"""What people call images, as the one form that a model reads: one door for batches, one for clean images.

A batch (:func:`as_batch`), given to a method:

=============================================  =========================================================================
given                                          read as
=============================================  =========================================================================
float array or tensor ``[B, C, H, W]``         normalised images, in any precision
``[C, H, W]`` of these                         a batch of one: the logits are ``[1, classes]``
``uint8`` ``[B, H, W, C]`` or ``[B, C, H, W]``  RGB pixels, normalised with the model's mean and std; one image likewise
PIL image                                      its RGB pixels, likewise
list of any of these                           a batch of them
``(images, labels)``                           the images
``{"pixel_values": ...}``, ``{"images": ...}``  the images
=============================================  =========================================================================

Pixels of another size than the model's are resized and cropped as streams do it (ImageNet's Resize and CenterCrop,
:func:`fozo.data.images.resize_crop`); floats of another size are refused. What comes back is of the kind that was
given: tensors for tensors, on their device, and NumPy for all else.

Clean images (:func:`batches`), given to calibration: a ``DataLoader``, a ``Dataset`` or any other iterable of batches
or of single images, an array of all, an :class:`~fozo.data.sets.base.ImageSet`, a folder, a tar.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from fozo.core.normalisation import InputRange
from fozo.errors import FozoError
from fozo.types import Floats, Images, ImagesT, Spec

BATCH = 64
"""Images that are put together where they come one by one."""
KEYS = ("pixel_values", "images", "image")
"""Where dictionaries of images have them: transformers', and those of many datasets."""


def as_batch(images: object, spec: Spec, clean: InputRange | None = None) -> Images:
    """Turn what a user gives as a batch into float images; whether the model can read them, its engine checks.

    Where the model does not tell its mean and std, pixels are normalised as the ``clean`` images were, where that is
    known.
    """
    given = _unwrapped(images)
    if is_array(given):
        array = given
    elif _is_picture(given):
        array = _stacked([given], spec)
    elif isinstance(given, (str, bytes, os.PathLike)) or not isinstance(given, Sequence):
        raise _refusal(given, spec)
    else:
        array = _stacked(given, spec)
    array = array[None] if array.ndim == 3 else array
    if not _is_bytes(array):
        return cast("Images", array)
    told = None if clean is None or spec.normalisation is not None else clean.told()
    return _from_pixels(array, spec if told is None else replace(spec, mean=told[0], std=told[1]))


def to_type_of(images: ImagesT, array: Floats) -> ImagesT:
    """Give ``array`` back as what the user handed in: a torch tensor on the same device, or NumPy."""
    if isinstance(images, np.ndarray):
        return cast("ImagesT", array)
    torch = sys.modules["torch"]
    tensor: ImagesT = torch.from_numpy(np.ascontiguousarray(array)).to(images.device)
    return tensor


def batches(source: object, spec: Spec) -> Iterator[Images]:
    """Turn what a user gives as clean images into batches of float images."""
    if isinstance(source, (str, os.PathLike)):
        source = _opened(Path(source))
    if isinstance(source, Mapping) or _is_labelled(source):
        source = _unwrapped(source)
    if is_array(source):
        if source.ndim < 4:
            raise FozoError(f"one array of shape {list(source.shape)} is no collection of images; give [N, C, H, W]")
        return (as_batch(source[start : start + BATCH], spec) for start in range(0, len(source), BATCH))
    from fozo.data.sets.base import ImageSet

    if isinstance(source, ImageSet):
        return _read(source, spec)
    if isinstance(source, Mapping) or _is_picture(source) or not _is_iterable(source):
        raise FozoError(
            f"cannot calibrate on {_describe(source)}; give a DataLoader, a folder of images, or an iterable of batches"
        )
    return _gathered(source, spec)


def _gathered(source: Iterable[object], spec: Spec) -> Iterator[Images]:
    """Pass batches on, and put single images together."""
    single: list[object] = []
    for item in source:
        item = _unwrapped(item)
        if _is_picture(item) or (is_array(item) and item.ndim == 3):
            single.append(item)
            if len(single) == BATCH:
                yield as_batch(single, spec)
                single = []
        else:
            yield as_batch(item, spec)
    if single:
        yield as_batch(single, spec)


def is_array(value: object) -> TypeGuard[Any]:
    """Whether it is an array of NumPy's, or a tensor of torch's where that is imported."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def _is_picture(value: object) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _is_bytes(array: Any) -> bool:  # noqa: ANN401 - NumPy's or torch's
    return str(array.dtype) in ("uint8", "torch.uint8")


def _is_iterable(value: object) -> TypeGuard[Iterable[object]]:
    return hasattr(value, "__iter__") or hasattr(value, "__getitem__")


def _is_labelled(value: object) -> bool:
    """Whether it is ``(images, labels)`` of many images."""
    if not isinstance(value, (list, tuple)) or len(value) < 2 or not is_array(value[0]) or value[0].ndim != 4:
        return False
    return not any(is_array(other) and other.ndim == 4 for other in value[1:])


def _unwrapped(value: object) -> object:
    """Take the images out of ``(images, labels)`` and out of dictionaries."""
    if isinstance(value, Mapping):
        keys = [key for key in KEYS if key in value]
        if not keys:
            names = ", ".join(map(repr, list(value)[:5])) or "nothing"
            raise FozoError(f"a batch has {names}, and no 'pixel_values' or 'images'; give its images alone")
        return _unwrapped(value[keys[0]])
    if not isinstance(value, (list, tuple)) or not value:
        return value
    first, *rest = value
    if isinstance(first, Mapping):
        return [_unwrapped(item) for item in value]
    if is_array(first) and first.ndim == 4:
        if rest and not _is_labelled(value):
            raise FozoError(f"a list of {len(value)} batches was given where one is read; give them one at a time")
        return first
    one = _is_picture(first) or (is_array(first) and first.ndim == 3)
    labelled = rest and not any(_is_picture(other) or (is_array(other) and other.ndim >= 2) for other in rest)
    return first if one and labelled else value


def _stacked(images: Sequence[Any], spec: Spec) -> Any:  # noqa: ANN401 - NumPy's or torch's
    """Make one array of a list of images."""
    if not len(images):
        raise FozoError("the batch has no images; give at least one")
    if any(_is_picture(image) for image in images):
        if not all(_is_picture(image) for image in images):
            raise _refusal(images, spec)
        from fozo.data.images import picture_pixels

        return sized_pixels([picture_pixels(image, f"image {i} of the batch") for i, image in enumerate(images)], spec)
    if not any(map(is_array, images)):
        try:
            return np.asarray(images, dtype=None if isinstance(images[0], (list, tuple)) else np.float64)
        except (ValueError, TypeError) as error:
            raise _refusal(images, spec) from error
    if not all(is_array(image) and type(image) is type(images[0]) for image in images):
        raise _refusal(images, spec)
    if all(map(_is_bytes, images)) and all(image.ndim == 3 for image in images):
        pixels = sized_pixels([_channels_last(_to_numpy(image)[None], spec)[0] for image in images], spec)
        return pixels if isinstance(images[0], np.ndarray) else sys.modules["torch"].from_numpy(pixels)
    shapes = {tuple(image.shape): i for i, image in reversed(list(enumerate(images)))}
    if len(shapes) > 1:
        (one, i), (other, j) = list(shapes.items())[-1], list(shapes.items())[-2]
        raise FozoError(
            f"the images of the batch differ in shape: image {i} has {list(one)} and image {j} {list(other)}; resize "
            f"all to {list(spec.image_shape)}"
        )
    return np.stack(images) if isinstance(images[0], np.ndarray) else sys.modules["torch"].stack(tuple(images))


def _from_pixels(images: Any, spec: Spec) -> Images:  # noqa: ANN401 - NumPy's or torch's
    """Normalise bytes, of whatever size and order of axes."""
    pixels = _channels_last(_to_numpy(images), spec)
    if 0 in spec.image_size:  # a black box that has seen none yet reads any
        spec = replace(spec, image_size=pixels.shape[1:3])
    if pixels.shape[1:3] != spec.image_size:
        pixels = sized_pixels(list(pixels), spec)
    normalised = spec.normalise(pixels)
    if isinstance(images, np.ndarray):
        return normalised
    return cast("Images", sys.modules["torch"].from_numpy(normalised).to(images.device))


def _channels_last(pixels: npt.NDArray[np.uint8], spec: Spec) -> npt.NDArray[np.uint8]:
    """Bring ``uint8`` images ``[B, ...]`` to ``[B, height, width, channels]``."""
    if pixels.ndim == 4 and pixels.shape[3] == spec.channels:
        return pixels
    if pixels.ndim == 4 and pixels.shape[1] == spec.channels:
        return np.moveaxis(pixels, 1, 3)
    raise FozoError(
        f"{spec.name} reads images of {spec.channels} channels, but the uint8 images have shape "
        f"{list(pixels.shape[1:])}; give [height, width, {spec.channels}]"
        + (": convert gray, RGBA and other images to RGB" if spec.channels == 3 else "")
    )


def sized_pixels(images: Sequence[npt.NDArray[np.uint8]], spec: Spec) -> npt.NDArray[np.uint8]:
    """Bring images of any size to the model's size and channels, as streams do."""
    from fozo.data.images import fit, luminance

    height, width = spec.image_size if 0 not in spec.image_size else images[0].shape[:2]
    if spec.channels not in (1, 3):
        if any(image.shape != (height, width, spec.channels) for image in images):
            raise FozoError(
                f"{spec.name} has {spec.channels} channels, which cannot be resized; give {height}x{width} px"
            )
        return np.stack(images)
    fitted = []
    for image in images:
        colour = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
        sized = fit(np.ascontiguousarray(colour), (height, width))
        fitted.append(sized if spec.channels == 3 else luminance(sized))
    return np.stack(fitted)


def _to_numpy(array: Any) -> Any:  # noqa: ANN401 - NumPy's or torch's
    return array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()


def _opened(path: Path) -> object:
    """List the images of a folder, whatever its sub-folders mean, or those of a file that holds some."""
    if path.is_dir():
        from fozo.data.sets.folder import open_unlabelled

        return open_unlabelled(path)
    from fozo.data.sets import open_images

    return open_images(path)


def _read(images: Any, spec: Spec) -> Iterator[Images]:  # noqa: ANN401 - an ImageSet
    """Read clean images in order; no labels are looked at, so any classes will do."""
    from fozo.data.scenarios import Continual
    from fozo.data.streams import Stream

    if 0 in spec.image_size:
        raise FozoError(f"the size of the images of {spec.name} is not known yet; give image_size=(height, width)")
    if images.corrupted:
        raise FozoError(f"the {images.name} set holds corrupted images; calibrate on clean ones")
    free = replace(spec, classes=len(images.classes), subset=images.mask, labels=None)
    for batch in Stream(images, free, Continual(kinds=("clean",), shuffle=False), batch_size=BATCH).batches():
        yield batch.images


def _describe(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of {', '.join(sorted({type(item).__name__ for item in value}))}"
    return f"a {type(value).__name__}"


def _refusal(images: object, spec: Spec) -> FozoError:
    kinds = isinstance(images, (list, tuple)) and any(isinstance(image, (str, bytes, os.PathLike)) for image in images)
    paths = isinstance(images, (str, bytes, os.PathLike)) or kinds
    remedy = (
        "open files first, with PIL.Image.open say" if paths else f"give [B, {', '.join(map(str, spec.image_shape))}]"
    )
    ragged = isinstance(images, (list, tuple)) and all(isinstance(image, (list, tuple)) for image in images)
    what = "lists of differing lengths" if ragged else _describe(images)
    return FozoError(f"{what} is no batch of images for {spec.name}; {remedy}, or a list of PIL images or arrays")
