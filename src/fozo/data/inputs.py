"""Inputs: whatever users give as a batch or as clean images becomes the normalised arrays that a model reads.

A batch (:func:`as_batch`), given to a method:

=============================================  =========================================================================
given                                          read as
=============================================  =========================================================================
float array or tensor ``[B, C, H, W]``         normalised images, in any precision
``[C, H, W]`` of these                         a batch of one: the logits are ``[1, classes]``
``uint8`` ``[B, H, W, C]`` or ``[B, C, H, W]``  RGB pixels, normalised with the model's mean and std; one image likewise
``uint8`` ``[H, W]``                           gray pixels, likewise, where the model has one channel
PIL image                                      its RGB pixels, likewise
list of any of these                           a batch of them
``(images, labels)``                           the images
``{"pixel_values": ...}``, ``{"images": ...}``  the images
=============================================  =========================================================================

Pixels of another size than the model's are resized and cropped as streams do it (ImageNet's Resize and CenterCrop,
:func:`fozo.data.images.resize_crop`); floats of another size are refused. Results have the type of the images: tensors
for tensors, on their device, and NumPy for all else.

Clean images (:func:`batches`), given to calibration: a ``DataLoader``, a ``Dataset`` or any other iterable of batches
or of single images, an array of all, an :class:`~fozo.data.sets.base.ImageSet`, a folder, a video.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from fozo.core.normalisation import InputRange, common
from fozo.errors import FozoError, ImageWarning
from fozo.types import Floats, Images, ImagesT, Spec

if TYPE_CHECKING:
    from fozo.data.sets import ImageSet

BATCH = 64  # images of a batch, where they come one by one
BYTES = ("uint8", "torch.uint8")  # types of pixels that are still to be normalised
VIDEOS = (".mp4", ".avi", ".mov", ".mkv", ".webm", ".m4v", ".mpg", ".mpeg")
KEYS = ("pixel_values", "images", "image")  # where dictionaries of transformers and of datasets have images


def as_batch(images: object, spec: Spec, clean: InputRange | None = None) -> Images:
    """Turn what a user gives as a batch into float images; whether the model can read them, its engine checks.

    Where the mean and std of the model are unknown, pixels are normalised as the ``clean`` images were, where that is
    known; those of a black box are left in [0, 1] otherwise.
    """
    array: Any = images if isinstance(images, np.ndarray) else _as_array(unwrapped(images), spec)
    if np.ma.is_masked(array):
        raise FozoError("the images have masked pixels; fill them (images.filled(0)), or leave those images out")
    if str(array.dtype) in BYTES:
        return _from_pixels(array, _normalising(spec, clean))
    return cast("Images", array[None] if array.ndim == 3 else array)


def _normalising(spec: Spec, clean: InputRange | None = None) -> Spec:
    """The spec with the mean and std that pixels are normalised with, where anything tells them."""
    if spec.normalisation:
        return spec
    normalisation = clean and clean.inferred()
    if not normalisation and not spec.depth and (clean is None or (clean.low.min() >= 0 and clean.high.max() <= 1)):
        normalisation = common(spec.channels)[0]
    return replace(spec, mean=normalisation[0], std=normalisation[1]) if normalisation else spec


def to_type_of(images: ImagesT, array: Floats) -> ImagesT:
    """Convert ``array`` to the type of ``images``: a torch tensor on the same device, or NumPy."""
    if isinstance(images, np.ndarray):
        return cast("ImagesT", array)
    torch = sys.modules["torch"]
    tensor: ImagesT = torch.from_numpy(np.ascontiguousarray(array)).to(images.device)
    return tensor


def batches(source: object, spec: Spec) -> Iterator[Images]:
    from fozo.data.sets import ImageSet

    if isinstance(source, (str, os.PathLike)):
        source = open_clean(source, spec)
    axes = list(map(_axes, source)) if isinstance(source, (list, tuple)) else []
    if isinstance(source, Mapping) or (len(axes) > 1 and axes[0] == 4 and 4 not in axes[1:]):
        source = unwrapped(source)
    if is_array(source):
        if source.ndim < 4:
            raise FozoError(f"one array of shape {list(source.shape)} is not a set of images; give [N, C, H, W]")
        return (as_batch(source[start : start + BATCH], spec) for start in range(0, len(source), BATCH))
    if isinstance(source, ImageSet):
        return _read(source, spec)
    iterable = hasattr(source, "__iter__") or hasattr(source, "__getitem__")
    if isinstance(source, Mapping) or _axes(source) or not iterable:
        raise FozoError(
            f"cannot calibrate on {_describe(source)}; give a DataLoader, a folder of images, or an iterable of batches"
        )
    return _gathered(cast("Iterable[object]", source), spec)


def is_video(source: object) -> bool:
    return isinstance(source, (str, os.PathLike)) and Path(source).suffix.lower() in VIDEOS


def open_clean(path: str | os.PathLike[str], spec: Spec, *, labelled: bool = False) -> ImageSet | npt.NDArray[np.uint8]:
    """Open clean images: a folder with or without classes, an ``.npz`` of images, or a video.

    Folders of a folder are classes only if they are asked for.
    """
    from fozo.data.sets import open_images, open_unlabelled
    from fozo.data.videos import clean_frames

    if is_video(path):
        return clean_frames(Path(path), spec)
    if labelled or not Path(path).is_dir():
        try:
            return open_images(Path(path))
        except FozoError:
            if not Path(path).is_dir():
                raise
    return open_unlabelled(Path(path))


def as_pixels(images: object, spec: Spec) -> npt.NDArray[np.uint8]:
    """Turn a list or an array of pictures into ``uint8 [N, height, width, channels]`` at the model's size."""
    array = _as_array(unwrapped(images), spec)
    if str(array.dtype) not in BYTES:
        raise FozoError(f"{_describe(images)} has {array.dtype} where pixels are needed; give uint8 or PIL images")
    return sized_pixels(list(channels_last(_to_numpy(array), spec)), spec)


