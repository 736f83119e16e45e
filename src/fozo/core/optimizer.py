"""What an optimizer is: it asks for the loss at some points, is told, and moves. It knows nothing of models."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.types import Array, State


@runtime_checkable
class Optimizer(Protocol):
    """Zeroth-order search as ask and tell. n-SPSA, one-sided SPSA and CMA-ES are three of them."""

    point: Array
    """Where the search stands."""

    def ask(self) -> Array:
        """Return the points to evaluate, ``[K, *point.shape]``; the same ones until their losses are told."""

    def tell(self, losses: npt.ArrayLike) -> None:
        """Take the losses ``[K]`` of the points asked for, and move. Losses that are not finite change nothing."""

    def state(self) -> State:
        """Return everything that changes, as named arrays."""

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned."""


def checked_losses(losses: npt.ArrayLike, points: int) -> Array:
    """Refuse losses that are not one finite number a point."""
    values = np.asarray(losses, dtype=np.float64)
    if values.shape != (points,):
        raise FozoError(f"tell needs {points} losses, one a point, not {list(values.shape)}")
    if not np.isfinite(values).all():
        raise FozoError(f"the losses {values.tolist()} are not all finite; nothing was changed")
    return values


def as_floats(state: State, name: str, shape: tuple[int, ...]) -> Array:
    """Read one array of a state, refusing another shape."""
    if name not in state or state[name].shape != shape:
        found = list(state[name].shape) if name in state else "missing"
        raise FozoError(f"the state's {name!r} is {found}, not of shape {list(shape)}; save the state again")
    return np.array(state[name], dtype=np.float64)
