"""What needs no model: pictures of a camera are restored before anything else sees them.

Each size of pictures has its own :class:`~fozo.methods.equalise.Equalise`: detail at each scale can be compared between
images of one size only. A constant border, a letterbox, does not count as picture: while an image is equalised the
mirrored picture takes its place, and then it is put back.
"""

import copy
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from fozo.core.descriptor import describe, haar_noise
from fozo.core.normalisation import InputRange
from fozo.core.statistics import Statistics
from fozo.data.images import picture_pixels
from fozo.data.inputs import is_array, is_picture, is_video, unwrapped
from fozo.data.sets import open_unlabelled
from fozo.data.videos import video_frames
from fozo.engines.blackbox import BlackBoxEngine, black_box
from fozo.errors import FozoError
from fozo.methods.equalise import Equalise
from fozo.methods.method import Saved
from fozo.state import State, check_owner, read_state, save
from fozo.types import Batch, Engine, Floats

Pictures = npt.NDArray[Any]
"""RGB ``[B, height, width, 3]``: ``uint8``, or floats in [0, 1]."""
MAX_SIZES = 8
MIN_PICTURE = 0.25  # part of a frame that its picture has; a border that leaves less is a dark or an empty picture


@dataclass(frozen=True)
class EqualiserState(State):
    """What was learnt of each size."""

    sizes: tuple[Saved, ...]


