"""One-sided SPSA (ZOA's): descent by function values alone, as ask and tell.

``ask`` gives x itself and points x + c z around it, each of which gives a gradient
``(loss(x + c z) - loss(x)) / (c z)``; ``tell`` takes their losses and gives the next state. Nothing here knows what x
means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.spsa import checked_losses
from fozo.state import State, ragged
from fozo.types import Array


@dataclass(frozen=True)
class OneSidedState(State):
    """A point, which may grow between a ``tell`` and the next ``ask``, and the draws used so far."""

    point: Array = ragged("coordinates")
    draws: int = 0


@dataclass(frozen=True)
class OneSidedSPSA:
    """The settings: everything that does not change."""

    descend: Callable[[Array, Array], Array]
    """The descent rule: of a point and a gradient, the next point."""
    moves: Callable[[int, int], Array]
    """Of a draw and a size, c z: how far a point is perturbed. No coordinate may be zero."""
    samples: int = 1
    """Perturbed points."""

    def ask(self, state: OneSidedState) -> Array:
        """Return x, then x perturbed ``samples`` times."""
        return np.stack([state.point, *(state.point + move for move in self._moves(state))])

    def tell(self, state: OneSidedState, losses: npt.ArrayLike) -> OneSidedState:
        """Average the gradients that the points give, and descend."""
        values = checked_losses(losses, 1 + self.samples)
        gradient = np.zeros_like(state.point)
        for loss, move in zip(values[1:], self._moves(state), strict=True):
            gradient += (loss - values[0]) / move / self.samples
        return OneSidedState(self.descend(state.point, gradient), state.draws + self.samples)

    def _moves(self, state: OneSidedState) -> list[Array]:
        return [self.moves(state.draws + index, state.point.size) for index in range(self.samples)]
