"""What commands print on: how far they are, and tables."""

import sys
import time
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

DELAY = 2.0  # seconds of work before anything is drawn on a terminal
PAUSE = 30.0  # seconds between two plain lines where standard error is not a terminal


class Progress:
    """A bar on a terminal, once the work has lasted two seconds; elsewhere a plain line every half a minute.

    ``progress("calibrating", 64, 512)`` says what is done, how much of it, and how much there is, with the time left.
    """

    quiet = False  # whether nothing is shown (``fozo --quiet``)

    def __init__(self) -> None:
        self._bar = Bar(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self._bar.add_task("", total=None)
        self._began = self._said = self._since = time.monotonic()
        self._doing, self._before = "", 0

    def __call__(self, doing: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self.quiet:
            return
        if not self._bar.console.is_terminal:
            if doing != self._doing:  # the first call counts what was done before it
                self._doing, self._since, self._before = doing, now, done
            if now - self._said >= PAUSE:
                self._said = now
                rate = (done - self._before) / (now - self._since) if now > self._since else 0.0
                left = f", {timedelta(seconds=round((total - done) / rate))} left" if rate > 0 else ""
                print(f"fozo: {doing}, {done} of {total}{left}", file=sys.stderr, flush=True)
            return
        (task,) = self._bar.tasks
        if total != task.total or done < task.completed:  # something else has begun
            self._bar.reset(self._task, total=total)
        self._bar.update(self._task, description=doing, completed=done)
        if not self._bar.live.is_started and now - self._began >= DELAY:
            self._bar.start()

    def close(self) -> None:
        """Take the bar off the screen, so that a line may be printed; the next call shows it again."""
        if self._bar.live.is_started:
            self._bar.stop()


def open_console() -> Console:
    """Standard output; in a pipe a row of a table is one line, whatever width the pipe claims to have."""
    console = Console()
    return console if console.is_terminal else Console(width=200)


def print_sentence(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=not console.is_terminal)
