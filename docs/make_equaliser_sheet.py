"""Render ``docs/equaliser.jpg``: what FOZO's equaliser makes of corrupted photographs before the model sees them.

    python docs/make_equaliser_sheet.py

Needs ``pip install 'fozo[bench]'``. Clean looks, and those of each corruption, are of crops of four photographs that
scikit-image bundles; the one shown is NASA's portrait of Eileen Collins (public domain).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from skimage.data import astronaut, chelsea, coffee, rocket

from fozo.core.equaliser import equalise, missing
from fozo.core.look import spectra
from fozo.core.recall import Rule
from fozo.data.corruptions import corrupt
from fozo.data.images import resize_crop
from fozo.methods.aligned_fozo import Options

KINDS = ("fog", "contrast", "defocus_blur", "motion_blur", "jpeg_compression", "gaussian_noise")
SIZE, CELL, LABEL, HEADER = 224, 160, 190, 34


def crops() -> list[np.ndarray]:
    """The whole of each photograph, then its four quarters."""
    found = []
    for photo in (astronaut(), chelsea(), coffee(), rocket()):  # type: ignore[no-untyped-call]
        height, width = photo.shape[0] // 2, photo.shape[1] // 2
        quarters = [photo[y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
        found += [resize_crop(part, SIZE) for part in (photo, *quarters)]
    return found


def normalised(images: list[np.ndarray]) -> np.ndarray:
    """As most models read them."""
    return (np.stack(images).astype(np.float32) / 127.5 - 1).transpose(0, 3, 1, 2)


def main() -> None:
    """Write the sheet beside this file."""
    clean, transform = crops(), spectra(3, SIZE, SIZE)
    looks = transform.look(transform.transform(normalised(clean)))
    mean, spread = looks.mean(axis=0), looks.std(axis=0, ddof=1)
    sheet = Image.new("RGB", (LABEL + 4 * CELL, HEADER + len(KINDS) * CELL), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(17)
    for column, title in enumerate(["severity 3", "equalised", "severity 5", "equalised"]):
        draw.text((LABEL + (column + 0.5) * CELL, HEADER / 2), title, "black", font, anchor="mm")
    for row, kind in enumerate(KINDS):
        top = HEADER + row * CELL
        draw.text((LABEL - 12, top + CELL / 2), kind.replace("_", " "), "black", font, anchor="rm")
        cells = []
        for severity in (3, 5):
            bad = [corrupt(image, kind, severity, seed=2, image_id=str(i)) for i, image in enumerate(clean)]
            coefficients = transform.transform(normalised(bad))
            keys = Rule().keys((transform.look(coefficients) - mean) / spread, np.zeros((0, mean.size)))
            lacking = missing(transform, keys.distinct(), spread)
            better = equalise(transform, coefficients[:1], lacking[:1], Options().detail)[0]
            cells += [bad[0], ((better.transpose(1, 2, 0) + 1) * 127.5).clip(0, 255).astype(np.uint8)]
        for column, cell in enumerate(cells):
            small = Image.fromarray(cell).resize((CELL - 4, CELL - 4), Image.Resampling.LANCZOS)
            sheet.paste(small, (LABEL + column * CELL + 2, top + 2))
    target = Path(__file__).with_name("equaliser.jpg")
    sheet.save(target, quality=80, optimize=True)
    print(f"{target.name}: {sheet.width} x {sheet.height}, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
