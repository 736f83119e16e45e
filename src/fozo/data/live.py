"""Frames of a camera that sends on and on: always the newest, and again when it comes back."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing

from fozo.data.images import Pixels
from fozo.data.videos import opencv, shown, video_frames
from fozo.errors import FozoError

FIRST_PAUSE = 1.0  # seconds before a source that is gone is opened again; doubled each time
LONGEST_PAUSE = 60.0  # seconds
PATIENCE = 1.0  # seconds after which the reader is told that there is no new frame

Say = Callable[[str], None]


def _tell(sentence: str) -> None:
    print(f"fozo: {sentence}", file=sys.stderr, flush=True)


class LiveFrames:
    """The newest frame of a live source; those that came while nobody asked are counted as ``dropped``.

    A thread reads. Where the source ends or fails it is opened again, for ever, after pauses that grow to a minute. The
    number of a camera that cannot be opened at all is an error.
    """

    def __init__(self, source: str, say: Say = _tell, pause: float = FIRST_PAUSE) -> None:
        self.dropped = 0
        self.lost = 0  # times that the source was gone
        self._begun = False
        self._source = source
        self._say = say
        self._first_pause = pause
        self._error: FozoError | None = None
        self._newest: tuple[Pixels, float] | None = None
        self._changed = threading.Condition()
        self._closed = threading.Event()
        opencv()
        self._thread = threading.Thread(target=self._read, name="fozo-live", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[tuple[Pixels, float] | None]:
        """Give the newest frame and when it was taken; ``None`` after each second without one."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._newest is not None or self._closed.is_set(), PATIENCE)
                frame = self._newest
                self._newest = None
            if self._error is not None:
                raise self._error
            if self._closed.is_set():
                return
            yield frame

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(PATIENCE)

    def _read(self) -> None:
        pause = self._first_pause
        while not self._closed.is_set():
            reason = "it ended"
            try:
                with closing(video_frames(self._source)) as frames:
                    for frame in frames:
                        if pause != self._first_pause:
                            self._say(f"{shown(self._source)} is back")
                            pause = self._first_pause
                        self._offer(frame)
                        if self._closed.is_set():
                            return
            except FozoError as error:
                reason = str(error)
                if self._source.isdecimal() and not self._begun:
                    self._error = error
                    self.close()
            if self._closed.is_set():
                return
            self.lost += 1
            self._say(f"no frames of {shown(self._source)}: {reason}; the next try is in {pause:g} s")
            self._closed.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _offer(self, frame: tuple[Pixels, float]) -> None:
        with self._changed:
            self.dropped += self._newest is not None
            self._newest = frame
            self._begun = True
            self._changed.notify()