def _gathered(source: Iterable[object], spec: Spec) -> Iterator[Images]:
    single: list[object] = []
    for item in source:
        item = unwrapped(item)
        if _axes(item) != 3:
            yield as_batch(item, spec)
            continue
        single.append(item)
        if len(single) == BATCH:
            yield as_batch(single, spec)
            single = []
    if single:
        yield as_batch(single, spec)


def is_array(value: object) -> TypeGuard[Any]:
    """Whether it is an array of NumPy's, or a tensor of torch's where that is imported."""
    torch = sys.modules.get("torch")
    return isinstance(value, np.ndarray) or (torch is not None and isinstance(value, torch.Tensor))


def is_picture(value: object) -> bool:
    pillow = sys.modules.get("PIL.Image")
    return pillow is not None and isinstance(value, pillow.Image)


def _axes(value: object) -> int:
    """The number of axes of an array, 3 for a PIL image, 0 for what is neither."""
    return value.ndim if is_array(value) else 3 * is_picture(value)


def unwrapped(value: object) -> object:
    """Take the images out of dictionaries and of ``(images, labels)``.

    ==========================================  ======================================================================
    value                                       images
    ==========================================  ======================================================================
    ``{"pixel_values": x, ...}``, see KEYS      those of ``x``
    ``[{"image": x}, {"image": y}]``            ``[x, y]``
    ``[x]``, x of four axes                     ``x``
    ``(x, labels, ...)``, x of four axes        ``x``; refused where another item has four axes too: several batches
    ``(x, label, ...)``, x one image            ``x``, if no other item is a PIL image or an array of two axes or more
    all else: an array, a list of images        as it is
    ==========================================  ======================================================================
    """
    if isinstance(value, Mapping):
        keys = [key for key in KEYS if key in value]
        if not keys:
            names = ", ".join(map(repr, list(value)[:5])) or "nothing"
            raise FozoError(f"a batch has {names}, and no 'pixel_values' or 'images'; give its images alone")
        return unwrapped(value[keys[0]])
    if not isinstance(value, (list, tuple)) or not value:
        return value
    if isinstance(value[0], Mapping):
        return [unwrapped(item) for item in value]
    first, *rest = map(_axes, value)
    if first == 4 and 4 in rest:
        raise FozoError(f"a list of {len(value)} batches was given where one is read; give them one at a time")
    return value[0] if first == 4 or (first == 3 and rest and max(rest) < 2) else value


def _as_array(images: Any, spec: Spec) -> Any:  # noqa: ANN401 - NumPy's or torch's
    """Make one array or tensor of a PIL image or a sequence of images; an array is returned as it is."""
    if is_array(images):
        return images
    if is_picture(images):
        images = [images]
    if isinstance(images, (str, bytes, os.PathLike)) or not isinstance(images, Sequence):
        raise _refusal(images, spec)
    if not len(images):
        raise FozoError("the batch has no images; give at least one")
    if all(map(is_picture, images)):
        from fozo.data.images import picture_pixels

        return sized_pixels([picture_pixels(image, f"image {i} of the batch") for i, image in enumerate(images)], spec)
    if not any(map(is_array, images)):
        try:
            return np.asarray(images, dtype=np.float64)
        except (ValueError, TypeError) as error:
            raise _refusal(images, spec) from error
    if not all(is_array(image) and type(image) is type(images[0]) for image in images):
        raise _refusal(images, spec)
    library = np if isinstance(images[0], np.ndarray) else sys.modules["torch"]
    if all(str(image.dtype) in BYTES and image.ndim < 4 for image in images):
        pixels = [pixels for image in images for pixels in channels_last(_to_numpy(image), spec)]
        return library.asarray(sized_pixels(pixels, spec))
    for i, image in enumerate(images):
        if image.shape != images[0].shape:
            raise FozoError(
                f"the images of the batch differ in shape: image 0 has {list(images[0].shape)} and image {i} "
                f"{list(image.shape)}; resize all to {list(spec.image_shape)}"
            )
    return library.stack(tuple(images))


