"""Adapt an image classifier of transformers, with its own processor and its own names of classes.

    python examples/transformers_vit.py google/vit-base-patch16-224 CLEAN LIVE

The first is a folder that ``save_pretrained`` wrote, or a name that transformers fetches. CLEAN holds a few dozen
images from when all was well, LIVE those to predict.
"""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

import fozo


def photos(folder: str) -> Iterator[tuple[str, Image.Image]]:
    """Names and images of a folder."""
    for path in sorted(Path(folder).rglob("*")):
        if path.suffix.lower() in (".jpg", ".jpeg", ".png"):
            yield path.name, Image.open(path).convert("RGB")


def main(model_name: str, clean: str, live: str) -> None:
    """Calibrate, then adapt and name what is seen."""
    processor: Any = AutoImageProcessor.from_pretrained(model_name)  # type: ignore[no-untyped-call]
    model: Any = AutoModelForImageClassification.from_pretrained(model_name).eval()

    def batches(folder: str) -> Iterator[tuple[list[str], Any]]:
        found = photos(folder)
        while some := list(islice(found, 16)):
            yield [name for name, _ in some], processor(images=[image for _, image in some], return_tensors="pt")

    adapter = fozo.adapter(model, (prepared for _, prepared in batches(clean)))
    for names, prepared in batches(live):
        logits = adapter(prepared)  # {"pixel_values": ...} as the processor made it
        for name, label in zip(names, adapter.names(logits), strict=True):
            print(f"{name}: {label}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
