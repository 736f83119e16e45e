"""Render ``docs/equaliser.jpg``: what Align's equaliser makes of corrupted photographs before the model sees them.

    python docs/make_equaliser_sheet.py

Needs ``pip install 'fozo[bench]' scikit-image``. Descriptors, clean and of each corruption, are of crops of four
photographs that scikit-image bundles; the one shown is NASA's portrait of Eileen Collins (public domain).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont
from skimage.data import astronaut, chelsea, coffee, rocket

from fozo.core.descriptor import spectra
from fozo.data.corruptions import corrupt
from fozo.data.images import Pixels, resize_crop
from fozo.methods.align import AlignConfig
from fozo.methods.align.equaliser import energy_deficit, equalise

KINDS = ("fog", "contrast", "defocus_blur", "motion_blur", "jpeg_compression", "gaussian_noise")
SIZE, CELL, LABEL, HEADER = 224, 160, 190, 34


def crops() -> list[Pixels]:
    """The whole of each photograph, then its four quarters."""
    found = []
    for photo in (astronaut(), chelsea(), coffee(), rocket()):  # type: ignore[no-untyped-call]
        height, width = photo.shape[0] // 2, photo.shape[1] // 2
        quarters = [photo[y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
        found += [resize_crop(part, SIZE) for part in (photo, *quarters)]
    return found


def normalised(images: list[Pixels]) -> npt.NDArray[np.float32]:
    """As most models read them."""
    return np.asarray(np.stack(images).transpose(0, 3, 1, 2) / np.float32(127.5) - 1, dtype=np.float32)


def main() -> None:
    """Write the sheet beside this file."""
    clean, transform = crops(), spectra(3, SIZE, SIZE)
    descriptors = transform.describe(transform.transform(normalised(clean)))
    mean, std = descriptors.mean(axis=0), descriptors.std(axis=0, ddof=1)
    config = AlignConfig()
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
            standardised = (transform.describe(coefficients) - mean) / std
            domains = config.retrieval.estimate(standardised, np.zeros((0, mean.size)))
            deficit = energy_deficit(transform, domains.distinct(), std)
            better = equalise(transform, coefficients[:1], deficit[:1], config.equaliser_strength)[0]
            cells += [bad[0], ((better.transpose(1, 2, 0) + 1) * 127.5).clip(0, 255).astype(np.uint8)]
        for column, cell in enumerate(cells):
            small = Image.fromarray(cell).resize((CELL - 4, CELL - 4), Image.Resampling.LANCZOS)
            sheet.paste(small, (LABEL + column * CELL + 2, top + 2))
    target = Path(__file__).with_name("equaliser.jpg")
    sheet.save(target, quality=80, optimize=True)
    print(f"{target.name}: {sheet.width} x {sheet.height}, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
