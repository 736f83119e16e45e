"""Render ``docs/corruptions.jpg``: every corruption at every severity, on one photograph.

    python docs/make_contact_sheet.py

Needs ``pip install 'fozo[bench]'``. The photograph is NASA's portrait of Eileen Collins (public domain),
which scikit-image bundles. The frost row shows the published photographs if ``imagecorruptions`` is
installed, else the drawn textures; the label says which.
"""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont
from skimage.data import astronaut

from fozo.data.corruptions import EXTRA_KINDS, KINDS, corrupt, frost_source
from fozo.data.images import resize_crop

CELL = 160  # corrupted at 224 px, shown smaller
LABEL = 190
HEADER = 34


def main() -> None:
    """Write the sheet beside this file."""
    image = resize_crop(astronaut(), 224)  # type: ignore[no-untyped-call]
    kinds = KINDS + EXTRA_KINDS
    sheet = Image.new("RGB", (LABEL + 6 * CELL, HEADER + len(kinds) * CELL), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(17)
    for column, title in enumerate(["clean", *(f"severity {s}" for s in range(1, 6))]):
        draw.text((LABEL + (column + 0.5) * CELL, HEADER / 2), title, "black", font, anchor="mm")
    for row, kind in enumerate(kinds):
        top = HEADER + row * CELL
        label = kind.replace("_", " ")
        if kind == "frost":
            label += "\n(photographs)" if frost_source() == "imagecorruptions" else "\n(drawn)"
        if kind in EXTRA_KINDS:
            label += "\n(extra)"
        draw.text((LABEL - 12, top + CELL / 2), label, "black", font, anchor="rm", align="right")
        cells = [image, *(corrupt(image, kind, s, seed=2) for s in range(1, 6))]
        for column, cell in enumerate(cells):
            small = Image.fromarray(cell).resize((CELL - 4, CELL - 4), Image.Resampling.LANCZOS)
            sheet.paste(small, (LABEL + column * CELL + 2, top + 2))
    target = Path(__file__).with_name("corruptions.jpg")
    sheet.save(target, quality=80, optimize=True)
    print(f"{target.name}: {sheet.width} x {sheet.height}, {target.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
