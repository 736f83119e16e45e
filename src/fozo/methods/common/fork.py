"""A fork waits until no batch is under way, so a child inherits adapters that are whole and locks that are free.

Of all threads, a child has only the one that forked. What the others had locked would be locked for ever, and what
they had half changed would stay so.
"""

from __future__ import annotations

import os
import threading
import weakref

WAIT = 10.0
"""Seconds that a fork waits for one lock at most. Whatever holds one for longer may itself be waiting for the fork."""
LOCKS: list[weakref.ref[threading.RLock]] = []
"""Those of all adapters alive. A list, because to append to it and to copy it each are one step for other threads."""
_forking = threading.Lock()
_taken: list[threading.RLock] = []


def _before() -> None:
    _forking.acquire()
    for reference in LOCKS.copy():
        lock = reference()
        if lock is not None and lock.acquire(timeout=WAIT):
            _taken.append(lock)


def _after() -> None:
    while _taken:
        _taken.pop().release()
    _forking.release()


def _after_in_child() -> None:
    for reference in LOCKS.copy():
        lock = reference()
        if lock is not None and lock not in _taken:  # waited for in vain: nobody is left to give it back
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    _after()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
