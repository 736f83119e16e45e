"""Small image trees, made on the spot, and the developers' real images where they are present."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fozo.engines.base import Spec

Plant = Callable[..., Path]


def encoded(shade: int, size: tuple[int, int] = (16, 16), format: str = "PNG") -> bytes:
    """Make a file of one gray, so that an image can be told by its pixels."""
    stream = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), shade, np.uint8)).save(stream, format)
    return stream.getvalue()


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write images at the given paths below a folder; the shade counts up from 0."""

    def write(paths: Iterable[str], folder: str = "set", size: tuple[int, int] = (16, 16)) -> Path:
        made: set[Path] = set()
        for shade, path in enumerate(paths):
            file = tmp_path / folder / path
            if file.parent not in made:
                file.parent.mkdir(parents=True, exist_ok=True)
                made.add(file.parent)
            file.write_bytes(encoded(shade % 256, size))
        return tmp_path / folder

    return write


@pytest.fixture
def make_spec() -> Callable[..., Spec]:
    """Make the facts of a small model."""

    def make(classes: int = 1000, size: int = 16, **changes: object) -> Spec:
        facts: dict[str, object] = {
            "name": "tiny",
            "depth": 1,
            "dim": 4,
            "classes": classes,
            "channels": 3,
            "image_size": (size, size),
            "patch_size": (8, 8),
            "head_width": 4,
            "fingerprint": "0",
            "mean": (0.5, 0.4, 0.3),
            "std": (0.5, 0.25, 0.2),
        }
        return Spec(**(facts | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def imagenet_4k() -> Path:
    """The developers' 4000 validation crops, kept beside the repository and not in it."""
    shared = Path(os.environ.get("FOZO_SHARED", Path(__file__).parents[3] / "shared"))
    folder = shared / "data" / "imagenet-val-4k"
    if not folder.is_dir():
        pytest.skip(f"needs the real images in {folder}; set FOZO_SHARED to the folder that has data/")
    return folder
