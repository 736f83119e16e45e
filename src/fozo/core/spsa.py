"""n-SPSA: descending a function of which only values can be had (Eq. 5-7 of the paper), as ask and tell.

``ask`` gives 2n points, x + eps Z_j and x - eps Z_j for j = 1..n; ``tell`` takes their losses and moves x by
``-rate/n * sum_j g_j Z_j`` with ``g_j = (loss+ - loss-) / (2 eps)``. Nothing here knows what x means.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.noise import Noise
from fozo.core.schedule import Pace, Schedule
from fozo.errors import FozoError

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Step:
    """All that has to be known of a step to take it again: a few dozen bytes, whatever the size of x."""

    index: int
    gradients: tuple[float, ...]
    """The projected gradients g_j."""
    epsilon: float
    rate: float
    loss: float
    """The loss that the schedule saw."""


def advance(point: Array, step: Step, noise: Noise) -> Array:
    """Take a step: the same additions in the same order for the live run and for a replay of its journal."""
    directions = noise(step.index, (len(step.gradients), *point.shape))
    for gradient, direction in zip(step.gradients, directions, strict=True):
        point = point - (step.rate / len(step.gradients) * gradient) * direction
    return point


class SPSA:
    """The optimizer: a point, the pace of its schedule, and the number of steps taken."""

    def __init__(
        self, start: npt.ArrayLike, schedule: Schedule, noise: Noise, *, samples: int = 1, watch: str = "best"
    ) -> None:
        """Start at ``start``; ``samples`` is n; ``watch`` is what the schedule sees: the best or mean loss."""
        if samples < 1:
            raise FozoError(f"n-SPSA needs at least one sample, not {samples}")
        if watch not in ("best", "mean"):
            raise FozoError(f"watch must be 'best' or 'mean', not {watch!r}")
        self.schedule = schedule
        self.noise = noise
        self.samples = samples
        self.watch = watch
        self.point: Array = np.array(start, dtype=np.float64)
        self.pace: Pace = schedule.start()
        self.index = 0

    def ask(self) -> Array:
        """Return the 2n points to evaluate, ``[2n, ...]``, in the order +1, -1, +2, -2, ..."""
        directions = self.noise(self.index, (self.samples, *self.point.shape))
        moves = self.pace.epsilon * directions
        return np.stack([self.point + moves, self.point - moves], axis=1).reshape(-1, *self.point.shape)

    def tell(self, losses: npt.ArrayLike) -> Step:
        """Take the losses of the points just asked for, step, and return the step taken.

        The schedule moves first: the step is taken at its new rate, with gradients measured at the old
        epsilon, as in the authors' program. (The paper adjusts epsilon at the start of the next batch from
        this batch's loss, which comes to the same.)
        """
        values = np.asarray(losses, dtype=np.float64)
        if values.shape != (2 * self.samples,):
            raise FozoError(f"tell needs {2 * self.samples} losses, one a point, not {list(values.shape)}")
        if not np.isfinite(values).all():
            raise FozoError(f"the losses {values.tolist()} are not all finite; nothing was changed")
        gradients = (values[0::2] - values[1::2]) / (2 * self.pace.epsilon)
        watched = float(values.min() if self.watch == "best" else values.mean())
        epsilon, self.pace = self.pace.epsilon, self.schedule.next(self.pace, watched)
        step = Step(self.index, tuple(gradients.tolist()), epsilon, self.pace.rate, watched)
        self.point = advance(self.point, step, self.noise)
        self.index += 1
        return step

    def state(self) -> dict[str, Array]:
        """Return everything that changes, as named arrays."""
        pace = self.pace
        average = np.nan if pace.average is None else pace.average
        numbers = np.array([self.index, pace.epsilon, pace.rate, average, pace.jumped], dtype=np.float64)
        return {"point": self.point.copy(), "pace": numbers}

    def restore(self, state: dict[str, Array]) -> None:
        """Continue from what :meth:`state` returned."""
        index, epsilon, rate, average, jumped = state["pace"].tolist()
        self.point = state["point"].copy()
        self.pace = Pace(epsilon, rate, None if np.isnan(average) else average, bool(jumped))
        self.index = int(index)
