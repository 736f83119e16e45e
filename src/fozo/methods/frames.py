"""Frames before a detector: ``uint8`` pictures as OpenCV gives them, of several sizes, equalised and handed on as such.

Each size of frames has its own :class:`~fozo.methods.equalise.Equalise`: detail at each scale can be compared between
images of one size only. A constant border, a letterbox, does not count as picture: while a frame is equalised the
mirrored picture takes its place, and then it is put back.
"""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fozo.engines.blackbox import BlackBoxEngine, black_box
from fozo.errors import FozoError
from fozo.methods.equalise import Equalise
from fozo.types import Floats, ForkSafeLock

Frames = npt.NDArray[np.uint8]
MAX_SIZES = 8
MIN_PICTURE = 0.25  # part of a frame that its picture has; a border that leaves less is a dark or an empty picture


class FrameAdapter:
    """Adapts to frames and returns what the detector returns for them, unchanged. :func:`fozo.adapter` makes one.

    The detector is a function of a frame ``uint8 [height, width, 3]``, or of a stack where it is given stacks. A
    ``name`` identifies saved states: give another one when the model behind the function changes.
    """

    def __init__(self, detector: Callable[[Any], Any], channels: str, name: str | None = None) -> None:
        if channels not in ("bgr", "rgb"):
            raise FozoError(f"channels is {channels!r}; give 'bgr', as OpenCV has frames, or 'rgb'")
        self.detector = detector
        self.channels = channels
        self.name = name
        self.adapters: dict[tuple[int, int], Equalise] = {}
        """By (height, width): what can be saved, restored, frozen and watched by a monitor."""
        self._lock = ForkSafeLock()
        self._given: tuple[Frames, Floats, bool] | None = None  # of the call under way: frames, images, one frame alone

    def __repr__(self) -> str:
        sizes = ", ".join(f"{width}x{height}" for height, width in self.adapters)
        return f"<FrameAdapter of {self.channels} frames of {sizes} px>"

    def engine(self, size: tuple[int, int]) -> BlackBoxEngine:
        return black_box(self._detect, name=self.name, image_size=size, mean=0.0, std=1.0)

    def ordered(self, pixels: Frames) -> Frames:
        """From the order of a frame's colours to RGB, or back."""
        return pixels[..., ::-1] if self.channels == "bgr" else pixels

    def images(self, frames: Frames) -> Floats:
        """Frames ``[B, height, width, 3]`` as RGB floats in [0, 1], ``[B, 3, height, width]``, without letterboxes."""
        images: Floats = np.empty((len(frames), 3, *frames.shape[1:3]), dtype=np.float32)
        for frame, image in zip(frames, images, strict=True):
            where = picture(frame)
            around = [(part.start, side - part.stop) for part, side in zip(where, frame.shape[:2], strict=True)]
            filled = np.pad(frame[where], (*around, (0, 0)), mode="symmetric") if np.any(around) else frame
            image[...] = self.ordered(filled).transpose(2, 0, 1)
        images /= 255
        return images

    def __call__(self, frames: Any) -> Any:  # noqa: ANN401 - the detector decides what it returns
        """Adapt to a frame, or a stack ``[B, height, width, 3]``; of a list, one after another, a list is returned."""
        if isinstance(frames, (list, tuple)):
            return [self(frame) for frame in frames]
        stack = as_stack(frames)
        if (adapter := self.adapters.get(stack.shape[1:3])) is None:
            what = f"a frame has {stack.shape[2]}x{stack.shape[1]} px, which no clean frame of {self!r} has"
            raise FozoError(f"{what}; resize it, or calibrate on clean frames of that size too")
        with self._lock:
            images = self.images(stack)
            self._given = stack, images, frames.ndim == 3
            try:
                return adapter(images)[0]
            finally:
                self._given = None

    def reset(self) -> None:
        for adapter in self.adapters.values():
            adapter.reset()

    def _detect(self, images: Floats) -> tuple[Any]:
        """Call the detector with frames again; in a tuple, one box is not mistaken for the logits of one image."""
        frames, before, single = self._given or (None, None, False)  # a monitor that calibrates has images alone
        if frames is None or images is not before:  # else nothing was changed: the very frames go on
            pixels = np.rint(images.transpose(0, 2, 3, 1) * 255).clip(0, 255).astype(np.uint8)
            changed = np.ascontiguousarray(self.ordered(pixels))
            for target, frame in zip(changed, changed if frames is None else frames, strict=True):
                border = np.ones(frame.shape[:2], dtype=bool)
                border[picture(frame)] = False
                target[border] = frame[border]
            frames = changed
        return (self.detector(frames[0] if single else frames),)


def as_stack(frames: object) -> Frames:
    shape: tuple[int, ...] = getattr(frames, "shape", ())
    dtype = getattr(frames, "dtype", type(frames).__name__)
    if dtype != np.uint8 or len(shape) not in (3, 4) or shape[-1] != 3:
        raise FozoError(f"a frame is uint8 [height, width, 3], not {dtype} of shape {list(shape)}; convert it first")
    return cast("Frames", frames).reshape(-1, *shape[-3:])


def picture(frame: Frames) -> tuple[slice, slice]:
    """Rows and columns of the picture in a frame ``[height, width, 3]``: all but a border of one colour."""
    for colour in (frame[0, 0], frame[-1, -1]):
        if any((edge == colour).all() for edge in (frame[0], frame[-1], frame[:, 0], frame[:, -1])):
            inside = (frame != colour).any(axis=2)
            rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
            if len(rows) and np.ptp(rows) * np.ptp(columns) >= MIN_PICTURE * inside.size:
                return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
    return slice(0, frame.shape[0]), slice(0, frame.shape[1])
