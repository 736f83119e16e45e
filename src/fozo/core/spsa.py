"""n-SPSA as a value: descent by function values alone (Eq. 5-7 of the FOZO paper).

``ask`` gives 2n points around x, ``tell`` takes their losses and gives the next state:

    points      x + eps Z_j  and  x - eps Z_j,           j = 1..n
    gradients   g_j = (loss+ - loss-) / (2 eps)
    step        x <- x - rate/n sum_j g_j Z_j

Nothing here knows what x means. Losses that are not finite are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.noise import Noise
from fozo.core.schedule import Schedule, ScheduleState
from fozo.errors import FozoError
from fozo.state import State, derived
from fozo.types import Array


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


@dataclass(frozen=True)
class SPSAState(State):
    """A point, where its schedule stands, and the number of steps taken."""

    point: Array
    schedule: ScheduleState
    index: int = 0
    last: Step | None = derived()  # the step that led here


@dataclass(frozen=True)
class SPSA:
    """The settings: everything that does not change."""

    start: Array
    schedule: Schedule
    noise: Noise
    samples: int = 1
    """n: pairs of points for each step."""
    scheduled_loss: str = "best"
    """The loss that the schedule sees: the ``best`` of the 2n, or their ``mean``."""

    def __post_init__(self) -> None:
        if self.scheduled_loss not in ("best", "mean"):
            raise FozoError(f"scheduled_loss must be 'best' or 'mean', not {self.scheduled_loss!r}")

    def init(self) -> SPSAState:
        return SPSAState(np.array(self.start, dtype=np.float64), self.schedule.start())

    def ask(self, state: SPSAState) -> Array:
        """Return the 2n points to evaluate, ``[2n, ...]``, in the order +1, -1, +2, -2, ..."""
        directions = self.noise(state.index, (self.samples, *state.point.shape))
        moves = state.schedule.epsilon * directions
        pairs = np.stack([state.point + moves, state.point - moves], axis=1)
        return pairs.reshape(-1, *state.point.shape)

    def estimate(self, state: SPSAState, losses: npt.ArrayLike) -> Step:
        """Return the step that the losses of the points just asked for lead to.

        The schedule moves first: the step is taken at its new rate, with gradients measured at the old epsilon, as in
        the authors' program. (The paper adjusts epsilon at the start of the next batch from this batch's loss, which
        comes to the same.)
        """
        values = checked_losses(losses, 2 * self.samples)
        epsilon = state.schedule.epsilon
        gradients = (values[0::2] - values[1::2]) / (2 * epsilon)
        loss = float(values.min() if self.scheduled_loss == "best" else values.mean())
        rate = self.schedule.next(state.schedule, loss).rate
        return Step(state.index, tuple(gradients.tolist()), epsilon, rate, loss)

    def follow(self, state: SPSAState, step: Step) -> SPSAState:
        """Take a step that was estimated now, or that a journal recorded."""
        return SPSAState(
            point=advance(state.point, step, self.noise),
            schedule=self.schedule.next(state.schedule, step.loss),
            index=state.index + 1,
            last=step,
        )

    def tell(self, state: SPSAState, losses: npt.ArrayLike) -> SPSAState:
        """Take the losses of the points just asked for, and return the next state."""
        return self.follow(state, self.estimate(state, losses))


def checked_losses(losses: npt.ArrayLike, points: int) -> Array:
    """Refuse losses that are not one finite number a point."""
    values = np.asarray(losses, dtype=np.float64)
    if values.shape != (points,):
        raise FozoError(f"tell needs {points} losses, one a point, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise FozoError(f"the losses {values.tolist()} are not all finite; nothing was changed")
    return values
