"""Images and sets made to do harm: small files that would be huge, special files, names in no encoding."""

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fozo.data.images import MAX_PIXELS, header_size, read_image, resize_crop
from fozo.data.sets import open_images
from tests.data.conftest import png
from tests.refusals import refuses


def black(width: int, height: int) -> bytes:
    """A picture of any size, as a file of hardly any."""
    return png(struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0), bytes((1 + (width + 7) // 8) * height))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """The test must not allocate much from Python or NumPy."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


@pytest.mark.parametrize("size", [(1, 60000), (60000, 1), (1, 1_000_000), (13300, 13300), (4, 401)])
@pytest.mark.usefixtures("little_memory")
def test_small_files_of_huge_images_are_refused_by_their_header(size: tuple[int, int]) -> None:
    data = black(*size)
    for read in (read_image, header_size):
        refuses(r"million pixels|times as long as wide", read, data, "a.png")


@pytest.mark.usefixtures("little_memory")
def test_a_tile_may_not_be_larger_than_an_image() -> None:
    """Width, height, bits, LZW, black is zero; then the size of a tile, where it begins, and its length."""
    tags = {256: 8, 257: 8, 258: 8, 259: 5, 262: 1, 322: 60000, 323: 60000, 324: 0, 325: 64}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    data = b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4 + 64)
    refuses("million pixels", read_image, data, "a.tif")


@pytest.mark.usefixtures("little_memory")
def test_what_resizing_makes_is_bounded_too() -> None:
    refuses(
        r"would be resized to .* million pixels; crop it, or choose a smaller size",
        resize_crop,
        np.zeros((1, 60000, 3), np.uint8),
        224,
    )
    refuses("smaller size than 1000000", resize_crop, np.zeros((8, 8, 3), np.uint8), 1_000_000)
    assert resize_crop(np.zeros((1, 100, 3), np.uint8), 224).shape == (224, 224, 3)
    assert MAX_PIXELS >= 256 * 25600


def test_only_our_formats_are_ever_decoded() -> None:
    """PostScript in a .jpg would start Ghostscript; no such decoder may even be asked."""
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
    for read in (read_image, header_size):
        refuses(r"b\.jpg is not an image that fozo reads \(BMP, GIF, JPEG", read, script, "b.jpg")
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "PCX")
    refuses("is not an image that fozo reads", read_image, stream.getvalue())


@pytest.mark.usefixtures("little_memory")
def test_a_set_of_zeros_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, labels=np.zeros(1_000_000, np.int8), classes=np.array(["a"]))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as file, file.open("images.npy", "w") as stream:
        header = {"descr": "|u1", "fortran_order": False, "shape": (1_000_000, 10, 10)}
        np.lib.format.write_array_header_1_0(stream, header)
        for _ in range(100):
            stream.write(bytes(1_000_000))
    refuses("would unpack to 96 MiB", open_images, path)


def test_folders_nested_by_the_hundred_are_a_sentence(tmp_path: Path) -> None:
    tmp_path.joinpath("set", *"a" * 150).mkdir(parents=True)
    refuses("nested by the hundred", open_images, tmp_path / "set", "folder")
