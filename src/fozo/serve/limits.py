"""What all requests share: pixels that are decoded at a time, and the log. And what a picture costs to decode."""

import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from fozo.errors import FozoError

MAX_SCANS = 16  # scans of a JPEG that has as many pixels as a request may have; a smaller one may have more
MAX_SEGMENTS = 4096  # segments of a JPEG before its pixels and between its scans
SMALL_PICTURE = 1 << 21  # pixels, 1080p: a picture up to this size never waits for larger ones
SEGMENT = re.compile(rb"\xff[^\x00\x01\xd0-\xd8\xff]")  # its marker: not pixels, restarts or fill bytes
LOG_LINES, LOG_SECONDS = 10, 60.0  # warnings and errors of one kind that are logged in a time


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
    """Lets through a few warnings of a kind in a minute, and says how many it left out."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}  # by the line that logs

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.pathname, record.lineno
        start, count = self._counts.get(kind, (record.created, 0))
        if record.created - start > LOG_SECONDS:
            if count > LOG_LINES:
                record.msg = f"{record.msg} ({count - LOG_LINES} more of these were not logged)"
            start, count = record.created, 0
        self._counts[kind] = start, count + 1
        return count < LOG_LINES or record.levelno < logging.WARNING
