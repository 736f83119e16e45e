"""What passes between the server and who looks at it: readings of cameras, and the board they are shown on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fozo.monitor import Event

if TYPE_CHECKING:
    from starlette.routing import BaseRoute


@dataclass(frozen=True)
class Reading:
    """What is known of a camera after one of its requests."""

    model: str
    camera: str
    """Its ``sequence_id``; empty for the memory that requests without one share."""
    time: float
    """When it was read, in seconds since 1970."""
    images: int
    """Images seen so far."""
    drift: float | None
    """Distance from clean images; ``None`` without a monitor, as are the next ones."""
    threshold: float | None
    """Distance above which it is drift."""
    drifted: bool
    warning: bool
    accuracy: float | None
    """Expected of the predictions, from 0 to 1, with its interval."""
    accuracy_low: float | None
    accuracy_high: float | None
    sentence: str
    """All of it in words; empty without a monitor."""
    events: tuple[Event, ...] = ()
    """Those that the request raised."""
    before: bytes | None = None
    """JPEG of the last frame as the camera sent it, small; only where thumbnails were asked for."""
    after: bytes | None = None
    """The same as the model read it, where an equaliser changed it."""


class Board(Protocol):
    """Shows readings to people. Called from worker threads, one at a time for each camera."""

    @property
    def routes(self) -> Sequence[BaseRoute]:
        """What the server is to answer for it."""

    def record(self, reading: Reading) -> None:
        """Show a reading; it should be quick."""

    def forget(self, model: str, camera: str) -> None:
        """A camera has left the memory: it was idle, its sequence has ended, or others needed the room."""

    def close(self) -> None:
        """The server is told to stop: whatever keeps a connection open has to end."""
