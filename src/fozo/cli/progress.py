"""The one way in which commands say how far they are."""

from __future__ import annotations

import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

DELAY = 2.0  # seconds of work before anything is drawn on a terminal
PAUSE = 30.0  # seconds between two plain lines where standard error is not a terminal


class Progress:
    """A bar on a terminal, once the work has lasted two seconds; elsewhere a plain line every half a minute.

    ``progress("calibrating", 64, 512)`` says what is done, how much of it, and how much there is, on standard error.
    """

    quiet = False  # whether nothing is shown (``fozo --quiet``)

    def __init__(self) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task: TaskID | None = None
        self._last = (0, 0)
        self._began = self._said = time.monotonic()

    def __call__(self, doing: str, done: int, total: int) -> None:
        if self.quiet:
            return
        if not self._bar.console.is_terminal:
            if time.monotonic() - self._said >= PAUSE:
                self._said = time.monotonic()
                print(f"fozo: {doing}, {done} of {total}", file=sys.stderr, flush=True)
            return
        if self._task is not None and (total != self._last[1] or done < self._last[0]):  # something else has begun
            self._bar.remove_task(self._task)
            self._task = None
        if self._task is None:
            self._task = self._bar.add_task(doing, total=total)
        self._bar.update(self._task, description=doing, completed=done)
        self._last = (done, total)
        if not self._bar.live.is_started and time.monotonic() - self._began >= DELAY:
            self._bar.start()

    def close(self) -> None:
        """Take the bar off the screen, so that a line may be printed; the next call shows it again."""
        if self._bar.live.is_started:
            self._bar.stop()
