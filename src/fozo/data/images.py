"""Reading one image file, and its size.

What comes out is always ``uint8 [height, width, 3]``, or a :class:`FozoError` naming the file:

==================================  ==================================================================
file                                answer
==================================  ==================================================================
missing, empty, truncated, no image error
FIFO, device, folder                error, without waiting for it
other than the seven FORMATS        error, whatever the file is called: no decoder but theirs is ever started
huge (decompression bomb)           error above 67 million pixels or 512 MiB, before anything is decoded
long and thin                       error above 100 times as long as wide: resized, it would be huge
grayscale, bilevel                  repeated into three channels
palette                             looked up
CMYK, YCbCr, HSV                    converted by Pillow, without a colour profile
alpha                               dropped: the stored colours are kept, nothing is composited
16-bit grayscale                    scaled by 1/257 and rounded, so that 65535 becomes 255
16-bit colour                       the high byte, as Pillow reads it
32-bit float, integers over 65535   error: their range is not known
EXIF orientation                    ignored
animated, several pages             the first frame
==================================  ==================================================================

Alpha, orientation and colour profiles are treated as torchvision's ``ImageFolder`` treats them, because
published accuracies were measured on images that were read that way.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import numpy as np
import numpy.typing as npt
from PIL import Image, UnidentifiedImageError

from fozo.errors import FozoError
from fozo.io import open_regular, unreadable

Pixels = npt.NDArray[np.uint8]

EXTENSIONS = (
    ".bmp",
    ".gif",
    ".jpeg",
    ".jpg",
    ".pgm",
    ".png",
    ".ppm",
    ".tif",
    ".tiff",
    ".webp",
)  # files that a folder's listing shows
# What is decoded, whatever a file is called; Pillow's other formats include programs (PostScript).
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 1 << 26  # an image, stored or resized, has at most: more than usual cameras, 500 MB while decoding
MAX_ASPECT = 100  # how many times as long as wide an image may be
MAX_BYTES = 512 << 20  # an image's file has at most
STRIP = 1 << 22  # pixels converted at a time, so that a large image is in memory twice and not six times

RESIZE_RATIO = 256 / 224  # ImageNet's evaluation recipe is Resize(256) + CenterCrop(224); other sizes keep its ratio


def read_image(source: str | os.PathLike[str] | bytes, name: str | None = None) -> Pixels:
    """Decode a file, or the bytes of one, to ``uint8 [height, width, 3]``; errors call it ``name``, or by its path."""
    with _opened(source, name) as (image, called):
        return _to_rgb(image, called)


def header_size(source: str | os.PathLike[str] | bytes, name: str | None = None) -> tuple[int, int]:
    """Read height and width without decoding the pixels; an image too large to be decoded is refused."""
    with _opened(source, name) as (image, _):
        return image.height, image.width


@contextmanager
def _opened(source: str | os.PathLike[str] | bytes, name: str | None) -> Iterator[tuple[Image.Image, str]]:
    """Open an image of bearable size, with what to call it; whatever goes wrong is a :class:`FozoError`."""
    name = name or ("the image" if isinstance(source, bytes) else os.fspath(source))
    with io.BytesIO(source) if isinstance(source, bytes) else open_regular(source) as file:
        length = file.seek(0, os.SEEK_END)
        file.seek(0)
        if not 0 < length <= MAX_BYTES:
            fault = "is an empty file (0 bytes)" if not length else f"is longer than {MAX_BYTES >> 20} MiB"
            raise FozoError(f"{name} {fault}; replace it or remove it")
        with unreadable(f"{name} is damaged or truncated", "replace it or remove it"):
            try:
                with Image.open(file, formats=FORMATS) as image:
                    _refuse_huge(image, name)
                    yield image, name
            except UnidentifiedImageError as error:
                known = f"an image that fozo reads ({', '.join(FORMATS)})"
                raise FozoError(f"{name} is not {known}, or damaged; replace it or remove it") from error
            except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
                raise FozoError(_huge(name)) from error


def _huge(name: str) -> str:
    limit = MAX_PIXELS // 1_000_000
    return f"{name} has more than {limit} million pixels, which may be a decompression bomb; shrink it first"


def _refuse_huge(image: Image.Image, name: str) -> None:
    width, height = image.size
    # A TIFF is decoded by the tile, whose size is its own and may be anything; the others have none.
    tile = [side for tag in (322, 323) if isinstance(side := getattr(image, "tag_v2", {}).get(tag), int)]
    if width * height > MAX_PIXELS or prod(tile) > MAX_PIXELS:
        raise FozoError(_huge(name))
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise FozoError(
            f"{name} is {width}x{height} px, more than {MAX_ASPECT} times as long as wide; crop it or remove it"
        )


def picture_pixels(image: Image.Image, name: str) -> Pixels:
    """Convert an open PIL image; ``name`` is what to call it in an error."""
    _refuse_huge(image, name)
    with unreadable(f"{name} is damaged or truncated", "leave it out"):  # Pillow decodes when it is asked for pixels
        return _to_rgb(image, name)


def _to_rgb(image: Image.Image, name: str) -> Pixels:
    pixels = np.empty((image.height, image.width, 3), np.uint8)
    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        if not strip.mode.startswith(("F", "I")):
            pixels[top : top + rows] = np.asarray(strip.convert("RGB"))
            continue
        deep = np.asarray(strip)
        # Pillow opens every 16-bit grayscale format as "I" or "I;16" with the full 0..65535 range.
        if strip.mode == "F" or deep.min() < 0 or deep.max() > 65535:
            raise FozoError(f"{name} has pixels of unknown range (mode {strip.mode}); save it with 8 or 16 bits")
        # Pillow's own conversion would clip at 255 and so make nearly every pixel white.
        pixels[top : top + rows] = ((deep[..., None].astype(np.uint32) + 128) // 257).astype(np.uint8)
    return pixels


Size = int | tuple[int, int]  # the side of a square, or height and width


def sides(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def resize_crop(image: Pixels, size: Size, resize: Size | None = None) -> Pixels:
    """Shrink or enlarge an image until it just covers ``resize`` (bilinear, antialiased), and cut out the middle.

    For squares these are the same pixels as torchvision's ``Resize(resize)`` + ``CenterCrop(size)`` on a PIL image.
    ``resize`` is ImageNet's 256/224 of ``size`` by default.
    """
    tall, broad = sides(size)
    resize = (covered(tall), covered(broad)) if resize is None else resize
    cover_tall, cover_broad = sides(resize)
    if min(tall, broad) < 1 or cover_tall < tall or cover_broad < broad:
        raise FozoError(f"cannot crop {size} px out of a side of {resize} px; give 1 <= size <= resize")
    height, width = image.shape[:2]
    # Integer arithmetic, rounded down: torchvision's rule for the longer side.
    if cover_broad * height >= cover_tall * width:
        wide = cover_broad
        high = int(cover_broad * height / width)
    else:
        wide = int(cover_tall * width / height)
        high = cover_tall
    if wide * high > MAX_PIXELS:
        limit = f"{MAX_PIXELS // 1_000_000} million pixels; crop it, or choose a smaller size than {size}"
        raise FozoError(f"an image of {width}x{height} px would be resized to {wide}x{high}, over {limit}")
    picture = Image.fromarray(image).resize((wide, high), Image.Resampling.BILINEAR)
    left = round((wide - broad) / 2)
    top = round((high - tall) / 2)
    return np.array(picture.crop((left, top, left + broad, top + tall)))


def covered(side: int) -> int:
    return round(side * RESIZE_RATIO)


def fit(image: Pixels, size: Size, resize: Size | None = None) -> Pixels:
    """Bring a ready-made crop to a size: one that has it stays as it is, for cropping it again would zoom into it."""
    return image if image.shape[:2] == sides(size) else resize_crop(image, size, resize)


def luminance(image: Pixels) -> Pixels:
    """``[height, width, 3]`` to gray ``[height, width, 1]``, for models of one channel; what is gray stays exact."""
    return np.array(Image.fromarray(image).convert("L"))[..., None]
