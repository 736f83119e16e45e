"""Render what Align's equaliser makes of corrupted photographs before the model sees them.

    python docs/make_equaliser_sheet.py

``docs/equaliser.jpg`` has six corruptions at two severities, as Align restores them for a ViT;
``docs/before_after.jpg`` three of them at the higher one, as ``equalise`` does for any other model.

Needs ``pip install 'fozo[bench]' scikit-image``. Descriptors, clean and of each corruption, are of crops of four
photographs that scikit-image bundles; the one shown is NASA's portrait of Eileen Collins (public domain).
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from skimage.data import astronaut, chelsea, coffee, rocket

import fozo
from fozo.data.corruptions import corrupt
from fozo.data.images import Pixels, resize_crop
from fozo.engines.blackbox import black_box

KINDS = ("fog", "contrast", "defocus_blur", "motion_blur", "jpeg_compression", "gaussian_noise")
STRIP = ("fog", "contrast", "gaussian_noise")
SIZE, CELL, LABEL, HEADER = 224, 160, 190, 34


def crops() -> list[Pixels]:
    """The whole of each photograph, then its four quarters."""
    found = []
    for photo in (astronaut(), chelsea(), coffee(), rocket()):  # type: ignore[no-untyped-call]
        height, width = photo.shape[0] // 2, photo.shape[1] // 2
        quarters = [photo[y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
        found += [resize_crop(part, SIZE) for part in (photo, *quarters)]
    return found


def pixels(images: list[Pixels]) -> npt.NDArray[np.float32]:
    return np.asarray(np.stack(images).transpose(0, 3, 1, 2) / np.float32(255), dtype=np.float32)


class Equaliser:
    """Calibrated on the clean crops."""

    def __init__(self) -> None:
        self.clean = crops()
        self.engine = black_box(lambda images: images, name="sheet", image_size=SIZE, mean=0.0, std=1.0)
        self.source = fozo.calibrate(self.engine, [pixels(self.clean)])

    def before_and_after(self, kind: str, severity: int, profile: str) -> tuple[Pixels, Pixels]:
        """The first photograph under a corruption, and what the model gets to see of it."""
        bad = [corrupt(image, kind, severity, seed=2, image_id=str(i)) for i, image in enumerate(self.clean)]
        better = fozo.create("equalise", self.engine, self.source, profile=profile)(pixels(bad))[0]
        return bad[0], np.rint(255 * np.asarray(better).transpose(1, 2, 0)).astype(np.uint8)


def save(sheet: Image.Image, name: str) -> None:
    """Write a picture beside this file."""
    target = Path(__file__).with_name(name)
    sheet.save(target, quality=80, optimize=True)
    print(f"{target.name}: {sheet.width} x {sheet.height}, {target.stat().st_size / 1e6:.2f} MB")


def whole_sheet(equaliser: Equaliser) -> Image.Image:
    """Every corruption in a row, at two severities."""
    sheet = Image.new("RGB", (LABEL + 4 * CELL, HEADER + len(KINDS) * CELL), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(17)
    for column, title in enumerate(["severity 3", "equalised", "severity 5", "equalised"]):
        draw.text((LABEL + (column + 0.5) * CELL, HEADER / 2), title, "black", font, anchor="mm")
    for row, kind in enumerate(KINDS):
        top = HEADER + row * CELL
        draw.text((LABEL - 12, top + CELL / 2), kind.replace("_", " "), "black", font, anchor="rm")
        cells = [cell for severity in (3, 5) for cell in equaliser.before_and_after(kind, severity, "tokens")]
        for column, cell in enumerate(cells):
            small = Image.fromarray(cell).resize((CELL - 4, CELL - 4), Image.Resampling.LANCZOS)
            sheet.paste(small, (LABEL + column * CELL + 2, top + 2))
    return sheet


def strip(equaliser: Equaliser) -> Image.Image:
    """What the camera gives above, what the model gets below; titles are in the pictures, to be read on a phone."""
    sheet = Image.new("RGB", (3 * SIZE, 2 * SIZE), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(20)
    for column, kind in enumerate(STRIP):
        for row, cell in enumerate(equaliser.before_and_after(kind, 5, "detector")):
            small = Image.fromarray(cell).resize((SIZE - 6, SIZE - 6), Image.Resampling.LANCZOS)
            corner = (column * SIZE + 3, row * SIZE + 3)
            sheet.paste(small, corner)
            title = ["camera: " + kind.replace("_", " "), "what the model gets"][row]
            place = (corner[0] + 8, corner[1] + SIZE - 14)
            draw.text(place, title, "white", font, anchor="ls", stroke_width=2, stroke_fill="black")
    return sheet


def main() -> None:
    """Write both."""
    equaliser = Equaliser()
    save(whole_sheet(equaliser), "equaliser.jpg")
    save(strip(equaliser), "before_after.jpg")


if __name__ == "__main__":
    main()
