"""From weights of many kinds to the one ViT: state dicts and files with timm's names, timm and transformers models.

Nothing is imported from timm or transformers: their models are recognised by what they have, converted by name, and
the result is checked against the original on a probe image, so that a model which only looks familiar is refused
rather than adapted wrongly.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fozo.errors import FozoError
from fozo.io import open_regular
from fozo.models.names import Hints
from fozo.models.vit import Architecture, ViT

Weights: TypeAlias = dict[str, Tensor]

PROBE_TOLERANCE = 1e-3
"""Relative difference of logits on the probe image above which a conversion is refused (rounding gives 1e-6)."""


# --- state dicts ---------------------------------------------------------------------------------------------

HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads of the published models (So400m, Huge, giant, gigantic) that do not have one for every 64 of their width."""

DIMENSIONS = {
    "patch_embed.proj.weight": 4, "cls_token": 3, "reg_token": 3, "pos_embed": 3, "norm.weight": 1, "head.weight": 2,
    "blocks.0.mlp.fc1.weight": 2,
}  # fmt: skip
"""Dimensions of the tensors that an architecture is read off."""

REFUSED = {
    "head_dist.": "is a distilled model that averages two heads over two tokens; fozo reads one head on CLS",
    "dist_token": "has a distillation token with its own head; fozo reads one head on CLS",
    "fc_norm.": "averages its patch tokens before the head (global_pool='avg'); fozo needs a head on CLS",
    "attn_pool.": "pools with attention; fozo needs a head on CLS",
    ".q_norm.": "normalises queries and keys, which fozo's ViT does not",
    ".mlp.w12.": "has SwiGLU layers, which fozo's ViT does not",
    ".mlp.gate.": "has gated layers, which fozo's ViT does not",
}


