"""Camera faults: a frozen picture, a covered or black one, an over-exposed one, a camera that was turned away.

Each is read from pixels alone, without a model and without calibration, and counts once it has lasted a few frames. The
last needs what only a fixed camera gives, a scene that stays: in a stream of unrelated images it is never seen, because
there is no scene to lose.
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
"""Mean difference of two frames below which they are the same frame: a sensor's noise alone makes more."""
BLACK = 0.05
"""Mean brightness, as a part of full scale, below which there is no picture."""
FLAT = 0.02
"""Standard deviation of brightness, as a part of full scale, below which a lens is covered."""
BURNT = 0.5
"""Part of the pixels that are white where a picture is over-exposed."""
ALIKE, UNLIKE = 0.8, 0.3
"""Correlation of thumbnails above which two frames show one scene, and below which they do not."""
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
    """Looks at frames in order."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all frames."""
        self.seen = 0
        self.faults: dict[str, int] = {}
        """Faults that last, and the image that each began with."""
        self._lasted = dict.fromkeys(LASTING, 0)
        self._previous: Floats | None = None
        self._scene: Array | None = None
        self._settled = 0

    def update(self, pixels: Floats) -> list[FaultChange]:
        """Look at frames ``[B, channels, height, width]`` of pixels in [0, 1]; say which faults began or ended."""
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
        """Say whether a settled scene is gone; a new one that stays becomes the scene."""
        if self._scene is None:
            self._scene = thumbnail
            return False
        correlation = float((thumbnail * self._scene).mean())
        settled = self._settled >= SETTLE
        if correlation > ALIKE:
            self._settled += 1
            self._scene = _standardised(0.95 * self._scene + 0.05 * thumbnail)  # the sun moves
            return False
        if not settled:  # no scene yet: begin again with this frame
            self._scene, self._settled = thumbnail, 0
            return False
        return correlation < UNLIKE

    def state(self) -> tuple[dict[str, object], dict[str, Array]]:
        """What is to be kept of the frames: counts, and the last frame and the scene where there are any."""
        counts: dict[str, object] = {"seen": self.seen, "faults": dict(self.faults), "lasted": dict(self._lasted)}
        pictures = {"previous": self._previous, "scene": self._scene}
        return counts | {"settled": self._settled}, {k: np.asarray(v) for k, v in pictures.items() if v is not None}

    def load_state(self, counts: Mapping[str, Any], pictures: Mapping[str, Array]) -> None:
        """Go on from what :meth:`state` gave."""
        if not counts["faults"].keys() <= LASTING.keys() == counts["lasted"].keys():
            raise ValueError("it names other faults than there are")
        self.seen, self._settled = int(counts["seen"]), int(counts["settled"])
        self.faults = {str(name): int(image) for name, image in counts["faults"].items()}
        self._lasted = {name: int(counts["lasted"][name]) for name in LASTING}
        previous, self._scene = pictures.get("previous"), pictures.get("scene")
        self._previous = None if previous is None else previous.astype(np.float32)

    def accept(self) -> None:
        """Take what the camera shows now as its scene."""
        self._scene, self._settled = None, 0


def _thumbnail(gray: Floats) -> Array:
    """Means over a grid, with mean 0 and deviation 1; what is flat becomes nothing."""
    rows, columns = (_borders(side) for side in gray.shape)
    sums = np.add.reduceat(np.add.reduceat(gray, rows, axis=0), columns, axis=1)
    sizes = np.outer(np.diff(rows, append=gray.shape[0]), np.diff(columns, append=gray.shape[1]))
    return _standardised(np.asarray(sums / sizes, dtype=np.float64))


def _borders(side: int) -> npt.NDArray[np.int64]:
    """Where the blocks begin that a side of so many pixels is cut into."""
    return np.arange(0, side, max(1, -(-side // GRID)))


def thumbnail_shape(size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of the thumbnail of an image of a size."""
    return len(_borders(size[0])), len(_borders(size[1]))


def _standardised(values: Array) -> Array:
    centred = values - values.mean()
    return np.asarray(centred / max(float(centred.std()), 1e-3))
