"""States of a method saved every few seconds, so that a run may be killed at any moment and go on from the latest."""

from __future__ import annotations

import time
from pathlib import Path

from fozo.io import disk_errors
from fozo.methods.registry import AnyMethod

SAVE_SECONDS = 2.0
SAVE_SHARE = 20  # a state is saved when this many times the duration of the last saving has passed: FOA's takes 40 MB


class Checkpoints:
    """The saved states of one run, at least ``seconds`` apart.

    The star in the ``pattern`` of their names is the number of batches that a state has seen.
    """

    def __init__(self, folder: Path, pattern: str, seconds: float = SAVE_SECONDS) -> None:
        self.folder, self.pattern, self.seconds = folder, pattern, seconds
        self._head, self._tail = pattern.split("*")
        self._saved, self._pause = time.monotonic(), seconds

    def _found(self) -> dict[int, Path]:
        numbers = {
            path.name.removeprefix(self._head).removesuffix(self._tail): path
            for path in self.folder.iterdir()
            if path.name.startswith(self._head) and path.name.endswith(self._tail)
        }
        return {int(number): path for number, path in numbers.items() if number.isascii() and number.isdecimal()}

    def restore(self, method: AnyMethod, most: int) -> int:
        """Continue from the latest state of at most ``most`` batches; return how many it has seen, 0 without one."""
        states = self._found()
        done = max((number for number in states if number <= most), default=0)
        if done:
            method.restore(states[done])
        return done

    def due(self) -> bool:
        """Whether it is time to save, once what goes with the state is safe on the disk."""
        return time.monotonic() - self._saved >= self._pause

    def save(self, method: AnyMethod, done: int) -> None:
        """Save the state after ``done`` batches, and remove the older ones."""
        start = time.monotonic()
        path = self.folder / f"{self._head}{done:06d}{self._tail}"
        with disk_errors(path):
            method.save(path)
        for old in set(self._found().values()) - {path}:
            old.unlink()
        self._saved = time.monotonic()
        self._pause = max(self.seconds, SAVE_SHARE * (self._saved - start) if self.seconds else 0)

    def clear(self) -> None:
        for state in self._found().values():
            state.unlink()
