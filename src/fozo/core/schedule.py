"""How far to perturb and how far to step: Eq. 12 of the paper and the authors' learning-rate rule."""

from __future__ import annotations

from dataclasses import dataclass

from fozo.errors import FozoError
from fozo.state import State


@dataclass(frozen=True)
class ScheduleState(State):
    """Where a :class:`Schedule` stands: the scales in force, the average loss, and whether it just jumped."""

    epsilon: float
    rate: float
    average: float | None  # none before the first loss
    jumped: bool

    def __post_init__(self) -> None:
        """Refuse an epsilon that no run has."""
        if not self.epsilon > 0:
            raise ValueError(f"epsilon is {self.epsilon}")


@dataclass(frozen=True)
class Schedule:
    """Perturbation scale eps and learning rate as functions of the losses seen so far.

    Eq. 12: eps decays by ``decay`` each batch down to ``epsilon_min`` and jumps back to ``epsilon`` when the
    loss exceeds ``threshold`` times its moving average (a new domain, or optimization gone astray).

    The paper names a rate of 0.08 and an unspecified schedule; the authors' program applies
    ``rate = clip(rate_decay * rate + rate_step, rate_min, rate_max)`` after each batch and returns to
    ``rate_at_jump`` at a jump. The defaults keep the rate constant.
    """

    epsilon: float = 0.5
    """Perturbation scale at the start and after a jump."""
    epsilon_min: float = 0.2
    """The scale that it decays to."""
    decay: float = 0.9
    """Factor of the scale after each batch."""
    threshold: float = 1.05
    """How many times its moving average a loss has to be for a jump."""
    ema_decay: float = 0.9
    """Weight of the past in the moving average of the loss, beta in the paper."""
    rate: float = 0.08
    """Learning rate at the start."""
    rate_decay: float = 1.0
    """Factor of the rate after each batch."""
    rate_step: float = 0.0
    """What is then added to it."""
    rate_min: float = 0.0
    """The rate never falls below this."""
    rate_max: float = float("inf")
    """The rate never exceeds this."""
    rate_at_jump: float | None = None
    """The rate after a jump; ``None`` leaves it as it is."""

    def __post_init__(self) -> None:
        if not 0 < self.epsilon_min <= self.epsilon:
            raise FozoError(f"need 0 < epsilon_min <= epsilon, not {self.epsilon_min} and {self.epsilon}")
        if not 0 < self.decay <= 1:
            raise FozoError(f"decay must lie in (0, 1], not {self.decay}")
        if not 0 <= self.ema_decay < 1:
            raise FozoError(f"ema_decay must lie in [0, 1), not {self.ema_decay}")
        if not self.threshold > 1:
            raise FozoError(f"threshold must exceed 1, not {self.threshold}")
        if not 0 <= self.rate_min <= self.rate_max:
            raise FozoError(f"need 0 <= rate_min <= rate_max, not {self.rate_min} and {self.rate_max}")

    def start(self) -> ScheduleState:
        return ScheduleState(epsilon=self.epsilon, rate=self.rate, average=None, jumped=False)

    def next(self, state: ScheduleState, loss: float) -> ScheduleState:
        """Return the state after a batch whose loss was ``loss``.

        The average takes the new loss in before the comparison, as the paper's formula and the authors'
        program both do, so against the old average the threshold is really a little higher.
        """
        past = loss if state.average is None else state.average
        average = self.ema_decay * past + (1 - self.ema_decay) * loss
        jumped = loss > self.threshold * average
        rate = state.rate * self.rate_decay + self.rate_step
        if jumped and self.rate_at_jump is not None:
            rate = self.rate_at_jump
        return ScheduleState(
            epsilon=self.epsilon if jumped else max(self.epsilon_min, state.epsilon * self.decay),
            rate=min(self.rate_max, max(self.rate_min, rate)),
            average=average,
            jumped=jumped,
        )
