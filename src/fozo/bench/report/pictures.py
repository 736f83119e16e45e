"""Pictures on a page. A report shows images only where the reader names a folder of them."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from PIL import Image

from fozo.bench.report.tables import full_name
from fozo.bench.store import Group
from fozo.data.corruptions import EXTRA_KINDS, KINDS, corrupt
from fozo.data.images import Pixels
from fozo.data.sets import open_images
from fozo.data.sources import prepare
from fozo.errors import FozoError

SIDE = 224  # pixels at which an image is corrupted: what ImageNet's models read
THUMBNAIL = 128  # pixels of a picture on the page
QUALITY = 80


def picture(pixels: Pixels, words: str, *, exact: bool = False) -> Markup:
    """Make an ``img`` of ``uint8 [height, width, channels]``; ``exact`` keeps every pixel, for small ones."""
    image = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    stream = io.BytesIO()
    if exact:
        image.save(stream, "PNG", optimize=True)
    else:
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        image.save(stream, "JPEG", quality=QUALITY)
    data = base64.b64encode(stream.getvalue()).decode()
    kind, style = ("png", "exact") if exact else ("jpeg", "")
    return Markup('<img class="{}" alt="{}" src="data:image/{};base64,{}">').format(style, words, kind, data)


def corrupted_pictures(images: Path, groups: Sequence[Group]) -> tuple[list[tuple[str, Markup]], int | None]:
    """Show the first of some clean images under each corruption of the runs; also their severity, where it is one."""
    found = open_images(images)
    if found.corrupted:
        raise FozoError(f"{images} holds corrupted images; give clean ones, which the page then shows corrupted")
    domains = list(dict.fromkeys(name for group in groups for run in group.runs for name in run.measures.domains))
    pairs = [(name, *name.partition("/")[::2]) for name in domains]
    known = [(name, kind, int(level)) for name, kind, level in pairs if kind in (*KINDS, *EXTRA_KINDS) and level]
    levels = {level for _, _, level in known}
    usual = min(levels) if len(levels) == 1 else None
    clean = prepare(found, found.read(0), (SIDE, SIDE), 3)
    made = [("Clean", picture(clean, "Clean"))]
    for name, kind, level in sorted(known, key=lambda one: (one[2], domains.index(one[0]))):
        pixels = corrupt(np.ascontiguousarray(clean), kind, level, 0, image_id=found.samples[0].path)
        made.append((full_name(name, usual), picture(pixels, full_name(name, usual))))
    return made, usual
