"""State dicts with timm's names, and files of them, become the one ViT; names of published models tell the rest."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from fozo.core.normalisation import CLIP, HALF, IMAGENET, Normalisation
from fozo.errors import FozoError
from fozo.io import open_regular
from fozo.models.vit import Architecture, ViT

Weights: TypeAlias = dict[str, Tensor]

# Heads of the published models (So400m, Huge, giant, gigantic) that do not have one for every 64 of their width.
HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
DIMENSIONS = {  # how many the tensors have that an architecture is read off
    "patch_embed.proj.weight": 4, "cls_token": 3, "reg_token": 3, "pos_embed": 3, "norm.weight": 1, "head.weight": 2,
    "blocks.0.mlp.fc1.weight": 2, "dist_token": 3, "head_dist.weight": 2, "fc_norm.weight": 1, "attn_pool.latent": 3,
    "attn_pool.q.weight": 2,
}  # fmt: skip
REQUIRED = (
    "cls_token", "pos_embed", "patch_embed.proj.weight", "blocks.0.mlp.fc1.weight", "norm.weight", "head.weight"
)  # fmt: skip
LATENT = "attn_pool.latent"
BLACK_BOX = "use it as a black box: fozo.adapter(lambda images: model(images), clean)"
REFUSED = {
    ".q_norm.": "normalises queries and keys, which fozo's ViT does not",
    ".mlp.w12.": "has SwiGLU layers, which fozo's ViT does not",
    ".mlp.gate.": "has gated layers, which fozo's ViT does not",
    "head.pre_logits.": "has a layer before its head (representation_size), which fozo's ViT does not",
}


def vit_from_state(weights: Mapping[str, Tensor], hints: Hints) -> ViT:
    """Build a frozen ViT from a state dict with timm's names, inferring the architecture from its shapes.

    Tensors are shared with ``weights`` wherever nothing has to be folded.
    """
    state = {name: tensor.detach() for name, tensor in weights.items()}
    names = "\n".join(state)
    for fragment, reason in REFUSED.items():
        if fragment in names:
            raise FozoError(f"{hints.name} {reason}; {BLACK_BOX}")
    for name, sides in DIMENSIONS.items():
        shape = state[name].shape if name in state else (1,) * sides
        if len(shape) != sides or (0 in shape and name not in ("reg_token", "cls_token")):
            raise FozoError(f"{hints.name} is not a plain ViT: {name!r} is {list(shape)}; {BLACK_BOX}")
    pool = _fold_pool(state, hints)
    for name in REQUIRED:
        if name not in state:
            raise FozoError(f"{hints.name} has no {name!r}; a ViT classifier is needed, or {BLACK_BOX}")

    dim, channels, *patch = state["patch_embed.proj.weight"].shape
    patch_size = (patch[0], patch[1])
    # Blocks are counted: a high number alone would have as many made.
    depth = len({name.split(".")[1] for name in state if re.match(r"blocks\.\d+\.", name, re.ASCII)})
    heads = hints.heads or HEADS.get(dim, dim // 64)
    if not hints.heads and dim % 64:
        raise FozoError(f"the number of heads of {hints.name} (width {dim}) cannot be inferred; pass heads=")
    registers = state.setdefault("reg_token", state["cls_token"].new_zeros(1, 0, dim)).shape[1]
    state["pos_embed"], image_size = _positions(
        state["pos_embed"], state["cls_token"].shape[1], registers, patch_size, hints
    )
    # Layers without a bias get one of zeros: qkv_bias=False, and CLIP's patch embedding.
    for name, tensor in list(state.items()):
        if name.endswith(".weight") and tensor.dim():
            state.setdefault(name.removesuffix("weight") + "bias", tensor.new_zeros(len(tensor)))
    _fold_layer_scale(state)

    architecture = Architecture(
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        dim=dim,
        depth=depth,
        heads=heads,
        hidden=state["blocks.0.mlp.fc1.weight"].shape[0],
        classes=len(state["head.weight"]),
        registers=registers,
        pre_norm="norm_pre.weight" in state,
        pool=pool,
        norm_epsilon=hints.norm_epsilon,
        activation=hints.activation,
    )
    with torch.device("meta"):  # no memory and no draw from the global generator
        vit = ViT(architecture)
    expected = {key: list(tensor.shape) for key, tensor in vit.state_dict().items()}
    actual = {key: list(tensor.shape) for key, tensor in state.items()}
    for key in sorted(expected.keys() | actual.keys()):
        if expected.get(key) != actual.get(key):
            raise FozoError(
                f"{hints.name} is not a plain ViT: {key!r} is {actual.get(key, 'missing')} where "
                f"{expected.get(key, 'nothing')} is expected; {BLACK_BOX}"
            )
    vit.load_state_dict(state, assign=True)
    return vit.eval().requires_grad_(False)


def _fold_pool(state: Weights, hints: Hints) -> str:
    """Name what a head reads (:data:`fozo.models.vit.POOLS`), and bring its tensors to the form of fozo's ViT.

    An unread class token, two heads that are averaged, a norm after the mean and a query that is computed from
    constants are all folded away, so that the one ViT has a pool by name and one affine head.
    """
    pool = hints.pool or _infer_pool(state)
    if "fc_norm.weight" in state:
        if "norm.weight" in state:
            raise FozoError(f"{hints.name} has a norm before its pool and another one after it, where fozo has one")
        for kind in ("weight", "bias"):
            state[f"norm.{kind}"] = state.pop(f"fc_norm.{kind}")
    if "dist_token" in state:
        state["reg_token"] = state.pop("dist_token")
    if pool == "cls+distilled":
        _join_heads(state, hints)
    if LATENT in state:
        _fold_query(state, hints)
    if not pool.startswith("cls"):
        _no_class_token(state)
    return pool


def _infer_pool(state: Weights) -> str:
    """Infer the pool from the weights; a head on the mean of normed patches looks like one on CLS."""
    if "head_dist.weight" in state:
        return "cls+distilled"
    if "\nattn_pool." in "\n" + "\n".join(state):
        return "attention"
    if "fc_norm.weight" in state:
        return "normed mean"
    if "cls_token" not in state or 0 in state["cls_token"].shape:
        return "mean"
    head = state.get("head.weight")
    return "cls+mean" if head is not None and head.shape[1] == 2 * state["cls_token"].shape[2] else "cls"


def _join_heads(state: Weights, hints: Hints) -> None:
    """Make one head of the two that DeiT averages: it reads both tokens side by side, and halves what it finds."""
    if "head_dist.weight" not in state:
        return  # they were joined before
    names = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")
    if any(name not in state for name in names) or state[names[0]].shape != state[names[2]].shape:
        raise FozoError(f"{hints.name} has two heads that do not match; check the file")
    weight, bias, other_weight, other_bias = (state.pop(name) for name in names)
    state["head.weight"] = torch.cat([weight, other_weight], dim=-1) / 2
    state["head.bias"] = (bias + other_bias) / 2


def _fold_query(state: Weights, hints: Hints) -> None:
    """Compute the query of an attention pool, which is the same for every image."""
    latent, weight, bias = (state.pop(name, None) for name in (LATENT, "attn_pool.q.weight", "attn_pool.q.bias"))
    assert latent is not None
    if latent.shape[:2] != (1, 1):
        raise FozoError(f"{hints.name} pools with {latent.shape[1]} queries, where fozo has one")
    try:
        state["attn_pool.query"] = latent if weight is None else F.linear(latent, weight, bias)
    except RuntimeError as error:
        raise FozoError(f"{hints.name} is not a plain ViT: its attention pool does not fit together") from error


def _no_class_token(state: Weights) -> None:
    """Make a class token that the head does not read a register, which it is."""
    tokens = [state[name] for name in ("cls_token", "reg_token") if name in state]
    if len({token.shape[2] for token in tokens}) == 1:  # others are refused by their shapes
        state["reg_token"] = torch.cat(tokens, dim=1)
    if "patch_embed.proj.weight" in state:
        embedding = state["patch_embed.proj.weight"]
        state["cls_token"] = embedding.new_zeros(1, 0, len(embedding))


def _positions(
    embedding: Tensor, cls: int, registers: int, patch_size: tuple[int, int], hints: Hints
) -> tuple[Tensor, tuple[int, int]]:
    """Bring a position embedding to [CLS, registers, patches], resampled if another image size is wanted."""
    rows, dim = embedding.shape[1:]
    prefix = cls + registers
    grid = _native_grid(rows, (prefix, 0, cls), patch_size, hints)
    prefix_rows = rows - grid[0] * grid[1]  # tokens before the patches that have no position get one of zeros
    if prefix_rows != prefix:
        zeros = embedding.new_zeros(1, prefix - prefix_rows, dim)
        embedding = torch.cat([embedding[:, :prefix_rows], zeros, embedding[:, prefix_rows:]], dim=1)
    wanted = hints.resize_to
    if wanted is None:
        return embedding, (grid[0] * patch_size[0], grid[1] * patch_size[1])
    if wanted[0] % patch_size[0] or wanted[1] % patch_size[1]:
        raise FozoError(f"patches of {patch_size} do not tile images of {wanted}; choose another image_size")
    size = (wanted[0] // patch_size[0], wanted[1] // patch_size[1])
    if size != grid:
        square = embedding[:, prefix:].reshape(1, *grid, dim).permute(0, 3, 1, 2).float()
        body = F.interpolate(square, size=size, mode="bicubic", antialias=hints.antialias)
        body = body.permute(0, 2, 3, 1).reshape(1, -1, dim).to(embedding.dtype)
        embedding = torch.cat([embedding[:, :prefix], body], dim=1)
    return embedding, wanted


def _native_grid(rows: int, prefixes: tuple[int, ...], patch_size: tuple[int, int], hints: Hints) -> tuple[int, int]:
    """Patches down and across that the position embedding was trained for: as named, or else square or as wanted.

    ``prefixes`` are how many of the rows may be other tokens', the likeliest first.
    """
    height, width = hints.image_size or hints.resize_to or (0, 0)
    known = (height // patch_size[0], width // patch_size[1])
    for patches in (rows - prefix for prefix in prefixes):
        side = math.isqrt(max(patches, 0))
        for grid in (known,) if hints.image_size else ((side, side), known):
            if grid[0] * grid[1] == patches > 0:
                return grid
    if hints.image_size:
        raise FozoError(
            f"{hints.name} should have images of {hints.image_size}, but its weights have patches of {patch_size} and "
            f"{rows} positions; give the right name or size"
        )
    raise FozoError(f"{rows} positions of {hints.name} form no square grid; pass image_size=(height, width)")


def _fold_layer_scale(state: Weights) -> None:
    for name, gamma in list(state.items()):
        if not name.endswith((".ls1.gamma", ".ls2.gamma")):
            continue
        layer = name.replace("ls1.gamma", "attn.proj").replace("ls2.gamma", "mlp.fc2")
        weight = f"{layer}.weight"
        bias = f"{layer}.bias"
        # What does not fit stays, and is then named as what a plain ViT does not have.
        if weight in state and gamma.shape == state[weight].shape[:-1] == state[bias].shape:
            del state[name]
            state[weight] = state[weight] * gamma[:, None]
            state[bias] = state[bias] * gamma


def state_from_file(path: Path) -> Weights:
    """Read a state dict without ever unpickling code: safetensors, or ``torch.load(weights_only=True)``."""
    open_regular(path).close()  # refuses FIFOs, devices and folders
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            loaded: Any = load_file(path)
        else:
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except ImportError:
        raise
    except Exception as error:  # torch and safetensors raise many kinds; all mean an unreadable file
        raise FozoError(f"{path} is not a readable weights file ({type(error).__name__}); fetch it again") from error
    for key in ("state_dict", "model"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or [t for t in loaded.values() if not isinstance(t, Tensor)]:
        raise FozoError(f"{path} holds no state dict; save model.state_dict()")
    for name, tensor in loaded.items():
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        # A tensor that repeats a few stored numbers a billion times would be written out by the first copy of it.
        if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise FozoError(f"{path} holds {name!r:.80} without all of its numbers; save model.state_dict() again")
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items()}


# What the name of a published model tells and its weights do not. The names are timm's, ``architecture.tag``. A wrong
# mean and std cost about twenty points of accuracy and raise no error, so whatever is not in the tables below is left
# unknown, and the user is asked. ``tests/models/test_names.py`` holds every claim made here against timm's own list.
NORMALISATION: dict[str, Normalisation] = {  # by the first word of the tag: the recipe that the weights were trained by
    "augreg": HALF, "augreg2": HALF, "orig": HALF, "sam": HALF,
    "fb": IMAGENET, "dino": IMAGENET, "mae": IMAGENET, "lvd142m": IMAGENET,
    "openai": CLIP, "laion2b": CLIP, "laion400m": CLIP, "datacompxl": CLIP, "dfn2b": CLIP, "dfn5b": CLIP,
    "metaclip": CLIP, "metaclip2": CLIP, "tinyclip": CLIP,
}  # fmt: skip
EXCEPTIONS = {("large", "laion2b"): HALF}  # the one model of OpenCLIP's series without CLIP's normalisation
# Only the families whose head reads CLS; any other word in the name (siglip, gap, rope, ...) is another architecture.
NAME = re.compile(
    r"(vit|deit3?)_(?P<size>[a-z]+)_patch\d+(_plus)?(?P<clip>_clip)?(?P<quick>_quickgelu)?((_reg4)?_dinov2|_(?P<image>\d+))"
)
WIDTHS = {  # tokens are as wide as the size in the name says (base is wider in the _plus models, giant in DINOv2's)
    "tiny": (192,), "xsmall": (256,), "small": (384,), "medium": (512,), "betwixt": (640,), "base": (768, 896),
    "large": (1024,), "huge": (1280,), "giant": (1408, 1536), "gigantic": (1664,),
}  # fmt: skip


def widths_from_name(name: str) -> tuple[int, ...] | None:
    """Return the widths that a model of this name can have; ``None`` for an unknown name."""
    match = NAME.fullmatch(name.partition(".")[0])
    return None if match is None else WIDTHS.get(match["size"])


@dataclass(frozen=True)
class Hints:
    """What a state dict cannot say. ``None`` means: infer it, or ask."""

    name: str = "vit"
    heads: int | None = None
    image_size: tuple[int, int] | None = None
    """The size that the model was trained for."""
    resize_to: tuple[int, int] | None = None
    """The size that the user wants instead: positions are resampled."""
    norm_epsilon: float = 1e-6
    activation: str = "gelu"
    pool: str | None = None
    """What the head reads, one of :data:`fozo.models.vit.POOLS`."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    labels: tuple[str, ...] | None = None
    """Names of the classes, in the order of the head's outputs."""
    antialias: bool = True
    """Whether positions are resampled with antialiasing: timm does, transformers does not."""


def names_by_tag(tag: str, classes: int) -> tuple[str, ...] | None:
    """Name the classes by the end of a timm tag: 1000 of ``in1k`` are ImageNet's, as timm calls them."""
    if classes != 1000 or not tag.endswith("in1k"):
        return None
    return tuple(files("fozo.models").joinpath("imagenet_names.txt").read_text(encoding="utf-8").splitlines())


def hints_from_name(name: str) -> Hints:
    """Read a timm name such as ``vit_tiny_patch16_224.augreg_in21k_ft_in1k``; the bare architecture tells less."""
    architecture, _, tag = name.partition(".")
    match = NAME.fullmatch(architecture)
    if match is None:
        return Hints(name=name)
    recipe = tag.split("_")[0]
    mean, std = EXCEPTIONS.get((match["size"], recipe)) or NORMALISATION.get(recipe) or (None, None)
    side = int(match["image"] or 0)
    return Hints(
        name=name,
        image_size=(side, side) if side else None,
        norm_epsilon=1e-5 if match["clip"] else 1e-6,
        activation="quick_gelu" if match["quick"] else "gelu",
        mean=mean,
        std=std,
    )
