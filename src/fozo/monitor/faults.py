"""Camera faults, read from the pixels of frames that come in order."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fozo.monitor.events import Event
from fozo.state import State, ragged
from fozo.types import Floats

SAME_FRAME = 0.02 / 255  # mean difference below which two frames are one: a sensor's noise alone is more
BLACK = 0.05  # mean brightness, as a fraction of full scale, below which a picture is black
FLAT = 0.02  # standard deviation of brightness, as a fraction of full scale, below which a lens is covered
WHITE = 0.98  # brightness, as a fraction of full scale, from which a pixel is white
BURNT = 0.5  # fraction of white pixels above which a picture is over-exposed
SENTENCES = {
    "black": "the picture is black: lens covered, no light or no signal",
    "covered": "the picture has no contrast at all: lens covered or fogged",
    "over-exposed": "the picture is over-exposed: most of it is white",
    "frozen": "the picture is frozen: the same frame comes again and again",
    "turned": "the whole scene changed at once: camera turned, moved or blocked",
    "dirty": "a part of the picture has lost its detail: dirt or drops on the lens",
}
LASTING = {"black": 3, "covered": 3, "over-exposed": 3, "frozen": 8, "turned": 1, "dirty": 1}
"""Frames until a fault counts; the last two have lasted when they are noticed."""
BLINDING = frozenset(SENTENCES) - {"turned", "dirty"}  # no accuracy is expected of such pictures
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
    frames: int = 0

    def __post_init__(self) -> None:
        if len(self.previous) > 1 or not 0 <= self.began.min() <= self.began.max() <= self.frames:
            raise ValueError("it has faults of frames that were never seen")

    @property
    def faults(self) -> tuple[str, ...]:
        return tuple(name for name, began in zip(LASTING, self.began, strict=True) if began)


class FaultDetector:
    """Finds faults in frames that come in order: frozen, covered, black or over-exposed.

    Each is read from pixels alone, without a model or calibration, and counts once it has lasted a few frames. A camera
    that was turned away and a dirty lens need a past to compare with: :class:`fozo.monitor.scene.SceneDetector`.
    """

    def __init__(self, image_size: tuple[int, int]) -> None:
        self.image_size = image_size

    def init(self) -> FaultState:
        none = np.zeros(len(LASTING), dtype=np.int64)
        return FaultState(none, none, np.zeros((0, *self.image_size), dtype=np.float32))

    def look(self, state: FaultState, frame: Floats) -> tuple[FaultState, set[str]]:
        """Return the faults that a frame ``[channels, height, width]`` in [0, 1] shows, and remember it."""
        gray = frame.mean(axis=0)
        mean = float(gray.mean())
        deviation = float(gray.std())
        is_black = mean < BLACK and deviation < BLACK
        shows = {
            "black": is_black,
            "covered": deviation < FLAT and not is_black,
            "over-exposed": float((gray >= WHITE).mean()) > BURNT,
            "frozen": len(state.previous) > 0 and float(np.abs(gray - state.previous[0]).mean()) < SAME_FRAME,
        }
        state = replace(state, frames=state.frames + 1, previous=gray[None])
        return state, {name for name, is_shown in shows.items() if is_shown}

    def count(self, state: FaultState, shown: set[str], time: float) -> tuple[FaultState, list[Event]]:
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
