"""Frames before a detector: ``uint8`` pictures as OpenCV gives them, of several sizes, equalised and handed on as such.

    adapter = fozo.adapter(detect, clean_frames, channels="bgr")
    boxes = adapter(frame)  # what detect(frame) returns, on a better frame

Each size of frames has its own :class:`~fozo.methods.equalise.Equalise`: drift is detected by the detail at each
scale, which can be compared between images of one size only. A constant border, a letterbox, does not count as
picture: while a frame is described and equalised the mirrored picture takes its place, and then it is put back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fozo.engines.blackbox import BlackBoxEngine, black_box
from fozo.errors import FozoError
from fozo.methods.equalise import Equalise
from fozo.types import Floats

Frames = npt.NDArray[np.uint8]
Size = tuple[int, int]
ORDERS = ("bgr", "rgb")
MAX_SIZES = 8
MIN_PICTURE = 0.25  # part of a frame that its picture has; a border that leaves less is a dark or an empty picture


@dataclass(frozen=True)
class _Found:
    """What the detector returned: in here one box is not mistaken for the logits of one image."""

    value: Any


class FrameAdapter:
    """Adapts to frames and returns what the detector returns for them, unchanged. :func:`fozo.adapter` makes one.

    Args:
        detector: function of a frame ``uint8 [height, width, 3]``, or of a stack of them where it is given stacks.
        channels: ``"bgr"`` or ``"rgb"``, the order of a frame's colours.
        name: identifies saved states; give another one when the model behind the function changes.
    """

    def __init__(self, detector: Callable[[Any], Any], channels: str = "bgr", name: str | None = None) -> None:
        if channels not in ORDERS:
            raise FozoError(f"channels is {channels!r}; give 'bgr', as OpenCV has frames, or 'rgb'")
        self.detector, self.channels, self.name = detector, channels, name
        self.adapters: dict[Size, Equalise] = {}
        """By (height, width): what can be saved, restored, frozen and watched by a monitor."""
        self._lock = threading.RLock()
        self._frames, self._images, self._single = np.zeros((0, 0, 0, 3), np.uint8), np.zeros(0, np.float32), False

    def __repr__(self) -> str:
        return f"<FrameAdapter of {self.channels.upper()} frames of {self._sizes()} px>"

    def engine(self, size: Size) -> BlackBoxEngine:
        """The detector as an engine for frames of one size."""
        return black_box(self._detect, name=self.name, image_size=size, mean=0.0, std=1.0)

    def images(self, frames: Frames) -> Floats:
        """Frames ``[B, height, width, 3]`` as RGB floats in [0, 1], ``[B, 3, height, width]``, without letterboxes."""
        filled = frames
        for i, frame in enumerate(frames):
            rows, columns = picture(frame)
            if frame[rows, columns].shape != frame.shape:
                filled = np.array(frames) if filled is frames else filled
                around = [
                    (each.start, side - each.stop) for each, side in ((rows, frame.shape[0]), (columns, frame.shape[1]))
                ]
                filled[i] = np.pad(frame[rows, columns], (*around, (0, 0)), mode="symmetric")
        planes = self.ordered(filled).transpose(0, 3, 1, 2)
        images: Floats = np.ascontiguousarray(planes, dtype=np.float32)
        images /= 255
        return images

    def __call__(self, frames: Any) -> Any:  # noqa: ANN401 - the detector decides what it returns
        """Adapt to a frame, or a stack ``[B, height, width, 3]``; of a list, one after another, a list is returned."""
        if isinstance(frames, (list, tuple)):
            return [self(frame) for frame in frames]
        stack = checked(frames)
        adapter = self.adapters.get(stack.shape[1:3])
        if adapter is None:
            height, width = stack.shape[1:3]
            raise FozoError(
                f"a frame has {width}x{height} px, but the clean frames have {self._sizes()} px; resize it, or "
                f"calibrate on clean frames of that size too"
            )
        with self._lock:
            self._frames, self._images, self._single = stack, self.images(stack), frames.ndim == 3
            return adapter(self._images).value

    def reset(self) -> None:
        """Forget everything adapted, for all sizes."""
        for adapter in self.adapters.values():
            adapter.reset()

    def _detect(self, images: Floats) -> _Found:
        """Turn what was equalised back into frames, letterboxes included, and call the detector."""
        frames = self._frames
        if images is not self._images:  # else nothing was changed: the very frames go on
            pixels = np.rint(images.transpose(0, 2, 3, 1) * 255).clip(0, 255).astype(np.uint8)
            changed, frames = self.ordered(pixels), np.array(frames, order="C")
            for target, source in zip(frames, changed, strict=True):
                where = picture(target)
                target[where] = source[where]
        return _Found(self.detector(frames[0] if self._single else frames))

    def ordered(self, pixels: Frames) -> Frames:
        """From the order of frames to RGB, or back."""
        return pixels[..., ::-1] if self.channels == "bgr" else pixels

    def _sizes(self) -> str:
        return ", ".join(f"{width}x{height}" for height, width in self.adapters) or "no"


def checked(frames: object) -> Frames:
    """A frame or a stack of frames as a stack; anything else is refused."""
    if (
        not isinstance(frames, np.ndarray)
        or frames.dtype != np.uint8
        or frames.ndim not in (3, 4)
        or frames.shape[-1] != 3
    ):
        shape = f" {frames.dtype} of shape {list(frames.shape)}" if isinstance(frames, np.ndarray) else ""
        raise FozoError(f"a frame is uint8 [height, width, 3], not a {type(frames).__name__}{shape}; convert it first")
    return frames if frames.ndim == 4 else frames[None]


def picture(frame: Frames) -> tuple[slice, slice]:
    """Rows and columns of the picture in a frame ``[height, width, 3]``: all but a border of one colour."""
    everything = slice(0, frame.shape[0]), slice(0, frame.shape[1])
    for colour in (frame[0, 0], frame[-1, -1]):
        edges = frame[0], frame[-1], frame[:, 0], frame[:, -1]
        if not any((edge == colour).all() for edge in edges):
            continue
        inside = (frame != colour).any(axis=2)
        rows, columns = (np.flatnonzero(inside.any(axis=axis)) for axis in (1, 0))
        if len(rows):
            found = slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)
            area = (found[0].stop - found[0].start) * (found[1].stop - found[1].start)
            if area >= MIN_PICTURE * inside.size:
                return found
    return everything