def _from_pixels(images: Any, spec: Spec) -> Images:  # noqa: ANN401 - NumPy's or torch's
    pixels = channels_last(_to_numpy(images), spec)
    if 0 in spec.image_size:  # a black box that has seen none yet reads any
        spec = replace(spec, image_size=pixels.shape[1:3])
    if pixels.shape[1:3] != spec.image_size:
        pixels = sized_pixels(list(pixels), spec)
    normalised = spec.normalise(pixels)
    if isinstance(images, np.ndarray):
        return normalised
    return cast("Images", sys.modules["torch"].from_numpy(normalised).to(images.device))


def channels_last(pixels: npt.NDArray[np.uint8], spec: Spec) -> npt.NDArray[np.uint8]:
    """Bring ``uint8`` images to ``[B, height, width, channels]``; gray ones need no axis for it."""
    channels = spec.channels
    shape = pixels.shape
    if channels == 1 and (len(shape) == 2 or shape[1:] == spec.image_size):
        pixels = pixels.reshape(-1, *shape[-2:], 1)  # [height, width], or [B, height, width] of the model's size
    elif len(shape) == 3:
        pixels = pixels[None]
    if pixels.ndim == 4 and pixels.shape[3] == channels:
        return pixels
    if pixels.ndim == 4 and pixels.shape[1] == channels:
        return np.moveaxis(pixels, 1, 3)
    hints = {1: ", or [height, width]: convert other images to gray", 3: ": convert other images to RGB"}
    raise FozoError(
        f"{spec.name} reads images of {channels} channel{'s' * (channels != 1)}, but the uint8 images have shape "
        f"{list(shape[-3:])}; give [height, width, {channels}]{hints.get(channels, '')}"
    )


def sized_pixels(images: Sequence[npt.NDArray[np.uint8]], spec: Spec) -> npt.NDArray[np.uint8]:
    from fozo.data.images import fit, luminance

    height, width = spec.image_size if 0 not in spec.image_size else images[0].shape[:2]
    if spec.channels not in (1, 3):
        if any(image.shape != (height, width, spec.channels) for image in images):
            unsized = f"{spec.name} has {spec.channels} channels, which cannot be resized"
            raise FozoError(f"{unsized}; give {height}x{width} px")
        return np.stack(images)
    fitted = []
    for image in images:
        colour = np.repeat(image, 3, axis=2) if image.shape[2] == 1 else image
        sized = fit(np.ascontiguousarray(colour), (height, width))
        fitted.append(sized if spec.channels == 3 else luminance(sized))
    return np.stack(fitted)


def _to_numpy(array: Any) -> Any:  # noqa: ANN401 - NumPy's or torch's
    return array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()


def _read(images: ImageSet, spec: Spec) -> Iterator[Images]:
    from fozo.data.sets.base import probe
    from fozo.data.streams import in_order

    if 0 in spec.image_size:  # a black box reads any size
        sizes = sorted(set(probe(images).values()))
        if len(sizes) != 1:
            several = ", ".join(f"{width}x{height}" for height, width in sizes[:3]) or "none"
            why = f"{spec.name} states no image size and the clean images have several ({several} px)"
            raise FozoError(f"{why}; give image_size=(height, width)")
        size = sizes[0]
        spec = replace(spec, image_size=size, patch_size=size)
        images = replace(images, size=size)
    if images.corrupted:
        raise FozoError(f"the {images.name} set holds corrupted images; calibrate on clean ones")
    for batch in in_order(images, _normalising(spec), batch_size=BATCH, leave_out=leave_out):
        if len(batch.samples):
            yield batch.images


def leave_out(error: FozoError) -> None:
    warnings.warn(f"{error}; it is left out", ImageWarning, stacklevel=2)


def _describe(value: object) -> str:
    kinds = {type(item).__name__ for item in value} if isinstance(value, (list, tuple)) else ()
    return f"a {type(value).__name__}" + (f" of {', '.join(sorted(kinds))}" if kinds else "")


def _refusal(images: object, spec: Spec) -> FozoError:
    shape = ", ".join(map(str, spec.image_shape))
    return FozoError(
        f"{_describe(images)} is not a batch of images for {spec.name}; give [B, {shape}], or a list of PIL images or "
        f"arrays of one shape, and open files first, for example with PIL.Image.open"
    )
