"""Camera faults, read from the pixels of frames that come in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fozo.monitor.events import Event
from fozo.state import State, ragged
from fozo.types import Array, Floats

GRID = 16  # most rows and columns of the thumbnails by which scenes are compared
SAME_FRAME = 0.02 / 255  # mean difference below which two frames are one: a sensor's noise alone is more
BLACK = 0.05  # mean brightness, as a fraction of full scale, below which a picture is black
FLAT = 0.02  # standard deviation of brightness, as a fraction of full scale, below which a lens is covered
WHITE = 0.98  # brightness, as a fraction of full scale, from which a pixel is white
BURNT = 0.5  # fraction of white pixels above which a picture is over-exposed
SAME_SCENE = 0.8  # correlation of thumbnails above which two frames show one scene
OTHER_SCENE = 0.3  # correlation below which they show two
SETTLE = 16  # frames of one scene before it counts as the scene of a fixed camera
SCENE_RATE = 0.05  # weight of a new frame in the scene's thumbnail: the sun moves
MIN_CONTRAST = 1e-3  # least standard deviation that a thumbnail is divided by
SENTENCES = {
    "black": "the picture is black: lens covered, no light or no signal",
    "covered": "the picture has no contrast at all: lens covered or fogged",
    "over-exposed": "the picture is over-exposed: most of it is white",
    "frozen": "the picture is frozen: the same frame comes again and again",
    "turned": "the whole scene changed at once: camera turned, moved or blocked",
}
LASTING = {"black": 3, "covered": 3, "over-exposed": 3, "frozen": 8, "turned": 4}  # frames until a fault counts
BLINDING = frozenset(SENTENCES) - {"turned"}  # no accuracy is expected of such pictures
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FaultState(State):
    """What is remembered of the frames of a camera."""

    lasted: Counts
    """Frames in a row that show each fault."""
    began: Counts
    """Number of the image that each fault began with; 0 where there is none."""
    previous: Floats = ragged("previous")
    """The last frame in gray, if there was one."""
    scene: Array = ragged("scene")
    """Thumbnail of the scene, if there was a frame."""
    settled: int = 0
    """Frames for which the scene has stayed."""
    frames: int = 0

    def __post_init__(self) -> None:
        if max(len(self.previous), len(self.scene)) > 1 or not 0 <= self.began.min() <= self.began.max() <= self.frames:
            raise ValueError("it has faults of frames that were never seen")

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(name for name, began in zip(LASTING, self.began, strict=True) if began)


class FaultDetector:
    """Finds faults in frames that come in order: frozen, covered, black or over-exposed, or a camera turned away.

    Each is read from pixels alone, without a model or calibration, and counts once it has lasted a few frames. The last
    needs the constant scene of a fixed camera: in a stream of unrelated images it is never reported.
    """

    def __init__(self, image_size: tuple[int, int]) -> None:
        self.image_size = image_size
        height, width = image_size
        # First row and column of each block of the grid, and how many pixels a block has.
        self._rows = np.arange(0, height, max(1, -(-height // GRID)))
        self._columns = np.arange(0, width, max(1, -(-width // GRID)))
        self._sizes = np.outer(np.diff(self._rows, append=height), np.diff(self._columns, append=width))

    def init(self) -> FaultState:
        none = np.zeros(len(LASTING), dtype=np.int64)
        previous = np.zeros((0, *self.image_size), dtype=np.float32)
        return FaultState(none, none, previous, np.zeros((0, *self._sizes.shape)))

    def update(self, state: FaultState, pixels: Floats, time: float = 0.0) -> tuple[FaultState, list[Event]]:
        """Look at frames ``[B, channels, height, width]`` in [0, 1]; return the faults that began or ended, too."""
        events: list[Event] = []
        for frame in pixels:
            state, new_events = self._count(*self._look(state, frame), time)
            events += new_events
        return state, events

    def _look(self, state: FaultState, frame: Floats) -> tuple[FaultState, set[str]]:
        """Return the faults that a frame shows, and remember it."""
        gray = frame.mean(axis=0)
        mean = float(gray.mean())
        deviation = float(gray.std())
        is_black = mean < BLACK and deviation < BLACK
        state, is_turned = self._with_scene(state, gray)
        shows = {
            "black": is_black,
            "covered": deviation < FLAT and not is_black,
            "over-exposed": float((gray >= WHITE).mean()) > BURNT,
            "frozen": len(state.previous) > 0 and float(np.abs(gray - state.previous[0]).mean()) < SAME_FRAME,
            "turned": is_turned,
        }
        state = replace(state, frames=state.frames + 1, previous=gray[None])
        return state, {name for name, is_shown in shows.items() if is_shown}

    def _count(self, state: FaultState, shown: set[str], time: float) -> tuple[FaultState, list[Event]]:
        """Note which faults have lasted long enough, and which are over."""
        lasted = np.zeros_like(state.lasted)
        began = state.began.copy()
        events = []
        for index, (name, needed) in enumerate(LASTING.items()):
            if name in shown:
                lasted[index] = state.lasted[index] + 1
            if lasted[index] == needed:
                began[index] = state.frames - needed + 1
                events.append(Event(name, int(began[index]), time, SENTENCES[name]))
            elif began[index] and not lasted[index]:
                began[index] = 0
                events.append(Event(f"{name} over", state.frames, time, f"no longer: {SENTENCES[name]}"))
        return replace(state, lasted=lasted, began=began), events

    def _with_scene(self, state: FaultState, gray: Floats) -> tuple[FaultState, bool]:
        """Whether a settled scene is gone; before one has settled, each new scene takes its place."""
        sums = np.add.reduceat(np.add.reduceat(gray, self._rows, axis=0), self._columns, axis=1)
        thumbnail = _standardised(np.asarray(sums / self._sizes, dtype=np.float64))
        correlation = float((thumbnail * state.scene[0]).mean()) if len(state.scene) else 0.0
        if correlation > SAME_SCENE:
            scene = _standardised((1 - SCENE_RATE) * state.scene[0] + SCENE_RATE * thumbnail)
            return replace(state, scene=scene[None], settled=state.settled + 1), False
        if state.settled < SETTLE:
            return replace(state, scene=thumbnail[None], settled=0), False
        return state, correlation < OTHER_SCENE


def _standardised(values: Array) -> Array:
    centred = values - values.mean()
    return np.asarray(centred / max(float(centred.std()), MIN_CONTRAST))
