"""What tests share: the developers' material where present, a small random model, the authors' traces."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import fozo
from fozo.engines.base import Floats, Knobs, Move
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


VARIANTS = {
    "plain": SMALL,
    "registers": replace(SMALL, registers=3),
    "pre_norm": replace(SMALL, pre_norm=True),
    "patch_mean": replace(SMALL, pool="cls+mean", registers=1),
    "one_block": replace(SMALL, depth=1),
    "one_block_patch_mean": replace(SMALL, depth=1, pool="cls+mean"),
    "gray_oblong": replace(SMALL, channels=1, image_size=(8, 24), patch_size=(4, 6)),
    "quick_gelu": replace(SMALL, activation="quick_gelu", norm_epsilon=1e-5),
}


def naive(vit: torch.nn.Module, a: Architecture, images: Floats, knobs: Knobs, k: int) -> dict[str, Floats]:
    """One candidate the long way: every token of every block, moves applied as the words say."""
    x = vit.embed(torch.from_numpy(images))  # type: ignore[operator]
    prompts = knobs.prompts
    if prompts is not None:
        x = torch.cat([x[:, :1], torch.from_numpy(prompts[k]).float().expand(len(x), -1, -1), x[:, 1:]], dim=1)
    first = 1 + a.registers + (0 if prompts is None else prompts.shape[1])
    taps: dict[str, list[torch.Tensor]] = {"cls": [], "features": [], "patch_mean": [], "patch_variance": []}
    for layer, block in enumerate(vit.blocks):  # type: ignore[arg-type]
        patches = x[:, first:]
        taps["patch_mean"].append(patches.mean(dim=1))
        taps["patch_variance"].append(patches.var(dim=1, correction=0))
        for move, tokens in ((knobs.cls, slice(0, 1)), (knobs.patches, slice(first, None))):
            if move is not None:
                scale, shift = (
                    torch.from_numpy(part[k if len(part) > 1 else 0])[:, layer, None]
                    for part in (move.scale, move.shift)
                )
                x[:, tokens] = x[:, tokens] * scale.float() + shift.float()
        if layer:
            taps["features"].append(block.norm1(x[:, 0]))
        x = block(x)
        taps["cls"].append(x[:, 0].clone())
    x = vit.norm(x)  # type: ignore[operator]
    taps["features"].append(x[:, 0])
    pooled = x[:, 0] if a.pool == "cls" else torch.cat([x[:, 0], x[:, first:].mean(dim=1)], dim=-1)
    return {name: torch.stack(parts, dim=1).numpy() for name, parts in taps.items()} | {"pooled": pooled.numpy()}


KNOBS = ("none", "prompts", "no_prompts", "shared_moves", "moves", "everything")


def random_knobs(a: Architecture, k: int, batch: int, kind: str) -> Knobs:
    """Knobs of one kind of :data:`KNOBS`, for k candidates."""
    rng = np.random.default_rng(5)

    def move(candidates: int, images: int) -> Move:
        shape = (candidates, images, a.depth, a.dim)
        return Move(1 + 0.2 * rng.standard_normal(shape), 0.2 * rng.standard_normal(shape))

    prompts = rng.standard_normal((k, 2, a.dim))
    return {
        "none": Knobs(),
        "prompts": Knobs(prompts=prompts),
        "no_prompts": Knobs(prompts=prompts[:, :0]),
        "shared_moves": Knobs(prompts=prompts, cls=move(1, 1), patches=move(1, batch)),
        "moves": Knobs(cls=move(k, 1), patches=move(k, batch)),
        "everything": Knobs(prompts=prompts, cls=move(k, batch), patches=move(1, 1)),
    }[kind]


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
