"""Scenes: what a camera that stands still, or comes back to the same views, shows differently from its own clean past.

A frame is summed up in *cells*, a grid of :data:`GRID` with brightness, detail, contrast and colour of each cell. Their
means over clean frames of one scene are a *view*. Against its view, a frame has

- a **change**, the median over cells: weather, light, focus and compression change all cells, a passer-by few;
- **dirt**, the cells whose detail stays far below that change;
- a **likeness**, the correlation of brightness over cells: a camera that was moved has no view that is like its frame.

Frames of one scene are not independent. So what is tested is a median over the last frames, against the variance that
*the same median* had in the clean past (batch means: that is the autocorrelation at all lags). Where the past is too
short for that, the frames of a window count as one image. Changes below :data:`LEAST` are never significant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.ndimage import uniform_filter
from scipy.special import fdtrc, fdtri

from fozo.monitor.drift import NO_DRIFT, UNKNOWN_TIME, Drift
from fozo.monitor.quality import GAMMA, LUMA, MIN_CHANGES
from fozo.state import State, ragged
from fozo.types import Array, Floats

GRID = (12, 16)  # rows and columns of cells, at most
CELL = 8  # pixels of a cell's side, at least
FEWEST_CELLS = 36  # of a picture, without which scenes cannot be told apart
DARK = 1e-3  # linear light that is added before the logarithm: in the dark, noise is not a change of light
LEVEL = 1 / 255
CHANNELS = ("brightness", "contrast", "finest detail", "warmth", "green")
BRIGHTNESS = 0
DETAIL = 2
WINDOW = 16  # frames whose median is tested
FEWEST = 8  # frames before anything is tested
KEPT = 64  # frames in which the beginning of a change is looked for
LEAST_PATTERN = 1e-2  # luma: of a picture without shapes, noise is no pattern
UNRELATED = 2.0  # median difference of unrelated scenes, in units of their median deviations
SAME = 0.75  # likeness above which two frames show one scene
ALIKE = 0.5  # likeness above which a changed frame is still compared with its view
SETTLED = 12  # frames of one scene before it is a view
AVERAGE = 64  # frames before dirt is looked for where content moves
PAST = 1000  # frames of a view that are learnt from
VIEWS = 64  # views that are kept, at most
FIXED = 0.7  # fraction of frames that are like a view above which a camera is one that stands still
COVERED = 0.5  # fraction of clean frames that views have to show, or there are none
STANDING = 48  # frames that were like a view before a camera can have been moved
YOUNG = 32  # frames in which a camera finds its own first views
PRIOR = 4.0  # windows that the variance of single frames counts for, before that of windows is known
DEGREES = 16.0  # degrees of freedom of a variance that is not known but bounded
QUIET = 0.5  # ratio of distance to threshold below which a frame is learnt from, and a drift is over
USUAL = 6.0  # mean squared deviation of a frame above which it is not learnt from, unless all is clean
LOCAL_RATE = 1 / 24  # weight of a new frame in the mean local change
LOCAL_LIMIT = 0.4  # change of log detail at which a cell is clipped: what passes by is gone before it counts
BURNT = -0.3  # stops of a cell below white, from which its detail is lost to the light
LOCAL_LEAST = 0.05  # least standard deviation of a cell's mean log detail
DIRTY = 4.0  # standard deviations below its clean mean from which a cell is dirty
DIRTY_CELLS = 0.03  # fraction of dirty cells from which the lens is
CLEANED_CELLS = 0.01
HOURS = 24
DAY = 20  # hours of a day that a past has to cover before frames are compared with views of the same hour
LEAST = 0.6  # of the least change that is reported: so small a standard deviation is believed of no channel

Cells = npt.NDArray[np.float32]


@lru_cache(maxsize=8)
def _edges(length: int, most: int) -> tuple[npt.NDArray[np.intp], Array]:
    """First pixel of each cell along a side, and how many it has."""
    count = int(np.clip(length // CELL, 1, most))
    starts = np.arange(count) * length // count
    return starts, np.diff(starts, append=length).astype(np.float64)


def grid(height: int, width: int) -> tuple[int, int]:
    return len(_edges(height, GRID[0])[0]), len(_edges(width, GRID[1])[0])


def measure(frame: Floats) -> Cells:
    """Measure the cells of pixels ``[1 or 3, height, width]`` in [0, 1]: ``[channels, rows, columns]``."""
    rows, heights = _edges(frame.shape[1], GRID[0])
    columns, widths = _edges(frame.shape[2], GRID[1])
    sizes = np.outer(heights, widths)

    def mean(values: Floats) -> Array:
        return np.asarray(np.add.reduceat(np.add.reduceat(values, rows, axis=0), columns, axis=1) / sizes)

    is_colour = len(frame) == 3
    luma = np.tensordot(LUMA.astype(np.float32), frame, axes=1) if is_colour else frame.mean(axis=0)
    level = mean(luma)
    variance = np.maximum(mean(luma * luma) - level**2, 0)
    steps = np.zeros_like(luma)
    steps[:, 1:] = np.abs(np.diff(luma, axis=1))
    steps[1:] += np.abs(np.diff(luma, axis=0))
    detail = np.log(mean(steps) + LEVEL)
    contrast = np.log(np.sqrt(variance) + LEVEL)
    brightness = np.log2(np.maximum(level, 0) ** GAMMA + DARK)
    cells = [brightness, contrast, detail]
    if is_colour:
        red, green, blue = map(mean, frame)
        cells += [red - blue, green - (red + blue) / 2]
    return np.stack(cells).astype(np.float32)


@dataclass(frozen=True)
class Views(State):
    """Views of clean frames; the first row is the average of all frames, whatever they show."""

    cells: Cells = ragged("views")
    """Mean cells, ``[views, channels, rows, columns]``."""
    features: Array = ragged("views")
    """Mean features of the frames, as the monitor measures them."""
    count: Array = ragged("views")
    """Frames that these are the means of."""
    frames: Array = ragged("views")
    """Sum of squared changes of single frames, ``[views, channels]``."""
    windows: Array = ragged("views")
    """Sum of squared changes of windows."""
    windowed: Array = ragged("views")
    """Frames at which windows were looked at."""
    local: Array = ragged("views")
    """Sum of squared local changes of single frames, ``[views, rows, columns]``."""
    hours: Array = ragged("views")
    """Frames by hour of the day, ``[views, 24]``."""

    def __post_init__(self) -> None:
        count, channels, rows, columns = self.cells.shape
        shapes = {
            "features": (count, *self.features.shape[1:2]), "count": (count,), "frames": (count, channels),
            "windows": (count, channels), "windowed": (count,), "local": (count, rows, columns),
            "hours": (count, HOURS),
        }  # fmt: skip
        if any(getattr(self, name).shape != shape for name, shape in shapes.items()):
            raise ValueError("its views are of different shapes")

    @classmethod
    def empty(cls, channels: int, height: int, width: int, features: int) -> Views:
        """No views of images of a size."""
        channels = len(CHANNELS) if channels == len(CHANNELS) - 2 else len(CHANNELS) - 2
        rows, columns = grid(height, width)
        none = np.zeros((0, channels))
        cells = np.zeros((0, channels, rows, columns), np.float32)
        local = np.zeros((0, rows, columns))
        return cls(cells, np.zeros((0, features)), np.zeros(0), none, none, np.zeros(0), local, np.zeros((0, HOURS)))

    def __len__(self) -> int:
        return len(self.count)

    def __getitem__(self, some: slice | npt.NDArray[np.intp]) -> Views:
        return Views(**{name: values[some] for name, values in vars(self).items()})

    def __add__(self, other: Views) -> Views:
        return Views(**{name: np.concatenate([values, vars(other)[name]]) for name, values in vars(self).items()})

    @classmethod
    def first(cls, cells: Cells, features: Array) -> Views:
        """One view of nothing yet, with the place of these."""
        none = np.zeros((1, len(cells)))
        local = np.zeros((1, *cells.shape[1:]))
        hours = np.zeros((1, HOURS))
        return Views(cells[None].copy(), features[None].copy(), np.zeros(1), none, none, np.zeros(1), local, hours)

    def learn(self, row: int, cells: Cells, features: Array, change: Array, local: Array, hour: int | None) -> Views:
        """Take a clean frame into a view."""
        values = {name: array.copy() for name, array in vars(self).items()}
        values["count"][row] += 1
        weight = 1 / values["count"][row]
        values["cells"][row] += np.float32(weight) * (cells - values["cells"][row])
        values["features"][row] += weight * (features - values["features"][row])
        values["frames"][row] += change**2
        values["local"][row] += local**2
        if hour is not None:
            values["hours"][row, hour] += 1
        return Views(**values)

    def compare(self, cells: Cells) -> tuple[Array, Array]:
        """Likeness of a frame to each view, and its change against each: ``[views]``, ``[views, channels]``."""
        changes = np.median((cells - self.cells).reshape(*self.cells.shape[:2], -1), axis=2)
        if self.cells[0, 0].size < FEWEST_CELLS:
            return np.full(len(self), -1.0), np.asarray(changes)
        differences = np.median(np.abs(_patterns(self.cells) - _patterns(cells[None])), axis=1)
        return np.asarray(1 - differences / UNRELATED), np.asarray(changes)

    def variance(self, row: int) -> Array:
        """Variance of the median of a window; of too few windows, that of single frames."""
        least = least_changes(self.cells.shape[1]) ** 2
        frames = (self.frames[row] + 4 * PRIOR * least) / (self.count[row] + PRIOR)  # of few frames, at least that
        blocks = self.windowed[row] / WINDOW
        windows = self.windows[row] / max(self.windowed[row], 1)
        return np.asarray((PRIOR * frames + blocks * windows) / (PRIOR + blocks) + least)

    def degrees(self, row: int) -> float:
        return float(DEGREES + self.count[row] / WINDOW)

    @property
    def has_a_day(self) -> bool:
        return int((self.hours.sum(axis=0) > 0).sum()) >= DAY


def least_changes(channels: int) -> Array:
    return LEAST * np.array([MIN_CHANGES[name] for name in CHANNELS[:channels]])


def _patterns(cells: Cells) -> Array:
    """How much brighter cells are than those around, ``[views, cells]``, in units of the median size of that.

    Neither weather nor a lorry changes this much; another scene does, and the same one moved by a cell.
    """
    luma = np.exp2(cells[:, BRIGHTNESS].astype(np.float64) / GAMMA)
    sharp = (luma - uniform_filter(luma, (0, 3, 3))).reshape(len(cells), -1)
    typical = np.median(np.abs(sharp), axis=1, keepdims=True)
    return np.asarray(sharp / np.maximum(typical, LEAST_PATTERN))


@dataclass(frozen=True)
class Scene(State):
    """What is remembered of a camera's scenes."""

    past: Views
    """Views of its own clean past."""
    present: Views
    """The scene of the latest frames, a view that is not known to be clean; no row before the first frame."""
    local: Array
    """Mean local change of log detail, ``[rows, columns]``."""
    local_squares: Array
    """Sum of its squares in the clean past."""
    changes: Array = ragged("kept")
    """Changes of the latest frames."""
    numbers: Array = ragged("kept")
    """Numbers of these frames."""
    times: Array = ragged("kept")
    row: int = 0
    """The view that the latest frame was compared with."""
    settled: int = 0
    """Frames that the present scene has stayed for."""
    strange: int = 0
    """Frames in a row that are like no view."""
    strangest: int = 0
    """The most of these in a row in the clean past."""
    matched: int = 0
    """Frames that were like a view, clean or not."""
    seen: int = 0
    """Frames that were looked at, but those of a camera that was moved."""
    began: float = UNKNOWN_TIME
    """When the first frame was seen."""
    moved: float = UNKNOWN_TIME
    """When the camera was first seen to have moved."""
    dirty: bool = False
    suspected: bool = False
    """Whether it may be dirt: then nothing is learnt."""
    clean_frames: int = 0
    """Frames in a row that look clean, where there is drift."""
    drift: Drift = NO_DRIFT

    def __post_init__(self) -> None:
        if self.row >= max(len(self.past), 1) or len(self.present) > 1:
            raise ValueError("it has a view that was never seen")

    def forgotten(self) -> Scene:
        """Without the changes of the latest frames."""
        return replace(self, changes=self.changes[:0], numbers=self.numbers[:0], times=self.times[:0])

    @property
    def where(self) -> str:
        """Where the lens is dirty, in words."""
        rows, columns = np.nonzero(self.local < self.local.min() / 2)
        height, width = self.local.shape
        down = ("upper", "middle", "lower")[int(3 * rows.mean() // height)]
        across = ("left", "centre", "right")[int(3 * columns.mean() // width)]
        return f"{down} {across}"

    @property
    def turned(self) -> bool:
        return self.moved != UNKNOWN_TIME

    @property
    def fixed(self) -> bool:
        """Whether the camera stands still, or comes back to the same views."""
        return self.row > 0 and self.matched >= FIXED * self.seen


class SceneDetector:
    """Compares frames with the views of a camera's own clean past, or of the reference's."""

    def __init__(self, reference: Views, rate: float, learn: float = 0.0, new_view: float = 3600.0) -> None:
        self.reference = reference
        self.rate = rate
        self.learn = learn
        self.new_view = new_view

    def init(self) -> Scene:
        none = self.reference[:0]
        channels, rows, columns = none.cells.shape[1:]
        local = np.zeros((rows, columns))
        return Scene(none, none, local, local, np.zeros((0, channels)), np.zeros(0), np.zeros(0))

    def update(self, scene: Scene, cells: Cells, features: Array, number: int, time: float, *, trusted: bool) -> Scene:
        """Look at the cells and features of a frame; ``trusted`` is whether nothing else speaks against it."""
        if scene.began == UNKNOWN_TIME:
            scene = replace(scene, began=time)
        hour = None if time == UNKNOWN_TIME else int(time // 3600) % HOURS
        learning = 0 <= time - scene.began < self.learn
        scene = self._with_present(scene, cells, features)
        scene, change, is_strange = self._with_view(scene, cells, hour, learning, trusted)
        scene = self._with_turn(scene, is_strange, learning, time)
        if is_strange and scene.fixed:
            return scene if scene.turned else replace(scene, seen=scene.seen + 1)
        row = 0 if is_strange else scene.row
        scene = replace(scene, seen=scene.seen + 1, matched=scene.matched + (row > 0))
        if not len(scene.past):
            scene = replace(scene, past=Views.first(cells, features))
        average = scene.past.compare(cells)[1][0]
        change = average if is_strange else change
        local = cells[DETAIL] - scene.past.cells[row, DETAIL] - change[DETAIL]
        clipped = np.clip(local, -LOCAL_LIMIT, LOCAL_LIMIT) * (cells[BRIGHTNESS] < BURNT)
        if (row == 0) != (scene.row == 0):  # its changes were against something else
            scene = scene.forgotten()
        scene = replace(
            scene,
            row=row,
            changes=np.concatenate([scene.changes, change[None]])[-KEPT:],
            numbers=np.append(scene.numbers, number)[-KEPT:],
            times=np.append(scene.times, time)[-KEPT:],
            local=(1 - LOCAL_RATE) * scene.local + LOCAL_RATE * clipped,
        )
        if not learning:
            scene = self._with_dirt(self._with_drift(scene, row), row)
        is_well = not (scene.drift.drift_detected or scene.dirty or scene.suspected)
        is_quiet = is_well and scene.drift.ratio < QUIET
        if learning or ((row or trusted) and is_quiet and self._is_usual(scene.past, row, change, clipped)):
            scene = self._learnt(scene, row, cells, features, change, average, clipped, hour)
        return scene

    def _is_usual(self, past: Views, row: int, change: Array, local: Array) -> bool:
        """Whether a frame looks clean by itself: the latest frames together take a while to show that it does not."""
        if not row:
            return True
        deviations = np.sqrt(past.local[row] / max(past.count[row], 1))
        lost = (local < -LOCAL_LIMIT / 2 - deviations).mean()
        return bool((change**2 / past.variance(row)).mean() < USUAL and lost <= DIRTY_CELLS)

    def recognises(self, scene: Scene, cells: Cells) -> bool:
        """Whether a frame is like any view, however dark it is."""
        views = scene.past + self.reference
        return len(views) > 0 and bool(views.compare(cells)[0].max() >= SAME)

    def accept(self, scene: Scene) -> Scene:
        """Take what is seen now for clean, and forget nothing else."""
        view = scene.present
        if scene.row and not scene.turned and len(scene.changes):  # the same scene in another light
            window = np.median(scene.changes[-WINDOW:], axis=0).astype(np.float32)
            known = scene.past[scene.row : scene.row + 1]
            view = replace(known, cells=known.cells + window[:, None, None], features=view.features)
        past = scene.past[: VIEWS - 1] + view
        row = len(past) - 1
        return replace(
            scene.forgotten(), past=past, row=row, strange=0, moved=UNKNOWN_TIME, dirty=False, suspected=False,
            clean_frames=0, local=0 * scene.local,
        )  # fmt: skip

    def _with_present(self, scene: Scene, cells: Cells, features: Array) -> Scene:
        """Follow the scene of the latest frames; begin again with another one."""
        present = scene.present
        if not len(present) or present.compare(cells)[0][0] < SAME:
            return replace(scene, present=Views.first(cells, features), settled=1)
        zero = np.zeros(cells.shape[0])
        learnt = present.learn(0, cells, features, zero, np.zeros(cells.shape[1:]), None)
        return replace(scene, present=learnt, settled=scene.settled + 1)

    def _with_view(
        self, scene: Scene, cells: Cells, hour: int | None, learning: bool, trusted: bool
    ) -> tuple[Scene, Array, bool]:
        """Find the view that a frame is to be compared with: its own, or one of the reference, or a new one."""
        row, change = self._nearest(scene.past, cells, hour)
        known, known_change = self._nearest(self.reference, cells, hour)
        size = _size(change)
        is_new = learning and size > 1.0
        if known and len(scene.past) < VIEWS and (not row or _size(known_change) < size - 1.0):
            past = scene.past if len(scene.past) else Views.first(cells, self.reference.features[0])
            past = past + self.reference[known : known + 1]
            return replace(scene, past=past, row=len(past) - 1), known_change, False
        if row and not is_new:
            return replace(scene, row=row), change, False
        may_add = learning or (trusted and scene.seen < YOUNG)
        if may_add and scene.settled >= SETTLED and 0 < len(scene.past) < VIEWS:
            past = scene.past + scene.present
            return replace(scene, past=past, row=len(past) - 1), 0 * change, False
        return scene, change, not row

    def _nearest(self, views: Views, cells: Cells, hour: int | None) -> tuple[int, Array]:
        """The view that is most like a frame, and the frame's change; row 0 for none."""
        if len(views) < 2:
            return 0, np.zeros(len(cells))
        likeness, changes = views.compare(cells)
        likeness[0] = -1
        best = likeness.max()
        sizes = np.array([_size(change) for change in changes])
        sizes[(likeness < max(ALIKE, best - 0.1))] = np.inf
        if hour is not None and views.has_a_day:
            near = views.hours[:, [hour - 1, hour, (hour + 1) % HOURS]].sum(axis=1) > 0
            if np.isfinite(sizes[near]).any():
                sizes[~near] = np.inf
        row = int(sizes.argmin())
        return (row, changes[row]) if best >= ALIKE else (0, changes[0])

    def _with_turn(self, scene: Scene, is_strange: bool, learning: bool, time: float) -> Scene:
        """Whether a camera that stands still shows another scene, which stays."""
        if not is_strange:
            return replace(scene, strange=0, moved=UNKNOWN_TIME)
        scene = replace(scene, strange=scene.strange + 1)
        if learning:
            return replace(scene, strangest=max(scene.strange, scene.strangest))
        if scene.turned:
            return self.accept(scene) if time - scene.moved >= self.new_view else scene
        stands = scene.fixed and scene.matched >= STANDING
        is_other = stands and scene.settled >= SETTLED and scene.strange > scene.strangest
        return replace(scene, moved=max(time, 0.0)) if is_other else scene

    def _with_drift(self, scene: Scene, row: int) -> Scene:
        past = scene.past
        if not row or len(scene.changes) < FEWEST:
            return scene
        deviation = np.sqrt(past.variance(row))
        window = np.median(scene.changes[-WINDOW:], axis=0) / deviation
        channels = len(window)
        degrees = past.degrees(row)
        scale = channels * degrees / (degrees - channels + 1)
        distance = float(window @ window)
        threshold = float(scale * fdtri(channels, degrees - channels + 1, 1 - self.rate))
        p_value = float(fdtrc(channels, degrees - channels + 1, distance / scale))
        before = scene.drift
        drift = Drift(distance > threshold, distance > QUIET * threshold, distance, threshold, p_value)
        if before.drift_detected:
            calm = scene.clean_frames + 1 if distance < QUIET * threshold else 0
            if calm >= FEWEST:
                return replace(scene, drift=replace(drift, drift_detected=False), clean_frames=0)
            lasting = replace(drift, drift_detected=True, warning_detected=True)
            lasting = replace(lasting, since=before.since, since_time=before.since_time)
            return replace(scene, drift=lasting, clean_frames=calm)
        if drift.drift_detected:
            start = beginning(scene.changes / deviation, window)
            when = float(scene.times[start])
            drift = replace(drift, since=int(scene.numbers[start]), since_time=None if when < 0 else when)
        return replace(scene, drift=drift)

    def _with_dirt(self, scene: Scene, row: int) -> Scene:
        """Whether some cells have lost their detail, and the rest has not."""
        past = scene.past
        blocks = past.windowed[0] / WINDOW
        frames = past.local[row] / max(past.count[row], 1)
        windows = scene.local_squares / max(past.windowed[0], 1)
        variance = (PRIOR * frames + blocks * windows) / (PRIOR + blocks)
        common = float(np.median(scene.changes[-WINDOW:, DETAIL]))  # what changes all cells changes each differently
        deviations = scene.local / np.sqrt(variance + LOCAL_LEAST**2 + common**2)
        is_known = past.count[row] >= (WINDOW if row else AVERAGE)
        needed = CLEANED_CELLS if scene.dirty else DIRTY_CELLS
        is_new = not scene.dirty
        if not is_known:
            return scene
        if is_new and scene.drift.warning_detected:  # which may explain it
            return replace(scene, local=0 * scene.local)
        suspected = bool((deviations < -DIRTY / 2).mean() > DIRTY_CELLS)
        return replace(scene, dirty=bool((deviations < -DIRTY).mean() > needed), suspected=suspected)

    def _learnt(
        self, scene: Scene, row: int, cells: Cells, features: Array, change: Array, average: Array, local: Array,
        hour: int | None,
    ) -> Scene:  # fmt: skip
        past = scene.past
        rows = {0: average, row: change}
        for index, value in rows.items():
            if past.count[index] < PAST:
                past = past.learn(index, cells, features, value, local, hour)
        squares = scene.local_squares
        if len(scene.changes) >= WINDOW and past.windowed[0] < PAST:
            window = np.median(scene.changes[-WINDOW:], axis=0)
            windows = past.windows.copy()
            windowed = past.windowed.copy()
            for index in rows:
                windows[index] += window**2
                windowed[index] += 1
            past = replace(past, windows=windows, windowed=windowed)
            squares = squares + scene.local**2
        return replace(scene, past=past, local_squares=squares)


def _size(change: Array) -> float:
    """Length of a change, in units of 5 of the least changes."""
    return float(np.square(change / least_changes(len(change))).sum()) / 25


def beginning(rows: Array, window: Array) -> int:
    """First of the rows ``[n, channels]`` that are nearer to the mean ``window`` than to 0, by their sum from there."""
    gains = rows @ window - window @ window / 2
    return int(np.cumsum(gains[::-1])[::-1].argmax())


def views_of(frames: Iterable[Floats], features: Array) -> Views:
    """Views of clean frames ``[channels, height, width]`` in any order: scenes that several of them show."""
    views: Views | None = None
    for frame, row_features in zip(frames, features, strict=True):
        cells = measure(frame)
        if views is None:
            views = Views.first(cells, row_features)
        average = views.compare(cells)[1][0]
        views = views.learn(0, cells, row_features, average, 0 * views.local[0], None)
        likeness, changes = views.compare(cells)
        likeness[0] = -1
        sizes = np.array([_size(change) for change in changes])
        sizes[likeness < SAME] = np.inf
        row = int(sizes.argmin())
        if sizes[row] > 1.0:
            views = views + Views.first(cells, row_features)
            row = len(views) - 1
            changes = np.concatenate([changes, 0 * changes[:1]])
        local = cells[DETAIL] - views.cells[row, DETAIL] - changes[row, DETAIL]
        views = views.learn(row, cells, row_features, changes[row], np.clip(local, -LOCAL_LIMIT, LOCAL_LIMIT), None)
    if views is None:
        return Views.empty(3, CELL, CELL, features.shape[1])
    # Scenes that several frames show; the lights of one scene are several views.
    relatives = np.array([views.compare(cells)[0] > SAME for cells in views.cells])
    shown = relatives[:, 1:] @ views.count[1:]
    order = 1 + np.argsort(-views.count[1:], kind="stable")[: VIEWS - 1]
    order = order[shown[order] >= SETTLED]
    if views.count[order].sum() < COVERED * views.count[0]:  # content moves
        order = order[:0]
    return views[np.concatenate([[0], order])]
