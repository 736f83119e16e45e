"""What n-SPSA, one-sided SPSA and CMA-ES share: they ask for the losses of points, take them, and move.

``ask()`` gives points ``[K, *point.shape]``, the same ones until ``tell(losses)`` has their losses ``[K]``. Losses that
are not finite change nothing. ``state()`` and ``load_state()`` hold everything that changes, as named arrays.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.types import Array, State


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
