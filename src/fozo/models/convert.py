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
from fozo.models.pooling import fold_pool
from fozo.models.vit import POOLS, Architecture, ViT

Weights: TypeAlias = dict[str, Tensor]

PROBE_TOLERANCE = 1e-3
"""Relative difference of logits on the probe image above which a conversion is refused (rounding gives 1e-6)."""


# --- state dicts ---------------------------------------------------------------------------------------------

HEADS = {1152: 16, 1280: 16, 1408: 16, 1664: 16}
"""Heads of the published models (So400m, Huge, giant, gigantic) that do not have one for every 64 of their width."""

DIMENSIONS = {
    "patch_embed.proj.weight": 4, "cls_token": 3, "reg_token": 3, "pos_embed": 3, "norm.weight": 1, "head.weight": 2,
    "blocks.0.mlp.fc1.weight": 2, "dist_token": 3, "head_dist.weight": 2, "fc_norm.weight": 1, "attn_pool.latent": 3,
    "attn_pool.q.weight": 2,
}  # fmt: skip
"""Dimensions of the tensors that an architecture is read off."""

BLACK_BOX = "use it as a black box: fozo.adapter(lambda images: model(images), clean)"
"""What to do with a model that is not a plain ViT."""

REFUSED = {
    ".q_norm.": "normalises queries and keys, which fozo's ViT does not",
    ".mlp.w12.": "has SwiGLU layers, which fozo's ViT does not",
    ".mlp.gate.": "has gated layers, which fozo's ViT does not",
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
    pool = fold_pool(state, hints)
    for name in ("cls_token", "pos_embed", "patch_embed.proj.weight", "norm.weight", "head.weight"):
        if name not in state:
            raise FozoError(f"{hints.name} has no {name!r}; a ViT classifier is needed, or {BLACK_BOX}")

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
    registers = state["reg_token"].shape[1] if "reg_token" in state else 0
    state.setdefault("reg_token", state["cls_token"].new_zeros(1, 0, dim))
    positions, image_size = _positions(state["pos_embed"], state["cls_token"].shape[1], registers, patch_size, hints)
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
    given = {key: list(tensor.shape) for key, tensor in state.items()}
    for key in sorted(expected.keys() | given.keys()):
        if expected.get(key) != given.get(key):
            raise FozoError(
                f"{hints.name} is not a plain ViT: {key!r} is {given.get(key, 'missing')} where "
                f"{expected.get(key, 'nothing')} is expected; {BLACK_BOX}"
            )
    vit.load_state_dict(state, assign=True)
    return vit.eval().requires_grad_(False)


def _positions(
    embedding: Tensor, cls: int, registers: int, patch_size: tuple[int, int], hints: Hints
) -> tuple[Tensor, tuple[int, int]]:
    """Bring a position embedding to [CLS, registers, patches], resampled if another image size is wanted."""
    rows, dim = embedding.shape[1:]
    prefix = cls + registers
    grid = _native_grid(rows, (prefix, 0, cls), patch_size, hints)
    given = rows - grid[0] * grid[1]  # rows for tokens before the patches; those without a position get one of zeros
    if given != prefix:
        zeros = embedding.new_zeros(1, prefix - given, dim)
        embedding = torch.cat([embedding[:, :given], zeros, embedding[:, given:]], dim=1)
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
    """Patches down and across that the position embedding was trained for: as named, square, or as wanted.

    ``prefixes`` are how many of the rows may be other tokens', the likeliest first.
    """
    if hints.image_size is not None:
        grid = (hints.image_size[0] // patch_size[0], hints.image_size[1] // patch_size[1])
        if rows - grid[0] * grid[1] in prefixes:
            return grid
        raise FozoError(
            f"{hints.name} should have images of {hints.image_size}, but its weights have patches of {patch_size} and "
            f"{rows} positions; give the right name or size"
        )
    wanted = hints.resize_to or (0, 0)
    oblong = (wanted[0] // patch_size[0], wanted[1] // patch_size[1])
    for patches in (rows - prefix for prefix in prefixes):
        side = math.isqrt(max(patches, 0))
        for grid in ((side, side), oblong):
            if grid[0] * grid[1] == patches > 0:
                return grid
    raise FozoError(f"{rows} positions of {hints.name} form no square grid; pass image_size=(height, width)")


def _fold_layer_scale(state: Weights, depth: int) -> None:
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


# --- timm and transformers, by duck typing -------------------------------------------------------------------


ACTIVATIONS = {
    "GELU": "gelu", "GELUTanh": "gelu_tanh", "GeluTanh": "gelu_tanh", "QuickGELU": "quick_gelu",
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip
"""timm's classes and transformers' words, where they differ from ours."""


def looks_like_timm(model: nn.Module) -> bool:
    return all(hasattr(model, part) for part in ("patch_embed", "cls_token", "blocks", "norm", "head"))


def looks_like_transformers(model: nn.Module) -> bool:
    return hasattr(getattr(model, "config", None), "model_type")


def vit_from_timm(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    block: Any = next(iter(model.get_submodule("blocks").children()), None)
    kinds = {type(block).__name__ for block in model.get_submodule("blocks").children()}
    if kinds != {"Block"}:
        raise FozoError(
            f"{hints.name} is built of {', '.join(sorted(kinds))}, not of plain pre-norm blocks; {BLACK_BOX}"
        )
    pool = getattr(model, "global_pool", "token")
    if pool not in ("token", "avg", "map"):
        raise FozoError(f"{hints.name} uses global_pool={pool!r}; {BLACK_BOX}")
    state = model.state_dict()
    if pool == "avg":
        pool = "normed mean" if "fc_norm.weight" in state else "mean"
    elif pool == "token" and "fc_norm.weight" in state:
        pool = "cls"  # of one token, it is all the same whether a norm comes before or after
    cfg: dict[str, Any] = dict(getattr(model, "pretrained_cfg", None) or {})
    name = ".".join(str(part) for part in (cfg.get("architecture"), cfg.get("tag")) if part)
    kind = type(block.mlp.act).__name__
    if kind not in ACTIVATIONS:
        raise FozoError(f"{hints.name} uses the activation {kind}, which fozo's ViT does not; {BLACK_BOX}")
    tanh = getattr(block.mlp.act, "approximate", "none") == "tanh"
    height, width = model.get_submodule("patch_embed").img_size  # type: ignore[misc]
    found = replace(
        hints,
        name=hints.name if hints.name != "vit" else (name or "vit"),
        heads=block.attn.num_heads,
        image_size=(height, width),
        norm_epsilon=block.norm1.eps,
        activation="gelu_tanh" if tanh else ACTIVATIONS[kind],
        pool=pool if pool in POOLS else None,
        mean=hints.mean or cfg.get("mean"),
        std=hints.std or cfg.get("std"),
        labels=_timm_labels(cfg, model.get_submodule("head")),
    )
    return checked(model, state, found), found


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
    (r"(vit|deit|dinov2|dinov2_with_registers|vision_model)\.", ""),
    (r"embeddings\.cls_token", "cls_token"),
    (r"embeddings\.(distillation_token|register_tokens)", "reg_token"),
    (r"embeddings\.position_embeddings", "pos_embed"),
    (r"embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"embeddings\.position_embedding\.weight", "pos_embed"),
    (r"embeddings\.patch_embedding\.", "patch_embed.proj."),
    (r"(encoder\.layer|encoder\.layers|layers)\.(\d+)", r"blocks.\2"),
    (r"attention\.attention\.(q|k|v)(uery|ey|alue)", r"attn.\1"),
    (r"(attention|self_attn)\.(q|k|v)_proj", r"attn.\2"),
    (r"(attention\.(o_proj|output\.dense)|self_attn\.out_proj)", "attn.proj"),
    (r"layer_norm(1|2)", r"norm\1"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"intermediate\.dense", "mlp.fc1"),
    (r"(blocks\.\d+)\.output\.dense", r"\1.mlp.fc2"),
    (r"layer_scale(\d)\.lambda1", r"ls\1.gamma"),
    (r"^(layernorm|post_layernorm)", "norm"),
    (r"^(classifier|cls_classifier)", "head"),
    (r"^distillation_classifier", "head_dist"),
]
POOL_OF = {"siglip": "mean"}  # what the head of a transformers classifier reads, where its weights do not tell
TRANSFORMERS = (
    "ViTForImageClassification", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher",
    "Dinov2ForImageClassification", "Dinov2WithRegistersForImageClassification", "SiglipForImageClassification",
)  # fmt: skip


def vit_from_transformers(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    """Convert a transformers image classifier, one of :data:`TRANSFORMERS`."""
    config: Any = model.config
    known = ("vit", "deit", "dinov2", "dinov2_with_registers", "siglip")
    if config.model_type not in known or not (hasattr(model, "classifier") or hasattr(model, "cls_classifier")):
        raise FozoError(
            f"the tokens of {type(model).__name__} are not known to fozo (those of {', '.join(TRANSFORMERS)} are); "
            f"{BLACK_BOX}"
        )
    pool, config = POOL_OF.get(config.model_type), getattr(config, "vision_config", config)
    state: Weights = {}
    for name, tensor in model.state_dict().items():
        for pattern, new in TRANSFORMERS_NAMES:
            name = re.sub(pattern, new, name)
        unread = name == "embeddings.mask_token" or re.match(r"head\.\w+\.", name) or name == "head.probe"
        if not unread:  # a mask is for training, and SigLIP's classifier does not use the pool of its tower
            state[name] = tensor[None] if name == "pos_embed" and tensor.dim() == 2 else tensor
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
        pool=pool,
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
            f"{float(difference):.1e}); it has a part that fozo does not know: {BLACK_BOX}"
        )
    return vit if hints.resize_to is None else vit_from_state(state, hints)
