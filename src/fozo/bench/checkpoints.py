"""States of a method saved every few seconds, so that a run may be killed at any moment and go on from the latest."""

from __future__ import annotations

import re
import time
from pathlib import Path

from fozo.io import disk_errors
from fozo.methods.registry import AnyMethod

SAVE_SECONDS = 2.0
SAVE_SHARE = 20  # a state is saved when this many times the duration of the last saving has passed: FOA's takes 40 MB


class Checkpoints:
    """The saved states of one run, at least ``seconds`` apart: ``PREFIX000123.npz`` has seen 123 batches."""

    def __init__(self, folder: Path, prefix: str, seconds: float = SAVE_SECONDS) -> None:
        self.folder, self.prefix, self.seconds = folder, prefix, seconds
        self._saved, self._pause = time.monotonic(), seconds

    def _found(self) -> dict[int, Path]:
        name = re.compile(re.escape(self.prefix) + r"([0-9]+)\.npz")
        return {int(match[1]): path for path in self.folder.iterdir() if (match := name.fullmatch(path.name))}

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
        path = self.folder / f"{self.prefix}{done:06d}.npz"
        with disk_errors(path):
            method.save(path)
        for old in set(self._found().values()) - {path}:
            old.unlink()
        self._saved = time.monotonic()
        self._pause = max(self.seconds, SAVE_SHARE * (self._saved - start) if self.seconds else 0)

    def clear(self) -> None:
        for state in self._found().values():
            state.unlink()
