"""SPSA, twice: descent by function values alone, as ask and tell.

n-SPSA (Eq. 5-7 of the FOZO paper): ``ask`` gives 2n points, x + eps Z_j and x - eps Z_j for j = 1..n; ``tell`` takes
their losses and moves x by ``-rate/n * sum_j g_j Z_j`` with ``g_j = (loss+ - loss-) / (2 eps)``.

One-sided SPSA (ZOA's): ``ask`` gives x itself and points x + c z around it, each of which gives a gradient
``(loss(x + c z) - loss(x)) / (c z)``. Nothing here knows what x means.

As for CMA-ES, ``ask()`` gives the same points ``[K, *point.shape]`` until ``tell(losses)`` has their losses ``[K]``;
losses that are not finite change nothing. ``state()`` and ``load_state()`` hold all that changes; methods check shapes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fozo.core.noise import Noise
from fozo.core.schedule import Pace, Schedule
from fozo.errors import FozoError
from fozo.types import Array, State


@dataclass(frozen=True)
class Step:
    """All that has to be known of a step to take it again: a few dozen bytes, whatever the size of x."""

    index: int
    gradients: tuple[float, ...]  # the projected gradients g_j
    epsilon: float
    rate: float
    loss: float  # the loss that the schedule saw


def advance(point: Array, step: Step, noise: Noise) -> Array:
    """Take a step: the same additions in the same order for the live run and for a replay of its journal."""
    directions = noise(step.index, (len(step.gradients), *point.shape))
    for gradient, direction in zip(step.gradients, directions, strict=True):
        point = point - (step.rate / len(step.gradients) * gradient) * direction
    return point


class SPSA:
    """n-SPSA: a point, the pace of its schedule, and the number of steps taken."""

    def __init__(
        self, start: npt.ArrayLike, schedule: Schedule, noise: Noise, *, samples: int = 1, watch: str = "best",
        radius: float | None = None,
    ) -> None:  # fmt: skip
        """Start at ``start``; ``samples`` is n; ``watch`` is what the schedule sees: the best or mean loss.

        With a ``radius``, projected gradients count in units of their running RMS, those of a step add up (from n << d
        directions, n times as much of it is known as from one), and x stays within ``radius`` (RMS) of ``start``.
        """
        if watch not in ("best", "mean"):
            raise FozoError(f"watch must be 'best' or 'mean', not {watch!r}")
        self.schedule, self.noise, self.samples, self.watch, self.radius = schedule, noise, samples, watch, radius
        self.start: Array = np.array(start, dtype=np.float64)
        self.point: Array = np.array(start, dtype=np.float64)
        self.pace: Pace = schedule.start()
        self.index, self.power = 0, 0.0  # steps taken; running mean square of the projected gradients
        self.last: Step | None = None  # the step just taken

    def ask(self) -> Array:
        """Return the 2n points to evaluate, ``[2n, ...]``, in the order +1, -1, +2, -2, ..."""
        directions = self.noise(self.index, (self.samples, *self.point.shape))
        moves = self.pace.epsilon * directions
        return np.stack([self.point + moves, self.point - moves], axis=1).reshape(-1, *self.point.shape)

    def tell(self, losses: npt.ArrayLike) -> None:
        """Take the losses of the points just asked for, and step.

        The schedule moves first: the step is taken at its new rate, with gradients measured at the old
        epsilon, as in the authors' program. (The paper adjusts epsilon at the start of the next batch from
        this batch's loss, which comes to the same.)
        """
        values = checked_losses(losses, 2 * self.samples)
        gradients = (values[0::2] - values[1::2]) / (2 * self.pace.epsilon)
        watched = float(values.min() if self.watch == "best" else values.mean())
        rate = self.schedule.next(self.pace, watched).rate
        step = Step(self.index, tuple(gradients.tolist()), self.pace.epsilon, rate, watched)
        self.follow(step if self.radius is None else self._in_units(step, self.radius))

    def _in_units(self, step: Step, radius: float) -> Step:
        """The same step at a rate that counts gradients in units of their RMS; none where it would leave the radius."""
        rms = max(math.sqrt(self._power(step)), 1e-6)  # less is rounding
        step = replace(step, rate=step.rate * self.samples / rms)
        away = advance(self.point, step, self.noise) - self.start
        return step if np.square(away).mean() <= radius**2 else replace(step, rate=0.0)

    def _power(self, step: Step) -> float:
        new = float(np.square(step.gradients).mean())
        return 0.9 * self.power + 0.1 * new if self.power else new

    def follow(self, step: Step) -> Array:
        """Take a step that was estimated now, or that a journal recorded; return the new point."""
        self.pace, self.last, self.power = self.schedule.next(self.pace, step.loss), step, self._power(step)
        self.point = advance(self.point, step, self.noise)
        self.index += 1
        return self.point

    def state(self) -> State:
        pace = self.pace
        numbers = np.array([self.index, pace.epsilon, pace.rate, pace.jumped, self.power], dtype=np.float64)
        average = np.array([] if pace.average is None else [pace.average], dtype=np.float64)
        return {"point": self.point.copy(), "pace": numbers, "average": average}

    def load_state(self, state: State) -> None:
        (index, epsilon, rate, jumped, power), average = state["pace"].tolist(), state["average"].tolist()
        if not (epsilon > 0 and index >= 0 and index == int(index) and len(average) < 2):
            raise FozoError(f"the state is of step {index} with epsilon {epsilon}, which no run has; save it again")
        self.point, self.power = np.array(state["point"], dtype=np.float64), power
        self.pace = Pace(epsilon, rate, average[0] if average else None, bool(jumped))
        self.index, self.last = int(index), None


class OneSidedSPSA:
    """SPSA from one plain point and ``samples`` perturbed ones; ``update`` decides what to do with the gradient.

    ``update(point, gradient) -> point`` is the descent rule, ``moves(draw, size)`` gives c z, how far a point is
    perturbed: no coordinate may be zero. ``point`` may grow between a tell and the next ask.
    """

    def __init__(
        self,
        start: npt.ArrayLike,
        update: Callable[[Array, Array], Array],
        moves: Callable[[int, int], Array],
        *,
        samples: int = 1,
    ) -> None:
        self.point: Array = np.array(start, dtype=np.float64)
        self.update, self.moves, self.samples = update, moves, samples
        self.index = 0

    def _moves(self) -> list[Array]:
        return [self.moves(self.index + i, self.point.size) for i in range(self.samples)]

    def ask(self) -> Array:
        """Return x, then x perturbed ``samples`` times."""
        return np.stack([self.point, *(self.point + move for move in self._moves())])

    def tell(self, losses: npt.ArrayLike) -> None:
        """Average the gradients that the points give, and descend."""
        values = checked_losses(losses, 1 + self.samples)
        gradient = np.zeros_like(self.point)
        for loss, move in zip(values[1:], self._moves(), strict=True):
            gradient += (loss - values[0]) / move / self.samples
        self.point = self.update(self.point, gradient)
        self.index += self.samples

    def state(self) -> State:
        return {"point": self.point.copy(), "index": np.array(self.index)}

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned; the point may have grown since this one was made."""
        self.point, self.index = np.array(state["point"], dtype=np.float64), int(state["index"])


def checked_losses(losses: npt.ArrayLike, points: int) -> Array:
    """Refuse losses that are not one finite number a point."""
    values = np.asarray(losses, dtype=np.float64)
    if values.shape != (points,):
        raise FozoError(f"tell needs {points} losses, one a point, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise FozoError(f"the losses {values.tolist()} are not all finite; nothing was changed")
    return values
