"""Adapt a ViT of timm behind an ordinary DataLoader, beside the same model unadapted.

    python examples/timm_vit.py CLEAN LIVE [vit_base_patch16_224.augreg2_in21k_ft_in1k]

CLEAN holds a few dozen images from when all was well, LIVE those to predict, both in any sub-folders. timm fetches the
weights the first time. Mean, std and size come from timm; the DataLoader is the one that you have already.
"""

import sys
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset

import fozo

MODEL = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


class Photos(Dataset[torch.Tensor]):
    """All JPEGs and PNGs below a folder, prepared as timm says."""

    def __init__(self, folder: str, model: torch.nn.Module) -> None:
        self.paths = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg", ".png"))
        data: Any = timm.data  # which tells no types
        self.transform = data.create_transform(**data.resolve_model_data_config(model))

    def __len__(self) -> int:
        """Count them."""
        return len(self.paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        """Read one."""
        image: torch.Tensor = self.transform(Image.open(self.paths[index]).convert("RGB"))
        return image


def main(clean: str, live: str, name: str = MODEL) -> None:
    """Calibrate, then adapt and predict batch by batch."""
    model = timm.create_model(name, pretrained=True).eval()
    adapter = fozo.adapter(model, DataLoader(Photos(clean, model), batch_size=32))
    print(adapter)
    changed = seen = 0
    for batch in DataLoader(Photos(live, model), batch_size=32):
        with torch.inference_mode():
            plain = model(batch).argmax(dim=1)
        adapted = adapter(batch).argmax(dim=1)  # one forward pass, and the model stays as it is
        changed, seen = changed + int((adapted != plain).sum()), seen + len(batch)
        print(
            f"{seen} images, shift {adapter.metrics()['shift']:.2f}, {changed} predictions differ from the model's own"
        )
    adapter.save("adapter.state")  # adapter.restore("adapter.state") goes on from here


if __name__ == "__main__":
    if not 3 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    main(*sys.argv[1:])
