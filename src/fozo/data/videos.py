"""Frames of videos and cameras, read by OpenCV where it is installed."""

import importlib
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np

from fozo.data.images import Pixels
from fozo.data.inputs import sized_pixels
from fozo.errors import FozoError
from fozo.types import Spec

MISSING = "videos and cameras need OpenCV; install it with pip install 'fozo[video]'"
TIMEOUT = 10_000  # milliseconds for a camera with an address to be opened, and for each frame
CLEAN_FRAMES = 256  # at most, of a video to calibrate on: neighbours are all but the same


def opencv(missing: str = MISSING) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module("cv2")
    except ImportError as error:
        raise FozoError(missing) from error


def is_live(source: str) -> bool:
    """Whether this is a camera: its number, or an address such as ``rtsp://`` or ``http://``."""
    return source.isdecimal() or "://" in source


def shown(source: str) -> str:
    """The source as messages name it: without the password of an address."""
    scheme, separator, rest = source.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}" if separator else source


def video_frames(source: str) -> Generator[tuple[Pixels, float], None, None]:
    """Give RGB frames ``[height, width, 3]`` of a file, an address or the number of a camera, and when they were taken.

    That is in seconds since 1970 for a camera, and since the video began for a file.
    """
    cv2 = opencv()
    camera = is_live(source)
    what = f"camera {source}" if source.isdecimal() else shown(source)
    unreadable = f"OpenCV cannot read a frame of {what}; check that it is there and of a kind it knows"
    try:
        if "://" in source:
            patience = (cv2.CAP_PROP_OPEN_TIMEOUT_MSEC, TIMEOUT, cv2.CAP_PROP_READ_TIMEOUT_MSEC, TIMEOUT)
            video = cv2.VideoCapture(source, cv2.CAP_FFMPEG, patience)
        else:
            video = cv2.VideoCapture(int(source) if camera else source)
    except cv2.error as error:  # of a number that no camera has
        raise FozoError(unreadable) from error
    try:
        number = 0
        while True:
            read, picture = video.read()
            if not read or picture is None:
                break
            number += 1
            at = time.time() if camera else video.get(cv2.CAP_PROP_POS_MSEC) / 1000
            yield np.ascontiguousarray(picture[:, :, ::-1]), at  # OpenCV's blue comes first
        if not number:
            raise FozoError(unreadable)
    finally:
        video.release()


def frame_count(video: Path) -> int:
    """Read how many frames the file says that it has, which is not always true."""
    cv2 = opencv()
    return max(0, int(cv2.VideoCapture(str(video)).get(cv2.CAP_PROP_FRAME_COUNT)))


def clean_frames(video: Path, spec: Spec, until: float = float("inf")) -> Pixels:
    """Read clean frames of a video at the model's size, evenly spaced, of all of it or of its first seconds."""
    kept: list[Pixels] = []
    step = 1
    for number, (pixels, at) in enumerate(video_frames(str(video))):
        if at >= until:
            break
        if number % step == 0:
            kept.append(sized_pixels([pixels], spec)[0])
        if len(kept) > CLEAN_FRAMES:
            kept = kept[::2]
            step *= 2
    return np.stack(kept)
