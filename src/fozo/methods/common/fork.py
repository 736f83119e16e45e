"""A fork waits until no batch is under way, so a child inherits methods that are whole and locks that are free.

A child has only the thread that forked. What other threads had locked would stay locked for ever, and what they had
half changed would stay so.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fozo.methods.base import Method

WAIT = 10.0  # seconds, for all methods together: one that takes longer may be waiting for the fork
_methods: list[weakref.ref[Method[Any]]] = []  # appending and copying are atomic, unlike those of a WeakSet
_forking = threading.Lock()
_held: list[threading.RLock] = []


def protect(method: Method[Any]) -> None:
    _methods.append(weakref.ref(method, _methods.remove))


def _alive() -> list[Method[Any]]:
    return [method for reference in _methods.copy() if (method := reference()) is not None]


def _before() -> None:
    _forking.acquire()
    deadline = time.monotonic() + WAIT
    for method in _alive():
        if method.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            _held.append(method.lock)


def _after() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


def _after_in_child() -> None:
    renewed: dict[int, threading.RLock] = {}  # a wrapper shares its inner method's
    for method in _alive():
        if method.lock not in _held:  # its owner does not exist here
            method.lock = renewed.setdefault(id(method.lock), threading.RLock())
    _after()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