class Equaliser:
    """Restores what images lack against clean ones, and leaves clean images as they are: before any model.

    Examples:
        >>> front = fozo.Equaliser("camera/clean")
        >>> front(pixels[0]).shape  # a frame, in its own type; a batch, a PIL image or a tensor likewise
        (28, 28, 3)
        >>> front.save("camera.state")

    What comes back has the type, size and range of what was given, and is the very same object where nothing was
    lacking. It may stand among torchvision's transforms: labels and boxes behind the image are passed through. Copies
    and pickles have what was learnt; each worker of a ``DataLoader`` learns by itself.

    Args:
        clean: clean images: a folder, a video, or any iterable of images or batches, of at most eight sizes.
        channels: order of the colours in arrays: ``"bgr"`` as OpenCV has them. PIL images and tensors are always RGB.
        options: fields of :class:`fozo.methods.equalise.EqualiseConfig`, such as ``strength``.
    """

    def __init__(self, clean: object, *, channels: str = "rgb", **options: Any) -> None:  # noqa: ANN401 - as the fields are
        if channels not in ("bgr", "rgb"):
            raise FozoError(f"channels is {channels!r}; give 'bgr', as OpenCV has frames, or 'rgb'")
        self.channels = channels
        self.adapters: dict[tuple[int, int], Equalise] = {}
        """By (height, width): what can be frozen and watched by a monitor."""
        by_size: dict[tuple[int, int], Statistics] = {}
        for pictures in self._read(clean):
            for image in floats(pictures)[:, None]:
                size = image.shape[2:]
                engine = _engine(size)
                statistics = describe_images(engine, engine.check(image))
                by_size[size] = by_size[size].merge(statistics) if size in by_size else statistics
                if len(by_size) > MAX_SIZES:
                    raise FozoError(f"the clean images have more than {MAX_SIZES} sizes; resize them to a few first")
        few = [_name(size) for size, statistics in by_size.items() if statistics.images < 2]
        if few or not by_size:
            what = f"one clean image of {few[0]}" if few else "no clean image"
            raise FozoError(f"there is {what}; give at least two of each size, better a few dozen")
        for size, statistics in by_size.items():
            self.adapters[size] = Equalise(_engine(size), statistics, **options)

    def _read(self, clean: object) -> Iterator[Pictures]:
        if is_video(clean):
            yield from (pixels[None] for pixels, _ in video_frames(os.fspath(cast("str", clean))))
        elif isinstance(clean, (str, os.PathLike)):
            files = open_unlabelled(Path(clean))
            yield from (files.read(index)[None] for index in range(len(files)))
        else:
            yield from (self._pictures(unwrapped(item)) for item in cast("Iterable[object]", clean))

    def __repr__(self) -> str:
        return f"<Equaliser of images of {', '.join(map(_name, self.adapters))}>"

    def __call__(self, images: Any, *others: object) -> Any:  # noqa: ANN401 - as it is given
        """Adapt to images and return them restored, in the type in which they came.

        Args:
            images: ``uint8 [height, width, 3]`` or a stack of these, a PIL image, a tensor ``[3, height, width]`` or a
                stack of these in ``uint8`` or in [0, 1]; of a list, one after another, a list is returned.
            others: labels and boxes, which are returned as they are in a tuple behind the images.
        """
        if others:
            return (self(images), *others)
        if isinstance(images, (list, tuple)):
            return [self(image) for image in images]
        pictures = self._pictures(images)
        restored = self._restored(pictures)
        if restored is pictures:
            return images
        if is_picture(images):
            return Image.fromarray(restored[0])
        if isinstance(images, np.ndarray):
            return np.ascontiguousarray(self._ordered(restored)).reshape(images.shape)
        channels_first = np.ascontiguousarray(restored.transpose(0, 3, 1, 2)).reshape(images.shape)
        return sys.modules["torch"].from_numpy(channels_first).to(images).as_subclass(type(images))

    def _restored(self, pictures: Pictures) -> Pictures:
        """Adapt to pictures and return them restored; the very same array where nothing is done."""
        adapter = self.adapters.get(pictures.shape[1:3])
        if adapter is None:
            what = f"an image has {_name(pictures.shape[1:3])}, which no clean image of {self!r} has"
            raise FozoError(f"{what}; resize it, or calibrate on clean images of that size too")
        images = floats(pictures)
        (equalised,) = adapter(images)
        if equalised is images:
            return pictures
        restored = equalised.transpose(0, 2, 3, 1).clip(0, 1)
        if pictures.dtype == np.uint8:
            restored = np.rint(restored * 255)
        restored = restored.astype(pictures.dtype)
        for target, given in zip(restored, pictures, strict=True):
            border = np.ones(given.shape[:2], dtype=bool)
            border[picture(given)] = False
            target[border] = given[border]
        return cast("Pictures", restored)

    def _ordered(self, pixels: Pictures) -> Pictures:
        """From the order of an array's colours to RGB, or back."""
        return pixels[..., ::-1] if self.channels == "bgr" else pixels

    def _pictures(self, images: Any) -> Pictures:  # noqa: ANN401 - whatever a user gives
        if is_picture(images):
            return picture_pixels(images, "the image")[None]
        if is_array(images) and not isinstance(images, np.ndarray) and images.ndim in (3, 4) and images.shape[-3] == 3:
            tensor = images.detach().cpu()
            tensor = tensor.float() if tensor.is_floating_point() else tensor
            pixels: Pictures = tensor.movedim(-3, -1).numpy()
            if pixels.dtype in (np.uint8, np.float32):
                return pixels.reshape(-1, *pixels.shape[-3:])
        shape: tuple[int, ...] = getattr(images, "shape", ())
        dtype = getattr(images, "dtype", type(images).__name__)
        if not isinstance(images, np.ndarray) or dtype != np.uint8 or len(shape) not in (3, 4) or shape[-1] != 3:
            what = f"an image is a PIL image, uint8 [height, width, 3] or a tensor [3, height, width], not {dtype}"
            raise FozoError(f"{what} of shape {list(shape)}; convert it first")
        return self._ordered(images.reshape(-1, *shape[-3:]))

    def reset(self) -> None:
        """Forget the camera: behave as newly made."""
        for adapter in self.adapters.values():
            adapter.reset()

    def clone(self) -> "Equaliser":
        """Make a fresh one for another camera, in no time: what is known of clean images is shared."""
        twin = copy.copy(self)
        twin.adapters = {size: adapter.clone() for size, adapter in self.adapters.items()}
        return twin

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what was learnt of all sizes to one file, atomically."""
        snapshots = [adapter.snapshot() for adapter in self.adapters.values()]
        owner = {_name(size): owner for size, (_, owner) in zip(self.adapters, snapshots, strict=True)}
        save(path, EqualiserState(tuple(saved for saved, _ in snapshots)), owner)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from what was saved. What does not fit is refused, and nothing is changed."""
        name = os.fspath(path)
        owner, values = read_state(path)
        check_owner(name, {"sizes": ", ".join(owner)}, {"sizes": ", ".join(map(_name, self.adapters))})
        for front in (self.clone(), self):  # nothing is changed before all has been read once
            for index, (size, adapter) in enumerate(front.adapters.items()):
                prefix = f"sizes.{index}."
                of_size = {key.removeprefix(prefix): leaf for key, leaf in values.items() if key.startswith(prefix)}
                adapter.resume(name, owner[_name(size)], of_size)


