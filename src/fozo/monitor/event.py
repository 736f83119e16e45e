"""Events: what happened in a stream, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

EVENTS = 200
"""Most recent events that a monitor keeps, in memory and in its file."""


@dataclass(frozen=True)
class Event:
    """Something that a person should know of."""

    name: str
    """``drift``, ``drift changed``, ``guard``, a camera fault; with `` over`` where it has ended."""
    image: int
    """Number of the image it began with, the first of the stream being 1."""
    time: float
    """When it was noticed, in seconds since 1970."""
    text: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What :meth:`Monitor.metrics` said then."""
    thumbnails: Mapping[str, str] = field(default_factory=dict)
    """Where they were asked for, small JPEGs in base64: ``camera``, and ``equalised`` where the model read another."""
