"""What all requests share: pixels that are decoded at a time, the pace, and the log. And what a picture costs."""

import logging
import math
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fozo.errors import FozoError

MAX_SCANS = 16  # scans of a JPEG that has as many pixels as a request may have; a smaller one may have more
MAX_SEGMENTS = 4096  # segments of a JPEG before its pixels and between its scans
SMALL_PICTURE = 1 << 21  # pixels, 1080p: a picture up to this size never waits for larger ones
SEGMENT = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # its marker: not pixels, restarts or fill bytes
LOG_LINES, ACCESS_LINES, LOG_SECONDS = 10, 600, 60.0  # warnings of one kind, and requests of one status, in a time
PACE_REQUESTS, MAX_RETRY = 16, 60  # requests that the pace is a mean of, about; seconds of Retry-After


class Refused(FozoError):
    """A request that the server does not take now, with the HTTP status; ``retry``: whether waiting helps."""

    def __init__(self, sentence: str, code: int, *, retry: bool = True) -> None:
        super().__init__(sentence)
        self.code, self.retry = code, retry and code != 413


class PixelBudget:
    """Pixels that may be decoded at a time, over all requests.

    Small pictures take none of it. Larger ones wait for each other, but never on the last of the threads, which stays
    free for small ones; beyond, they are refused.
    """

    def __init__(self, pixels: int = 1 << 25, workers: int = 8) -> None:
        self.pixels, self._free, self._threads = pixels, pixels, max(1, workers - 1)
        self._changed = threading.Condition()

    @contextmanager
    def take(self, pixels: int) -> Iterator[None]:
        if pixels <= SMALL_PICTURE:
            yield
            return
        if pixels > self.pixels:
            raise Refused(f"an image has {pixels} pixels, where max_pixels is {self.pixels}; send a smaller one", 413)
        with self._changed:
            if not self._threads:
                raise Refused("too many large pictures are being decoded; try again in a while", 503)
            self._threads -= 1
            self._changed.wait_for(lambda: self._free >= pixels)
            self._free -= pixels
        try:
            yield
        finally:
            with self._changed:
                self._threads += 1
                self._free += pixels
                self._changed.notify_all()


class Pace:
    """How fast requests are finished: an exponential mean of the seconds between two of them, while any are there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._since, self._seconds = clock, 0.0, 0.0

    def begin(self) -> None:
        """Note a request that comes while there is no other."""
        self._since = self._clock()

    def finish(self) -> None:
        now = self._clock()
        self._seconds += (now - self._since - self._seconds) / PACE_REQUESTS
        self._since = now

    def wait(self, requests: int) -> int:
        """Whole seconds until n requests are finished, at least as many as none was: 1 to :data:`MAX_RETRY`."""
        seconds = max(requests * self._seconds, self._clock() - self._since) if requests else 0.0
        return math.ceil(min(max(seconds, 1), MAX_RETRY))


def count_scans(picture: bytes) -> int:
    """Count the scans of a JPEG by its markers (ITU-T T.81, B.1): each is a pass over all pixels. Others have one."""
    scans, start = 0, 2
    if picture[:2] != b"\xff\xd8":
        return 1
    for _ in range(MAX_SEGMENTS):
        found = SEGMENT.search(picture, start)
        if found is None or found[0] == b"\xff\xd9":  # the end of the image; files may continue after it
            return scans
        scans += found[0] == b"\xff\xda"
        start = found.end() + int.from_bytes(picture[found.end() : found.end() + 2], "big")
    return MAX_SEGMENTS


class LogLimit(logging.Filter):
    """Lets through ``lines`` of a kind in a minute, and says how many it left out; below ``level`` all of them."""

    def __init__(self, lines: int = LOG_LINES, level: int = logging.WARNING) -> None:
        super().__init__()
        self.lines, self.level = lines, level
        self._counts: dict[object, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = getattr(record, "kind", (record.pathname, record.lineno))  # by default the line that logs
        start, count = self._counts.get(kind, (record.created, 0))
        if record.created - start > LOG_SECONDS:
            if count > self.lines:
                record.msg = f"{record.msg} ({count - self.lines} more of these were not logged)"
            start, count = record.created, 0
        self._counts[kind] = start, count + 1
        return count < self.lines or record.levelno < self.level
