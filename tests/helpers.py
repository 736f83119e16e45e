"""What tests share: the developers' material where present, a small random model, the authors' traces."""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fozo
from fozo.core.content import ContentBasis, ContentMoments
from fozo.core.moments import Moments
from fozo.engines.torch_engine import TorchEngine
from fozo.models.convert import Hints, vit_from_state
from fozo.models.vit import Architecture, ViT
from fozo.types import NO_KNOBS, Affine, Array, Batch, Engine, Floats, Images, Knobs, Move, Tap, Taps, taps_of

REPO = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("FOZO_SHARED", REPO.parent / "shared"))
HALF: dict[str, Any] = {"mean": 0.5, "std": 0.5}
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


class EngineAround:
    """An engine that hands everything on to another one; subclasses watch it, or break it."""

    def __init__(self, engine: Engine) -> None:
        self.inner, self.spec = engine, engine.spec
        self.device, self.abilities, self.threads = engine.device, engine.abilities, engine.threads

    def check(self, images: Images) -> Batch:
        return self.inner.check(images)

    def head(self) -> Affine:
        return self.inner.head()

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        return self.inner.run(batch, knobs, taps)


def random_images(count: int, seed: int = 0, architecture: Architecture = SMALL) -> np.ndarray:
    shape = (count, architecture.channels, *architecture.image_size)
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def pixels(count: int = 12, seed: int = 0, size: tuple[int, int] = (16, 16)) -> np.ndarray:
    """Images as a camera gives them: uint8, height, width, RGB."""
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def normalised(images: np.ndarray, mean: Any = 0.5, std: Any = 0.5) -> np.ndarray:
    """The model's input, as torchvision's ToTensor and Normalize make it."""
    return np.moveaxis((images.astype(np.float32) / 255 - np.float32(mean)) / np.float32(std), 3, 1)


def run(engine: Engine, images: Images, knobs: Knobs = NO_KNOBS) -> Taps:
    """Every tap of one pass."""
    return engine.run(engine.check(images), knobs, taps_of(engine))


VARIANTS = {
    "plain": SMALL,
    "registers": replace(SMALL, registers=3),
    "pre_norm": replace(SMALL, pre_norm=True),
    "patch_mean": replace(SMALL, pool="cls+mean", registers=1),
    "one_block": replace(SMALL, depth=1),
    "one_block_patch_mean": replace(SMALL, depth=1, pool="cls+mean"),
    "gray_oblong": replace(SMALL, channels=1, image_size=(8, 24), patch_size=(4, 6)),
    "mean": replace(SMALL, pool="mean"),
    "normed_mean": replace(SMALL, pool="normed mean", registers=2),
    "distilled": replace(SMALL, pool="cls+distilled", registers=1),
    "attention": replace(SMALL, pool="attention", activation="gelu_tanh"),
    "one_block_mean": replace(SMALL, depth=1, pool="mean"),
    "quick_gelu": replace(SMALL, activation="quick_gelu", norm_epsilon=1e-5),
}


