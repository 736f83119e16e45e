"""What tests share: the developers' material where present, a small random model, the authors' traces."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

import fozo
from fozo.engines.torch_engine import TorchEngine
from fozo.engines.vit import Architecture, ViT
from fozo.engines.weights import Hints, vit_from_state

REPO = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("FOZO_SHARED", REPO.parent / "shared"))
TINY = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"


def need(path: Path) -> Path:
    """Skip the test, saying why, where developers' material is absent."""
    if not path.exists():
        pytest.skip(f"needs {path.name} of the developers' shared folder, which is not on this machine")
    return path


SMALL = Architecture(image_size=(16, 16), patch_size=(4, 4), channels=3, dim=24, depth=4, heads=3, hidden=48, classes=7)


def random_vit(architecture: Architecture = SMALL, seed: int = 0) -> ViT:
    """A ViT with random weights large enough that every part matters, drawn from a private generator."""
    generator = torch.Generator().manual_seed(seed)
    vit = ViT(architecture).eval().requires_grad_(False)
    for name, tensor in vit.state_dict().items():
        centre = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        tensor.copy_(centre + 0.2 * torch.randn(tensor.shape, generator=generator))
    return vit


def random_images(count: int, seed: int = 0, architecture: Architecture = SMALL) -> np.ndarray:
    shape = (count, architecture.channels, *architecture.image_size)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class Golden:
    """The authors' traces on their tiny ViT, and that ViT as an engine in float64."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with np.load(folder / "model.npz") as model:
            state = {name: torch.from_numpy(model[name]).double() for name in model if name != "__cfg__"}
        self.engine = TorchEngine(vit_from_state(state, Hints(name="golden", heads=4)))
        with np.load(folder / "data.npz") as data:
            self.data = dict(data)
        clean = self.normalise(self.data["source_u8"])
        self.source = fozo.SourceStatistics.collect(self.engine, np.split(clean, 4))

    @staticmethod
    def normalise(pixels: np.ndarray) -> np.ndarray:
        return (pixels.astype(np.float64) / 255 - 0.5) / 0.5

    def trace(self, name: str) -> dict[str, np.ndarray]:
        with np.load(self.folder / f"{name}.npz") as trace:
            return dict(trace)