def vit_from_state(weights: Mapping[str, Tensor], hints: Hints) -> ViT:
    """Build a frozen ViT from a state dict with timm's names, inferring the architecture from its shapes.

    Tensors are shared with ``weights`` wherever nothing has to be folded.
    """
    state = {name: tensor.detach() for name, tensor in weights.items()}
    for fragment, reason in REFUSED.items():
        if any(fragment in name for name in state):
            raise FozoError(f"{hints.name} {reason}; use another model")
    for name in ("cls_token", "pos_embed", "patch_embed.proj.weight", "norm.weight", "head.weight"):
        if name not in state:
            raise FozoError(f"{hints.name} has no {name!r}; a ViT classifier with a class token is needed")

    for name, sides in DIMENSIONS.items():
        if name in state and (state[name].dim() != sides or (0 in state[name].shape and name != "reg_token")):
            raise FozoError(
                f"{hints.name} is not a plain ViT: {name!r} is {list(state[name].shape)}; use another model"
            )
    dim, channels, *patch = state["patch_embed.proj.weight"].shape
    patch_size = (patch[0], patch[1])
    numbers = [name.split(".")[1] for name in state if name.startswith("blocks.")]
    # A block is made for each number up to the highest, so that one is not taken at its word.
    depth = len({number for number in numbers if number.isascii() and number.isdecimal()})
    if depth == 0 or "blocks.0.mlp.fc1.weight" not in state:
        raise FozoError(f"{hints.name} has no blocks named blocks.0.mlp.fc1 and so on; use timm's names")
    heads = hints.heads or HEADS.get(dim, dim // 64)
    if not hints.heads and dim % 64:
        raise FozoError(f"the number of heads of {hints.name} (width {dim}) cannot be inferred; pass heads=")
    classes, head_width = state["head.weight"].shape
    if head_width not in (dim, 2 * dim):
        raise FozoError(f"the head of {hints.name} reads {head_width} numbers; {dim} or {2 * dim} are needed")

    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    state.setdefault("reg_token", state["cls_token"].new_zeros(1, 0, dim))
    positions, image_size = _positions(state["pos_embed"], 1 + registers, patch_size, hints)
    state["pos_embed"] = positions
    # Layers without a bias get one of zeros: qkv_bias=False, and CLIP's patch embedding.
    for name in [n for n in state if n.endswith(".weight") and state[n].dim()]:
        state.setdefault(name.removesuffix("weight") + "bias", state[name].new_zeros(len(state[name])))
    _fold_layer_scale(state, depth)

    architecture = Architecture(
        image_size=image_size,
        patch_size=patch_size,
        channels=channels,
        dim=dim,
        depth=depth,
        heads=heads,
        hidden=state["blocks.0.mlp.fc1.weight"].shape[0],
        classes=classes,
        registers=registers,
        pre_norm="norm_pre.weight" in state,
        pool="cls" if head_width == dim else "cls+mean",
        norm_epsilon=hints.norm_epsilon,
        activation=hints.activation,
    )
    with torch.device("meta"):  # no memory and no draw from the global generator
        vit = ViT(architecture)
    expected = {key: list(tensor.shape) for key, tensor in vit.state_dict().items()}
    given = {key: list(tensor.shape) for key, tensor in state.items()}
    for key in sorted(expected.keys() | given.keys()):
        if expected.get(key) != given.get(key):
            raise FozoError(
                f"{hints.name} is not a plain ViT: {key!r} is {given.get(key, 'missing')} where "
                f"{expected.get(key, 'nothing')} is expected; use another model"
            )
    vit.load_state_dict(state, assign=True)
    return vit.eval().requires_grad_(False)


def _positions(
    embedding: Tensor, prefix: int, patch_size: tuple[int, int], hints: Hints
) -> tuple[Tensor, tuple[int, int]]:
    """Bring a position embedding to [CLS, registers, patches], resampled if another image size is wanted."""
    rows, dim = embedding.shape[1:]
    grid = _native_grid(rows, prefix, patch_size, hints)
    patches = grid[0] * grid[1]
    if patches == rows:  # this model gives CLS and registers no position
        embedding = torch.cat([embedding.new_zeros(1, prefix, dim), embedding], dim=1)
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


def _native_grid(rows: int, prefix: int, patch_size: tuple[int, int], hints: Hints) -> tuple[int, int]:
    """Patches down and across that the position embedding was trained for: as named, square, or as wanted."""
    if hints.image_size is not None:
        grid = (hints.image_size[0] // patch_size[0], hints.image_size[1] // patch_size[1])
        if grid[0] * grid[1] in (rows - prefix, rows):
            return grid
        raise FozoError(
            f"{hints.name} should have images of {hints.image_size}, but its weights have patches of {patch_size} and "
            f"{rows} positions; give the right name or size"
        )
    wanted = hints.resize_to or (0, 0)
    oblong = (wanted[0] // patch_size[0], wanted[1] // patch_size[1])
    for patches in (rows - prefix, rows):
        side = math.isqrt(max(patches, 0))
        for grid in ((side, side), oblong):
            if grid[0] * grid[1] == patches > 0:
                return grid
    raise FozoError(f"{rows} positions of {hints.name} form no square grid; pass image_size=(height, width)")


def _fold_layer_scale(state: Weights, depth: int) -> None:
    """Multiply layer scales into the projections before them."""
    for i in range(depth):
        for scale, layer in (("ls1.gamma", "attn.proj"), ("ls2.gamma", "mlp.fc2")):
            gamma = state.get(f"blocks.{i}.{scale}")
            weight, bias = f"blocks.{i}.{layer}.weight", f"blocks.{i}.{layer}.bias"
            # What does not fit stays, and is then named as what a plain ViT does not have.
            if gamma is not None and weight in state and gamma.shape == state[weight].shape[:-1] == state[bias].shape:
                del state[f"blocks.{i}.{scale}"]
                state[weight] = state[weight] * gamma[:, None]
                state[bias] = state[bias] * gamma


# --- files ---------------------------------------------------------------------------------------------------


def state_from_file(path: Path) -> Weights:
    """Read a state dict without ever unpickling code: safetensors, or ``torch.load(weights_only=True)``."""
    open_regular(path).close()  # which refuses FIFOs, devices and folders
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
    if not isinstance(loaded, Mapping) or not all(isinstance(t, Tensor) for t in loaded.values()):
        raise FozoError(f"{path} holds no state dict; save model.state_dict()")
    for name, tensor in loaded.items():
        plain = tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
        # A tensor that repeats a few stored numbers a billion times would be written out by the first copy of it.
        if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise FozoError(f"{path} holds {name!r:.80} without all of its numbers; save model.state_dict() again")
    return {str(name).removeprefix("module."): tensor for name, tensor in loaded.items()}


# --- timm and transformers, by duck typing -------------------------------------------------------------------


ACTIVATIONS = {
    "GELU": "gelu", "GELUTanh": "gelu_tanh", "GeluTanh": "gelu_tanh", "QuickGELU": "quick_gelu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
"""timm's classes and transformers' words, where they differ from ours."""


def looks_like_timm(model: nn.Module) -> bool:
    """Whether a model has the parts of timm's VisionTransformer."""
    return all(hasattr(model, part) for part in ("patch_embed", "cls_token", "blocks", "norm", "head"))


def looks_like_transformers(model: nn.Module) -> bool:
    """Whether a model has the parts of a transformers image classifier."""
    return hasattr(getattr(model, "config", None), "model_type")


def vit_from_timm(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    """Convert a timm VisionTransformer."""
    block: Any = next(iter(model.get_submodule("blocks").children()), None)
    kinds = {type(block).__name__ for block in model.get_submodule("blocks").children()}
    if kinds != {"Block"}:
        raise FozoError(f"{hints.name} is built of {', '.join(sorted(kinds))}, not of plain pre-norm blocks")
    pool = getattr(model, "global_pool", "token")
    if pool != "token":
        raise FozoError(f"{hints.name} uses global_pool={pool!r}; fozo needs a head on CLS (global_pool='token')")
    cfg: dict[str, Any] = dict(getattr(model, "pretrained_cfg", None) or {})
    name = ".".join(str(part) for part in (cfg.get("architecture"), cfg.get("tag")) if part)
    kind = type(block.mlp.act).__name__
    if kind not in ACTIVATIONS:
        raise FozoError(f"{hints.name} uses the activation {kind}, which fozo's ViT does not; use another model")
    tanh = getattr(block.mlp.act, "approximate", "none") == "tanh"
    height, width = model.get_submodule("patch_embed").img_size  # type: ignore[misc]
    found = replace(
        hints,
        name=hints.name if hints.name != "vit" else (name or "vit"),
        heads=block.attn.num_heads,
        image_size=(height, width),
        norm_epsilon=block.norm1.eps,
        activation="gelu_tanh" if tanh else ACTIVATIONS[kind],
        mean=hints.mean or cfg.get("mean"),
        std=hints.std or cfg.get("std"),
        labels=_timm_labels(cfg, model.get_submodule("head")),
    )
    return checked(model, model.state_dict(), found), found


def _timm_labels(cfg: Mapping[str, Any], head: nn.Module) -> tuple[str, ...] | None:
    """Give the names that a timm model brings, or those of ImageNet-1k, of which timm has a list, by its tag."""
    classes, names = getattr(head, "out_features", 0), cfg.get("label_names")
    if names is None and classes == 1000 and str(cfg.get("tag") or "").endswith("in1k") and "timm.data" in sys.modules:
        names = sys.modules["timm.data"].ImageNetInfo().label_descriptions()
    return tuple(map(str, names)) if names is not None and len(names) == classes else None


def _config_labels(config: Any) -> tuple[str, ...] | None:  # noqa: ANN401 - of transformers, which is not imported
    """Give a config's ``id2label``, unless it is made up: LABEL_0, LABEL_1, ..."""
    table: Mapping[Any, Any] = getattr(config, "id2label", None) or {}
    names = {int(number): str(name) for number, name in table.items()}
    if sorted(names) != list(range(len(names))) or all(name == f"LABEL_{number}" for number, name in names.items()):
        return None
    return tuple(names[number] for number in range(len(names)))


# Names of transformers' tensors, new (5.x) and old (4.x), as patterns onto timm's.
TRANSFORMERS_NAMES = [
    (r"(vit|deit|dinov2)\.", ""),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.distillation_token", "reg_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"(encoder\.layer|layers)\.(\d+)", r"blocks.\2"),
    (r"attention\.attention\.(q|k|v)(uery|ey|alue)", r"attn.\1"),
    (r"attention\.(q|k|v)_proj", r"attn.\1"),
    (r"attention\.(o_proj|output\.dense)", "attn.proj"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(blocks\.\d+)\.output\.dense", r"\1.mlp.fc2"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"^layernorm", "norm"),
    (r"^classifier", "head"),
]


def vit_from_transformers(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    """Convert a transformers ``ViT``, ``DeiT`` or ``Dinov2`` ``ForImageClassification`` model."""
    config: Any = model.config
    if config.model_type not in ("vit", "deit", "dinov2") or not hasattr(model, "classifier"):
        raise FozoError(
            f"{type(model).__name__} is not supported; use ViTForImageClassification, DeiTForImageClassification or "
            f"Dinov2ForImageClassification"
        )
    state: Weights = {}
    for name, tensor in model.state_dict().items():
        for pattern, new in TRANSFORMERS_NAMES:
            name = re.sub(pattern, new, name)
        if name != "embeddings.mask_token":
            state[name] = tensor
    for name in [n for n in state if ".attn.q." in n]:
        parts = [state.pop(name.replace("attn.q.", f"attn.{part}.")) for part in "qkv"]
        state[name.replace("attn.q.", "attn.qkv.")] = torch.cat(parts)
    size = config.image_size
    found = replace(
        hints,
        name=hints.name if hints.name != "vit" else (str(getattr(config, "name_or_path", "")) or config.model_type),
        heads=config.num_attention_heads,
        image_size=(size, size) if isinstance(size, int) else (size[0], size[1]),
        norm_epsilon=config.layer_norm_eps,
        activation=ACTIVATIONS.get(config.hidden_act, config.hidden_act),
        labels=_config_labels(config),
        antialias=False,
    )
    return checked(model, state, found), found


def checked(model: nn.Module, state: Mapping[str, Tensor], hints: Hints) -> ViT:
    """Convert at the original's own size, compare with it on an image, then resize if the user wants another size."""
    vit = vit_from_state(state, replace(hints, resize_to=None))
    a, generator = vit.architecture, torch.Generator().manual_seed(0)
    image = torch.randn(1, a.channels, *a.image_size, generator=generator).to(vit.patch_embed.proj.weight)
    training = [module for module in model.modules() if module.training]
    with torch.inference_mode():
        try:
            output = model.eval()(image)
        finally:
            for module in training:
                module.training = True
        expected: Tensor = getattr(output, "logits", output)
        difference = (vit(image) - expected).abs().max() / expected.abs().max().clamp_min(1e-12)
    if not difference <= PROBE_TOLERANCE:
        raise FozoError(
            f"{hints.name} computes other logits than a plain ViT with its weights (relative difference "
            f"{float(difference):.1e}); it has a part that fozo does not know: use another model"
        )
    return vit if hints.resize_to is None else vit_from_state(state, hints)
