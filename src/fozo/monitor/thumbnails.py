"""Thumbnails: what a camera saw, small enough for a line of JSON."""

from __future__ import annotations

import base64
import binascii
import io

import numpy as np
from PIL import Image

from fozo.types import Floats

SIDE = 160
"""Pixels of the longer side, at most."""
QUALITY = 75
LONGEST = 64 << 10
"""Characters of one."""


def thumbnail(pixels: Floats) -> str:
    """Make a JPEG in base64 of pixels ``[1 or 3, height, width]`` in [0, 1]."""
    levels = (255 * np.clip(np.nan_to_num(pixels), 0, 1) + 0.5).astype(np.uint8)
    picture = Image.fromarray(levels[0] if len(levels) == 1 else levels.transpose(1, 2, 0))
    picture.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=QUALITY)
    return base64.b64encode(stream.getvalue()).decode()


def check_thumbnail(text: object) -> str:
    """Refuse with a ``ValueError`` what is no JPEG in base64."""
    try:
        if (
            isinstance(text, str)
            and len(text) <= LONGEST
            and base64.b64decode(text, validate=True)[:3] == b"\xff\xd8\xff"
        ):
            return text
    except (binascii.Error, ValueError):
        pass
    raise ValueError("a thumbnail is no JPEG in base64")
