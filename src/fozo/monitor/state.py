"""What a monitor remembers of its stream: events, camera faults, the detectors, and features of recent images."""

from __future__ import annotations

import base64
import copy
import io
import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from fozo.io import as_dataclass, parse_json
from fozo.methods.common.stateful import read_attributes, write_attributes
from fozo.monitor.drift import DriftDetector
from fozo.types import Array, Floats, State

SIDE = 160  # pixels of the longer side of a thumbnail, at most
QUALITY = 75
MAX_CHARACTERS = 64 << 10  # of a thumbnail: small enough for a line of JSON
GRID = 16  # most rows and columns of the thumbnails by which scenes are compared
SAME = 0.02 / 255  # mean difference of two frames below which they are the same frame: a sensor's noise alone is more
BLACK = 0.05  # mean brightness, as a fraction of full scale, below which a picture is black
FLAT = 0.02  # standard deviation of brightness, as a fraction of full scale, below which a lens is covered
BURNT = 0.5  # fraction of white pixels above which a picture is over-exposed
SAME_SCENE, OTHER_SCENE = 0.8, 0.3
"""Correlation of thumbnails above which two frames show one scene, and below which they show two."""
SETTLE = 16  # frames of one scene before it counts as the scene of a fixed camera
SENTENCES = {
    "black": "the picture is black: lens covered, no light or no signal",
    "covered": "the picture has no contrast at all: lens covered or fogged",
    "over-exposed": "the picture is over-exposed: most of it is white",
    "frozen": "the picture is frozen: the same frame comes again and again",
    "turned": "the whole scene changed at once: camera turned, moved or blocked",
}
LASTING = {"black": 3, "covered": 3, "over-exposed": 3, "frozen": 8, "turned": 4}  # frames until a fault counts
EVENTS = 200  # most recent events that are remembered


@dataclass(frozen=True)
class Event:
    """Something that an operator should know."""

    name: str  # `drift`, `drift changed`, `guard`, a camera fault; with ` over` where it has ended
    image: int  # number of the image it began with, the first of the stream being 1
    time: float  # when it was noticed, in seconds since 1970
    text: str
    metrics: Mapping[str, float] = field(default_factory=dict)  # what `metrics` returned then
    thumbnails: Mapping[str, str] = field(default_factory=dict)
    """If enabled, small JPEGs in base64: ``camera``, and ``equalised`` where the model read another image."""


def thumbnail(pixels: Floats) -> str:
    """Make a JPEG in base64 of pixels ``[1 or 3, height, width]`` in [0, 1]."""
    levels = (255 * np.clip(np.nan_to_num(pixels), 0, 1) + 0.5).astype(np.uint8)
    picture = Image.fromarray(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0))
    picture.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=QUALITY)
    return base64.b64encode(stream.getvalue()).decode()


def check_thumbnail(text: object) -> str:
    """Raise a ``ValueError`` for anything but a JPEG in base64."""
    if isinstance(text, str) and len(text) <= MAX_CHARACTERS:
        with suppress(ValueError):
            if base64.b64decode(text, validate=True).startswith(b"\xff\xd8\xff"):
                return text
    raise ValueError("a thumbnail is not a JPEG in base64")


