"""What an operator should know, and the small pictures that may come with it."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from PIL import Image

from fozo.state import State, derived
from fozo.types import Floats

SIDE = 160  # pixels of the longer side of a thumbnail, at most
QUALITY = 75  # of the JPEG, from 1 to 95
MAX_CHARACTERS = 64 << 10  # of a thumbnail: small enough for a line of JSON


@dataclass(frozen=True)
class Event(State):
    """Something that an operator should know."""

    name: str
    """``drift``, ``drift changed``, ``guard``, a camera fault; with `` over`` where it has ended."""
    image: int
    """Number of the image it began with, the first of the stream being 1."""
    time: float
    """When it was noticed, in seconds since 1970."""
    text: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What ``Status.metrics`` returned then."""
    mark: str = ""
    """``seen`` or ``expected``, where somebody has said so."""
    thumbnails: Mapping[str, str] | None = derived()
    """If enabled, small JPEGs in base64, never saved: ``camera``, and ``equalised`` where the model read another."""

    def as_dict(self) -> dict[str, Any]:
        """The event as JSON has it, without pictures: those may show people."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "thumbnails"}


def thumbnail(pixels: Floats) -> str:
    """Make a JPEG in base64 of pixels ``[1 or 3, height, width]`` in [0, 1]."""
    levels = (255 * np.clip(np.nan_to_num(pixels), 0, 1) + 0.5).astype(np.uint8)
    picture = Image.fromarray(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0))
    picture.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=QUALITY)
    return base64.b64encode(stream.getvalue()).decode()


def check_thumbnail(text: object) -> str:
    """Raise a ``ValueError`` for anything but a JPEG in base64."""
    if isinstance(text, str) and len(text) <= MAX_CHARACTERS:
        with suppress(ValueError):
            if base64.b64decode(text, validate=True).startswith(b"\xff\xd8\xff"):
                return text
    raise ValueError("a thumbnail is not a JPEG in base64")
