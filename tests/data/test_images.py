"""Every odd image file has one defined answer."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from fozo.data.images import fit, read_image, resize_crop
from tests.data.conftest import png
from tests.refusals import refuses


def picture(height: int = 40, width: int = 60) -> npt.NDArray[np.uint8]:
    """A smooth colour gradient, so that a lossy format changes it little."""
    y, x = np.mgrid[:height, :width]
    return np.stack([x * 4 % 256, y * 6 % 256, (x + y) * 2 % 256], axis=2).astype(np.uint8)


def encoded(image: Image.Image, fmt: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, fmt, **options)
    return stream.getvalue()


def test_path_and_bytes_give_the_same_pixels(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encoded(Image.fromarray(picture()), "PNG"))
    np.testing.assert_array_equal(read_image(path), picture())
    np.testing.assert_array_equal(read_image(str(path)), picture())
    np.testing.assert_array_equal(read_image(path.read_bytes(), "a.png"), picture())


@pytest.mark.parametrize("fmt", ["JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP"])
def test_a_truncated_file_is_named(fmt: str) -> None:
    whole = encoded(Image.fromarray(picture(200, 200)), fmt)
    for length in (1, 30, len(whole) // 3, *([len(whole) // 2, len(whole) * 9 // 10] if fmt == "JPEG" else [])):
        refuses("the-name", read_image, whole[:length], "the-name")


def test_what_is_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "zero.jpg"
    path.touch()
    bomb = b"P6 20000 20000 255\n" + bytes(1000)
    flat = [Image.fromarray(np.full((8, 8), value)) for value in (np.float32(0.5), np.int32(70000))]
    cases: list[tuple[Any, str]] = [
        (path, r"zero\.jpg is an empty file"),
        (b"", "b is an empty file"),
        (b"just some words" * 20, "b is not an image"),
        (tmp_path / "none.png", "check the path"),
        (tmp_path, "folder"),
        (bomb, r"b has more than 67 million pixels"),
        *((encoded(image, "TIFF"), "unknown range") for image in flat),
    ]
    for source, words in cases:
        refuses(words, read_image, source, "b" if isinstance(source, bytes) else None)


def test_grayscale_and_bilevel_are_repeated() -> None:
    gray = picture()[..., 0]
    expected = np.repeat(gray[..., None], 3, axis=2)
    np.testing.assert_array_equal(read_image(encoded(Image.fromarray(gray), "PNG")), expected)
    bits = Image.fromarray(gray > 100)
    np.testing.assert_array_equal(read_image(encoded(bits, "PNG")), (expected > 100) * np.uint8(255))


def test_cmyk_jpeg_has_the_colours_of_the_picture() -> None:
    flat = Image.new("RGB", (32, 32), (200, 30, 60))
    pixels = read_image(encoded(flat.convert("CMYK"), "JPEG", quality=95))
    assert pixels.shape == (32, 32, 3)
    np.testing.assert_allclose(pixels.mean(axis=(0, 1)), (200, 30, 60), atol=3)


@pytest.mark.parametrize("fmt", ["PNG", "TIFF"])
def test_16_bit_grayscale_keeps_its_range(fmt: str) -> None:
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16)
    pixels = read_image(encoded(Image.fromarray(levels * np.uint16(257)), fmt))
    np.testing.assert_array_equal(pixels, np.repeat(levels[..., None], 3, axis=2))


def test_16_bit_colour_gives_the_high_bytes_and_a_deep_pgm_keeps_its_range() -> None:
    levels = (np.arange(48).reshape(4, 4, 3) * 1300 + 7).astype(">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in levels)
    header = struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0)
    np.testing.assert_array_equal(read_image(png(header, rows)), levels >> 8)
    deep = np.arange(256, dtype=">u2").reshape(16, 16) * np.uint16(257)
    pixels = read_image(b"P5 16 16 65535\n" + deep.astype(">u2").tobytes())
    np.testing.assert_array_equal(pixels[..., 0].ravel(), np.arange(256))


def test_palette_alpha_and_orientation() -> None:
    palette = Image.fromarray(picture()).quantize(64)
    expected = np.array(palette.convert("RGB"))
    np.testing.assert_array_equal(read_image(encoded(palette, "PNG")), expected)
    np.testing.assert_array_equal(read_image(encoded(palette, "PNG", transparency=0)), expected)
    rgba = np.dstack([picture(), np.zeros((40, 60), np.uint8)])  # alpha is dropped, nothing composited
    np.testing.assert_array_equal(read_image(encoded(Image.fromarray(rgba), "PNG")), picture())
    exif = Image.Exif()
    exif[0x0112] = 6
    assert read_image(encoded(Image.fromarray(picture(40, 60)), "JPEG", exif=exif)).shape == (40, 60, 3)


@pytest.mark.parametrize("fmt", ["GIF", "PNG", "WEBP", "TIFF"])
def test_animated_file_gives_its_first_frame(fmt: str) -> None:
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "lime", "blue")]
    options = {"lossless": True} if fmt == "WEBP" else {}
    pixels = read_image(encoded(frames[0], fmt, save_all=True, append_images=frames[1:], **options))
    assert (pixels == (255, 0, 0)).all()


@given(st.integers(8, 90), st.integers(8, 90), st.sampled_from([(32, None), (32, 32), (17, 40), (8, 9)]))
@settings(max_examples=60, deadline=None)
def test_resize_crop_follows_torchvisions_rule(height: int, width: int, sizes: tuple[int, int | None]) -> None:
    size, resize = sizes
    image = np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, 3), np.uint8)
    np.testing.assert_array_equal(resize_crop(image, size, resize), torchvisions_rule(image, size, resize))


def torchvisions_rule(image: npt.NDArray[np.uint8], size: int, resize: int | None) -> npt.NDArray[np.uint8]:
    """Resize(resize) + CenterCrop(size) as torchvision documents it, written out for each orientation.

    torchvision itself is not imported: its wheels break whenever they do not match torch's build.
    """
    short = resize or {32: 37, 17: 19, 8: 9}[size]
    height, width = image.shape[:2]
    portrait = (short, int(short * height / width))
    landscape = (int(short * width / height), short)
    target = portrait if width <= height else landscape
    resized = np.array(Image.fromarray(image).resize(target, Image.Resampling.BILINEAR))
    top, left = round((target[1] - size) / 2), round((target[0] - size) / 2)
    return resized[top : top + size, left : left + size]


def test_a_crop_that_fits_stays_and_one_larger_than_the_image_is_refused() -> None:
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    np.testing.assert_array_equal(resize_crop(image, 40, 40), image)
    assert fit(image, 40) is image
    np.testing.assert_array_equal(fit(image, 32), resize_crop(image, 32))
    assert not np.array_equal(resize_crop(image, 40), image)  # what fit is there to avoid
    refuses("cannot crop 224 px out of a side of 200 px", resize_crop, picture(), 224, 200)


@pytest.mark.parametrize("shape", [(40, 50, 3), (50, 40, 3), (30, 90, 3)])
@pytest.mark.parametrize("size", [(12, 20), (20, 12)])
def test_an_oblong_is_covered_and_cut_from_the_middle(shape: tuple[int, ...], size: tuple[int, int]) -> None:
    high, wide = np.meshgrid(np.linspace(0, 255, shape[0]), np.linspace(0, 255, shape[1]), indexing="ij")
    image = np.stack([high, wide, 0 * wide], axis=2).astype(np.uint8)
    cut = resize_crop(image, size, size)
    assert cut.shape == (*size, 3)
    # The middle stays in the middle, one side is seen from end to end, and pixels stay square.
    assert abs(float(cut[..., 0].mean()) - 127) < 6 and abs(float(cut[..., 1].mean()) - 127) < 6
    spans = [float(np.ptp(cut[..., axis].astype(float))) / 255 for axis in (0, 1)]
    assert max(spans) > 0.88
    scale = [size[axis] / (spans[axis] * shape[axis]) for axis in (0, 1)]
    assert scale[0] == pytest.approx(scale[1], rel=0.15)