class FaultDetector:
    """Finds faults in frames that come in order: frozen, covered, black or over-exposed, or a camera turned away.

    Each is read from pixels alone, without a model or calibration, and counts once it has lasted a few frames. The last
    needs the constant scene of a fixed camera: in a stream of unrelated images it is never reported.
    """

    STATE = ("frames", "lasted", "began", "previous", "scene", "settled")

    def __init__(self, image_size: tuple[int, int]) -> None:
        self.frames = 0
        self.lasted = np.zeros(len(LASTING), dtype=np.int64)  # frames in a row that show each fault
        self.began = np.zeros(len(LASTING), dtype=np.int64)  # image that each fault began with; 0 where there is none
        self.previous: Floats = np.zeros((0, *image_size), dtype=np.float32)  # the last frame in gray, if there was one
        # First row and column of each block of the grid, and how many pixels a block has.
        self._rows, self._columns = (np.arange(0, side, max(1, -(-side // GRID))) for side in image_size)
        height, width = image_size
        self._sizes = np.outer(np.diff(self._rows, append=height), np.diff(self._columns, append=width))
        self.scene: Array = np.zeros((0, *self._sizes.shape))
        self.settled = 0

    def state(self) -> State:
        return read_attributes(self, self.STATE, ())

    def load_state(self, state: State) -> None:
        write_attributes(self, self.STATE, (), state)

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(name for name, began in zip(LASTING, self.began, strict=True) if began)

    def update(self, pixels: Floats, time: float = 0.0) -> list[Event]:
        """Update by frames ``[B, channels, height, width]`` in [0, 1]; return the faults that began or ended."""
        events, lasted, began = [], self.lasted.copy(), self.began.copy()
        for frame in pixels:
            self.frames += 1
            present = self._present(frame)
            for i, (name, needed) in enumerate(LASTING.items()):
                lasted[i] = lasted[i] + 1 if name in present else 0
                if lasted[i] == needed:
                    began[i] = self.frames - needed + 1
                    events.append(Event(name, int(began[i]), time, SENTENCES[name]))
                elif began[i] and not lasted[i]:
                    began[i] = 0
                    events.append(Event(f"{name} over", self.frames, time, f"no longer: {SENTENCES[name]}"))
        self.lasted, self.began = lasted, began
        return events

    def _present(self, frame: Floats) -> set[str]:
        found = set()
        gray = frame.mean(axis=0)
        mean, deviation = float(gray.mean()), float(gray.std())
        if mean < BLACK and deviation < BLACK:
            found.add("black")
        elif deviation < FLAT:
            found.add("covered")
        if float((gray >= 0.98).mean()) > BURNT:
            found.add("over-exposed")
        if len(self.previous) and float(np.abs(gray - self.previous[0]).mean()) < SAME:
            found.add("frozen")
        self.previous = gray[None]
        sums = np.add.reduceat(np.add.reduceat(gray, self._rows, axis=0), self._columns, axis=1)
        if self._turned(_standardised(np.asarray(sums / self._sizes, dtype=np.float64))):
            found.add("turned")
        return found

    def _turned(self, thumbnail: Array) -> bool:
        """Whether a settled scene is gone; before one has settled, each new scene takes its place."""
        correlation = float((thumbnail * self.scene[0]).mean()) if len(self.scene) else 0.0
        if correlation > SAME_SCENE:
            self.settled += 1
            self.scene = _standardised(0.95 * self.scene[0] + 0.05 * thumbnail)[None]  # the sun moves
        elif self.settled < SETTLE:
            self.scene, self.settled = thumbnail[None], 0
        else:
            return correlation < OTHER_SCENE
        return False


def _standardised(values: Array) -> Array:
    centred = values - values.mean()
    return np.asarray(centred / max(float(centred.std()), 1e-3))


@dataclass(frozen=True)
class Log:
    """The part of a state that is text."""

    reported: tuple[str, ...] | None
    events: tuple[Event, ...]


class StreamState:
    """The detectors of one stream, and features of its most recent images."""

    STATE = ("detector", "images", "guarding", "features", "predictions", "log", "faults", "due", "pairs")
    VARIABLE_LENGTH: ClassVar = {
        "features": "recent", "predictions": "recent", "rows": "window", "times": "window", "since": "since",
        "pairs": "pairs", "previous": "previous", "scene": "scene", "log": "log",
    }  # fmt: skip

    def __init__(self, detector: DriftDetector, faults: FaultDetector) -> None:
        self.detector, self.faults = detector, faults
        self.images, self.guarding = 0, False
        self.features: Array = np.zeros((0, detector.clean.width))
        self.predictions: Array = np.zeros((0, 3))
        self.due = 0.0  # fraction of the next image that the plain model is due to predict too
        self.pairs: Array = np.zeros((0, 7))  # of its predictions and the adapted ones
        self.reported: tuple[str, ...] | None = None  # corruptions that the present drift was reported as
        self.events: deque[Event] = deque(maxlen=EVENTS)

    def copy(self) -> StreamState:
        """A copy that later images do not change: arrays are replaced, and never written into."""
        made = copy.copy(self)
        made.detector, made.faults, made.events = copy.copy(self.detector), copy.copy(self.faults), self.events.copy()
        return made

    def state(self) -> State:
        return read_attributes(self, self.STATE, ())

    def load_state(self, state: State) -> None:
        write_attributes(self, self.STATE, (), state)

    @property
    def log(self) -> npt.NDArray[np.uint8]:
        events = tuple(replace(event, thumbnails={}) for event in self.events)
        return np.frombuffer(json.dumps(asdict(Log(self.reported, events))).encode(), np.uint8)

    @log.setter
    def log(self, text: npt.NDArray[np.uint8]) -> None:
        log = as_dataclass(Log, parse_json(text.tobytes()), "the log of the monitor's state")
        self.reported = log.reported
        self.events.extend(log.events)