def naive(vit: ViT, a: Architecture, images: Floats, knobs: Knobs, k: int) -> dict[Tap, Floats]:
    """One candidate the long way: every token of every block, moves applied as the words say."""
    x = vit.embed(torch.from_numpy(images))
    prompts = knobs.prompts
    if prompts is not None:
        cls = int(a.class_token)
        x = torch.cat([x[:, :cls], torch.from_numpy(prompts[k]).float().expand(len(x), -1, -1), x[:, cls:]], dim=1)
    extra = 0 if prompts is None else prompts.shape[1]
    first = a.prefix + extra
    taps: dict[Tap, list[torch.Tensor]] = {
        tap: [] for tap in (Tap.CLS, Tap.FEATURES, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)
    }
    moments: list[torch.Tensor] = []
    for layer, block in enumerate(vit.blocks):
        patches = x[:, first:]
        taps[Tap.PATCH_MEAN].append(patches.mean(dim=1))
        taps[Tap.PATCH_VARIANCE].append(patches.var(dim=1, correction=0))
        if layer in (1, 3, 5)[: (len(vit.blocks) + 2) // 4]:
            sampled = x[:, first:][:, layer % 4 % (x.shape[1] - first) :: 4]
            centred = sampled - sampled.mean(dim=1, keepdim=True)
            covariance = centred.mT @ centred / centred.shape[1]
            moments.append(torch.cat([sampled.mean(dim=1, keepdim=True), covariance], dim=1))
            if knobs.matrices is not None:
                chosen = torch.from_numpy(knobs.matrices[k if len(knobs.matrices) > 1 else 0][:, layer // 2]).float()
                x[:, first:] = x[:, first:] @ chosen
        for move, tokens in ((knobs.cls, slice(0, int(a.class_token))), (knobs.patches, slice(first, None))):
            if move is not None:
                scale, shift = (
                    torch.from_numpy(part[k if len(part) > 1 else 0])[:, layer, None]
                    for part in (move.scale, move.shift)
                )
                x[:, tokens] = x[:, tokens] * scale.float() + shift.float()
        if layer:
            normed: torch.Tensor = block.norm1(x)  # type: ignore[operator]
            taps[Tap.FEATURES].append(normed[:, 0] if a.class_token else normed[:, first:].mean(dim=1))
        x = block(x)
        taps[Tap.CLS].append(x[:, 0].clone() if a.class_token else x[:, first:].mean(dim=1))
    normed = vit.norm(x)
    pools: dict[str, Callable[[], torch.Tensor]] = {
        "cls": lambda: normed[:, 0],
        "cls+mean": lambda: torch.cat([normed[:, 0], normed[:, first:].mean(dim=1)], dim=-1),
        "cls+distilled": lambda: torch.cat([normed[:, 0], normed[:, 1 + extra]], dim=-1),
        "mean": lambda: normed[:, first:].mean(dim=1),
        "normed mean": lambda: vit.norm(x[:, first:].mean(dim=1)),
        "attention": lambda: vit.attn_pool(normed[:, first:]),
    }
    pooled = pools[a.pool]()
    taps[Tap.FEATURES].append(normed[:, 0] if a.class_token else pooled)
    found: dict[Tap, Floats] = {tap: torch.stack(parts, dim=1).numpy() for tap, parts in taps.items()}
    if moments:
        found[Tap.PATCH_MOMENTS] = torch.stack(moments, dim=1).numpy()
    return found | {Tap.POOLED: pooled.numpy(), Tap.LOGITS: vit.head(pooled).numpy()}


def invented_source(contents: Array, statistics: Mapping[str, Array], model: str = "invented") -> fozo.Statistics:
    """Statistics of invented images: content vectors ``[n, k]``, and values ``[n, ...]`` for all parts."""
    width = statistics["pooled"].shape[1]
    basis = ContentBasis(np.zeros(width), np.eye(width, contents.shape[1]))
    conditioned = {name: statistics[name] for name in fozo.Statistics.CONDITIONED}
    parts: dict[str, Any] = {name: Moments.of(statistics[name]) for name in fozo.Statistics.PARTS}
    return fozo.Statistics(
        fingerprint=f"fingerprint of {model}",
        content=ContentMoments.of(basis, contents, conditioned),
        model=model,
        inputs=None,
        **parts,
    )


KNOBS = ("none", "prompts", "no_prompts", "shared_moves", "moves", "matrices", "everything")


def random_knobs(a: Architecture, k: int, batch: int, kind: str) -> Knobs:
    """Knobs of one kind of :data:`KNOBS`, for k candidates."""
    rng = np.random.default_rng(5)

    def move(candidates: int, images: int) -> Move:
        shape = (candidates, images, a.depth, a.dim)
        return Move(1 + 0.2 * rng.standard_normal(shape), 0.2 * rng.standard_normal(shape))

    def matrices(candidates: int, images: int) -> Floats:
        noise = rng.standard_normal((candidates, images, (a.depth + 2) // 4, a.dim, a.dim)) / a.dim**0.5
        matrices: Floats = np.eye(a.dim) + 0.3 * noise
        return matrices

    prompts = rng.standard_normal((k, 2, a.dim))
    return {
        "none": Knobs(),
        "prompts": Knobs(prompts=prompts),
        "no_prompts": Knobs(prompts=prompts[:, :0]),
        "shared_moves": Knobs(prompts=prompts, cls=move(1, 1), patches=move(1, batch)),
        "moves": Knobs(cls=move(k, 1), patches=move(k, batch)),
        "matrices": Knobs(prompts=prompts, patches=move(1, 1), matrices=matrices(1, 1)),
        "everything": Knobs(prompts=prompts, cls=move(k, batch), patches=move(1, 1), matrices=matrices(k, batch)),
    }[kind]


class Golden:
    """The authors' tiny ViT as an engine in float64, its images, and the traces of their programs; see its README."""

    FOLDER = REPO / "tests" / "golden"

    def __init__(self) -> None:
        with np.load(self.FOLDER / "model.npz") as model:
            state = {name: torch.from_numpy(model[name]).double() for name in model if name != "__cfg__"}
        self.engine = TorchEngine(vit_from_state(state, Hints(heads=4)), name="golden")
        with np.load(self.FOLDER / "data.npz") as data:
            self.images = {name.removesuffix("_u8"): self.normalise(data[name]) for name in data}
        self.source = self.calibrate(self.engine)

    def calibrate(self, engine: Engine) -> fozo.Statistics:
        return fozo.calibrate(engine, np.split(self.images["source"], 4))

    @staticmethod
    def normalise(pixels: np.ndarray) -> np.ndarray:
        return (pixels.astype(np.float64) / 255 - 0.5) / 0.5

    def trace(self, name: str) -> dict[str, np.ndarray]:
        with np.load(self.FOLDER / f"{name}.npz") as trace:
            return dict(trace)


@functools.cache
def golden_material() -> Golden:
    """Load it once, for fixtures and functions."""
    return Golden()
