"""The readers of images and of image sets that ``python -m tests.fuzz`` tries."""

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from fozo.data.images import read_image, resize_crop
from fozo.data.sets import open_images
from tests.fuzz import Parts, Reader
from tests.fuzz_readers import READERS, joined, members, reader, zipped

__all__ = ["READERS"]


def use(path: Path) -> None:
    images = open_images(path)
    for index in {0, len(images) - 1}:
        resize_crop(images.read(index, images.domains[-1]), 32)
    assert len(images.fingerprint) == 16


@reader
def arrays(folder: Path) -> Reader:
    path = folder / "set.npz"
    np.savez(path, images=np.zeros((5, 8, 8), np.uint8), labels=np.arange(5), classes=list("abcde"))
    gray = members(path)
    np.savez(path, images=np.zeros((2, 8, 8, 3), np.uint8), labels=np.arange(2, dtype=np.uint8), classes=["a", "bcd"])

    def build(parts: Parts) -> bytes:
        return zipped(parts, zipfile.ZIP_DEFLATED)

    return Reader(use, [gray, members(path)], build, "set.npz")


def png_chunks(data: bytes) -> Parts:
    parts, place = [data[:8]], 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        parts.append(data[place + 4 : place + 8 + length])
        place += 12 + length
    return parts


def png(parts: Parts) -> bytes:
    """Give every chunk its length and checksum."""
    chunks = [struct.pack(">I", max(0, len(p) - 4)) + p + struct.pack(">I", zlib.crc32(p)) for p in parts[1:]]
    return joined([parts[0], *chunks]) if parts[0][:4] == b"\x89PNG" else joined(parts)


@reader
def image(folder: Path) -> Reader:
    y, x = np.mgrid[:40, :60]
    picture = Image.fromarray(np.stack([x * 4, y * 6, x + y], axis=2).astype(np.uint8))
    formats = {"JPEG": {}, "BMP": {}, "GIF": {}, "PPM": {}, "WEBP": {}, "TIFF": {"compression": "tiff_lzw"}}
    whole: list[Parts] = []
    for mode in ("RGB", "L", "P", "RGBA", "1", "I;16"):
        deep = Image.fromarray((x * y).astype(np.uint16)) if mode == "I;16" else picture.convert(mode)
        deep.save(stream := io.BytesIO(), "PNG")
        whole.append(png_chunks(stream.getvalue()))
    for format, options in formats.items():
        picture.save(stream := io.BytesIO(), format, **options)
        whole.append([stream.getvalue()[:32], stream.getvalue()[32:]])
    whole[-1] += [b"tail"]
    picture.save(stream := io.BytesIO(), "JPEG", progressive=True, exif=b"Exif\0\0II*\0" + bytes(40))
    whole.append([stream.getvalue()[:200], stream.getvalue()[200:]])

    def read(path: Path) -> None:
        pixels = read_image(path)
        assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3
        assert resize_crop(pixels, 64).shape == (64, 64, 3)

    return Reader(read, whole, png, "image.png", memory=1200 << 20)