class FrameAdapter:
    """Adapts to frames and returns what the detector returns for them. :func:`fozo.adapter` makes one.

    The detector is a function of a frame, or of a stack where it is given stacks.
    """

    def __init__(self, front: Equaliser, detector: Callable[[Any], Any]) -> None:
        self.front = front
        self.detector = detector

    def __repr__(self) -> str:
        return f"<FrameAdapter behind {self.front!r}>"

    def __call__(self, frames: Any) -> Any:  # noqa: ANN401 - the detector decides what it returns
        """Adapt to a frame, or a stack; of a list, one after another, a list is returned."""
        if isinstance(frames, (list, tuple)):
            return [self(frame) for frame in frames]
        return self.detector(self.front(frames))

    def reset(self) -> None:
        self.front.reset()


def describe_images(engine: Engine, batch: Batch) -> Statistics:
    """Statistics of images alone, for a model that shows nothing of its inside."""
    spec = engine.spec
    inputs = InputRange.of(batch.images, spec.normalisation)
    noise = float(haar_noise(batch.images).mean())
    return Statistics.of_images(spec.fingerprint, spec.name, describe(batch.images), inputs, noise)


def _engine(size: tuple[int, int]) -> BlackBoxEngine:
    return black_box(_as_given, name="pictures", image_size=size, mean=0.0, std=1.0)


def _as_given(images: Floats) -> tuple[Floats]:
    """In place of a model. In a tuple, images are not mistaken for logits."""
    return (images,)


def _name(size: tuple[int, ...]) -> str:
    return f"{size[1]}x{size[0]} px"


def floats(pictures: Pictures) -> Floats:
    """Pictures as floats in [0, 1], ``[B, 3, height, width]``, without letterboxes."""
    images: Floats = np.empty((len(pictures), 3, *pictures.shape[1:3]), dtype=np.float32)
    for pixels, image in zip(pictures, images, strict=True):
        where = picture(pixels)
        around = [(span.start, side - span.stop) for span, side in zip(where, pixels.shape[:2], strict=True)]
        filled = np.pad(pixels[where], (*around, (0, 0)), mode="symmetric") if np.any(around) else pixels
        image[...] = filled.transpose(2, 0, 1)
    if pictures.dtype == np.uint8:
        images /= 255
    return images


def picture(pixels: Pictures) -> tuple[slice, slice]:
    """Rows and columns of the picture in ``[height, width, 3]``: all but a border of one colour."""
    for colour in (pixels[0, 0], pixels[-1, -1]):
        if any((edge == colour).all() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])):
            inside = (pixels != colour).any(axis=2)
            rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
            if len(rows) and np.ptp(rows) * np.ptp(columns) >= MIN_PICTURE * inside.size:
                return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
    return slice(0, pixels.shape[0]), slice(0, pixels.shape[1])
