"""Small image trees, made on the spot, and specs of small models."""

import io
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fozo.data.images import Pixels, resize_crop
from fozo.types import Spec

Plant = Callable[..., Path]
MakeSpec = Callable[..., Spec]


@cache
def encoded(shade: int, size: tuple[int, int] = (16, 16), format: str = "PNG") -> bytes:
    """A file of one gray, so that an image is recognised by its pixels."""
    stream = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), shade, np.uint8)).save(stream, format)
    return stream.getvalue()


def png(header: bytes, rows: bytes) -> bytes:
    """A file of the IHDR chunk and the rows given, each row after its filter byte."""
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
    made = [
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def plant_noise(root: Path, shapes: Mapping[str, tuple[int, int]], seed: int = 0) -> Path:
    """Write images of random pixels, of the given heights and widths, at paths below a folder."""
    rng = np.random.default_rng(seed)
    for path, shape in shapes.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*shape, 3), np.uint8)).save(root / path)
    return root


@cache
def photograph(size: int) -> Pixels:
    """A real photograph that scikit-image bundles: colours, edges, flat and black parts."""
    return resize_crop(pytest.importorskip("skimage.data").astronaut(), size)


@pytest.fixture
def plant(tmp_path: Path) -> Plant:
    """Write images at the given paths below a folder; the shade counts up from 0."""

    def write(paths: Iterable[str], folder: str = "set", size: tuple[int, int] = (16, 16)) -> Path:
        for shade, path in enumerate(paths):
            file = tmp_path / folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(encoded(shade % 256, size))
        return tmp_path / folder

    return write


@pytest.fixture
def make_spec() -> MakeSpec:
    def make(classes: int = 1000, size: int = 16, **changes: object) -> Spec:
        values: dict[str, object] = {
            "name": "tiny", "depth": 1, "dim": 4, "classes": classes, "channels": 3, "image_size": (size, size),
            "patch_size": (8, 8), "head_width": 4, "fingerprint": "0", "mean": (0.5, 0.4, 0.3), "std": (0.5, 0.25, 0.2),
        }  # fmt: skip
        return Spec(**(values | changes))  # type: ignore[arg-type]

    return make
