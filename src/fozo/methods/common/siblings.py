"""Many adapters of one model: what is derived from it is in memory once, and what a step worked in is given back."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any, TypeVar

from fozo.core.normalisation import Watch
from fozo.methods.base import Method
from fozo.methods.common.fork import LOCKS

M = TypeVar("M", bound=Method[Any])
SHARED = ("engine", "config", "_source")
"""What is the same object for all."""


def sibling(method: M) -> M:
    """Make a fresh method as ``clone()`` does, in no time and little memory: what ``prepare()`` derived is shared.

    ``method`` should have seen no image: what a step keeps for the next one (memory to work in) is nobody else's.
    Objects of the method's own package are copied, though not what they hold: they may keep what they computed last.
    """
    made = copy.copy(method)
    packages = {Method.__module__.partition(".")[0], type(method).__module__.partition(".")[0]}
    for name, value in vars(method).items():
        if type(value).__module__.partition(".")[0] in packages and name not in SHARED:
            setattr(made, name, copy.copy(value))
    made._lock = threading.RLock()
    LOCKS.append(weakref.ref(made._lock, LOCKS.remove))
    made._watch, made._metrics, made.observer = Watch(), {}, None
    made.begin()
    return made


def rest(method: Method[Any]) -> None:
    """Give back the memory that a step worked in, which is kept because fresh memory costs time: images, and gains.

    For one adapter that is called again and again it is worth keeping; for hundreds that wait for their cameras, which
    all would keep a few images of the model's size, it is not.
    """
    with method._lock:
        method.described = method.equalised = None
        room = getattr(method, "_room", None)
        if room is not None:
            method._room = room[:0].copy()  # type: ignore[attr-defined]
        if hasattr(method, "_gains"):
            method._gains = None
