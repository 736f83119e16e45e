"""Camera faults: a frozen picture, a covered or black one, an over-exposed one, a camera that was turned away.

Each is read from pixels alone, without a model or calibration, and counts once it has lasted a few frames. The last
needs the constant scene of a fixed camera: in a stream of unrelated images it is never reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fozo.types import Array, Floats

GRID = 16
"""Most rows and columns of the thumbnails by which scenes are compared."""
SAME = 0.02 / 255
"""Mean difference of two frames below which they are the same frame: a sensor's noise alone is more."""
BLACK = 0.05
"""Mean brightness, as a fraction of full scale, below which a picture is black."""
FLAT = 0.02
"""Standard deviation of brightness, as a fraction of full scale, below which a lens is covered."""
BURNT = 0.5
"""Fraction of white pixels above which a picture is over-exposed."""
SAME_SCENE, OTHER_SCENE = 0.8, 0.3
"""Correlation of thumbnails above which two frames show one scene, and below which they show two."""
SETTLE = 16
"""Frames of one scene before it counts as the scene of a fixed camera."""
SENTENCES = {
    "frozen": "the picture is frozen: the same frame comes again and again",
    "black": "the picture is black: lens covered, no light or no signal",
    "covered": "the picture has no contrast at all: lens covered or fogged",
    "over-exposed": "the picture is over-exposed: most of it is white",
    "turned": "the whole scene changed at once: camera turned, moved or blocked",
}
LASTING = {"frozen": 8, "black": 3, "covered": 3, "over-exposed": 3, "turned": 4}
"""Frames in a row until a fault counts."""


@dataclass(frozen=True)
class FaultChange:
    """A fault that begins, or ends."""

    name: str
    began: bool
    image: int
    """With which image of the stream, the first being 1."""


class FaultDetector:
    """Finds faults in frames that come in order."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seen = 0
        self.faults: dict[str, int] = {}
        """Faults that last, and the image that each began with."""
        self._lasted = dict.fromkeys(LASTING, 0)
        self._previous: Floats | None = None
        self._scene: Array | None = None
        self._settled = 0

    def update(self, pixels: Floats) -> list[FaultChange]:
        """Update by frames ``[B, channels, height, width]`` in [0, 1]; return the faults that began or ended."""
        changes = []
        for frame in pixels:
            self.seen += 1
            present = self._present(frame)
            for name, needed in LASTING.items():
                if name not in present:
                    self._lasted[name] = 0
                    if self.faults.pop(name, None) is not None:
                        changes.append(FaultChange(name, False, self.seen))
                    continue
                self._lasted[name] += 1
                if self._lasted[name] == needed:
                    self.faults[name] = self.seen - needed + 1
                    changes.append(FaultChange(name, True, self.faults[name]))
        return changes

    def _present(self, frame: Floats) -> set[str]:
        """Faults that one frame shows."""
        found = set()
        gray = frame.mean(axis=0)
        mean, deviation = float(gray.mean()), float(gray.std())
        if mean < BLACK and deviation < BLACK:
            found.add("black")
        elif deviation < FLAT:
            found.add("covered")
        if float((gray >= 0.98).mean()) > BURNT:
            found.add("over-exposed")
        if self._previous is not None and float(np.abs(gray - self._previous).mean()) < SAME:
            found.add("frozen")
        self._previous = gray
        if self._turned(_thumbnail(gray)):
            found.add("turned")
        return found

    def _turned(self, thumbnail: Array) -> bool:
        """Whether a settled scene is gone; before one has settled, each new scene takes its place."""
        if self._scene is None:
            self._scene = thumbnail
            return False
        correlation = float((thumbnail * self._scene).mean())
        if correlation > SAME_SCENE:
            self._settled += 1
            self._scene = _standardised(0.95 * self._scene + 0.05 * thumbnail)  # the sun moves
        elif self._settled < SETTLE:
            self._scene, self._settled = thumbnail, 0
        else:
            return correlation < OTHER_SCENE
        return False

    def state(self) -> tuple[dict[str, object], dict[str, Array]]:
        """Counts as JSON; the last frame and the scene as arrays, where there are any."""
        counts: dict[str, object] = {"seen": self.seen, "faults": dict(self.faults), "lasted": dict(self._lasted)}
        pictures = {"previous": self._previous, "scene": self._scene}
        return counts | {"settled": self._settled}, {k: np.asarray(v) for k, v in pictures.items() if v is not None}

    def load_state(self, counts: Mapping[str, Any], pictures: Mapping[str, Array]) -> None:
        """Continue from what :meth:`state` returned; raises a ``ValueError`` or the like if damaged."""
        if not counts["faults"].keys() <= LASTING.keys() == counts["lasted"].keys():
            raise ValueError("it names other faults than there are")
        self.seen, self._settled = int(counts["seen"]), int(counts["settled"])
        self.faults = {str(name): int(image) for name, image in counts["faults"].items()}
        self._lasted = {name: int(counts["lasted"][name]) for name in LASTING}
        previous, self._scene = pictures.get("previous"), pictures.get("scene")
        self._previous = None if previous is None else previous.astype(np.float32)


def _thumbnail(gray: Floats) -> Array:
    """Means over a grid, standardised."""
    rows, columns = (_borders(side) for side in gray.shape)
    sums = np.add.reduceat(np.add.reduceat(gray, rows, axis=0), columns, axis=1)
    sizes = np.outer(np.diff(rows, append=gray.shape[0]), np.diff(columns, append=gray.shape[1]))
    return _standardised(np.asarray(sums / sizes, dtype=np.float64))


def _borders(side: int) -> npt.NDArray[np.int64]:
    """First pixel of each block of a side."""
    return np.arange(0, side, max(1, -(-side // GRID)))


def thumbnail_shape(size: tuple[int, int]) -> tuple[int, int]:
    """Shape of the thumbnail of an image."""
    return len(_borders(size[0])), len(_borders(size[1]))


def _standardised(values: Array) -> Array:
    centred = values - values.mean()
    return np.asarray(centred / max(float(centred.std()), 1e-3))
