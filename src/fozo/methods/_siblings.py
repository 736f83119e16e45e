"""Many adapters of one model: what is derived from the model and its clean images is in memory once."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any, TypeVar

from fozo.inputs import Watch
from fozo.methods._fork import LOCKS
from fozo.methods.base import Method

M = TypeVar("M", bound=Method[Any])


def sibling(method: M) -> M:
    """Make a fresh method as ``clone()`` does, in no time and little memory: what ``prepare()`` derived is shared.

    ``method`` should have seen no image.
    """
    made = copy.copy(method)
    made._lock = threading.RLock()
    LOCKS.append(weakref.ref(made._lock, LOCKS.remove))
    made._watch, made._metrics, made.observer = Watch(), {}, None
    made.begin()
    return made
