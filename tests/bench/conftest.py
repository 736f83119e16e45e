"""A tiny model in a file and a few images on disk: what the benchmark runs on in seconds."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from fozo.bench.resources import Paths
from fozo.models.vit import Architecture
from tests.helpers import random_vit

TINY = Architecture(
    image_size=(32, 32), patch_size=(8, 8), channels=3, dim=64, depth=3, heads=1, hidden=64, classes=6
)  # fmt: skip


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights under a name that tells the normalisation, as published files have."""
    path = tmp_path_factory.mktemp("weights") / "vit_tiny_patch8_32.augreg_random.safetensors"
    save_file(random_vit(TINY, seed=5).state_dict(), path)
    return path


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images of 6 classes, each class with its own colour."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for label in range(6):
        folder = root / f"class{label}"
        folder.mkdir()
        for number in range(10):
            pixels = generator.integers(0, 120, (32, 32, 3)) + generator.integers(0, 20, 3) + 20 * label
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"image{number}.png")
    return root


@pytest.fixture
def paths(photos: Path) -> Paths:
    return Paths({"imagenet": str(photos)})
