"""What a head reads, found out from the names and shapes of a state dict, and brought to fozo's form.

An unread class token, two heads that are averaged, a norm after the mean, a query that is computed
from constants: all of them are folded away here, so that the one ViT has a pool by name (:data:`fozo.models.vit.POOLS`)
and one affine head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fozo.errors import FozoError
from fozo.models.names import Hints

LATENT = "attn_pool.latent"


def fold_pool(state: dict[str, Tensor], hints: Hints) -> str:
    """Name the pool of a model with timm's names, and rewrite its tensors to those of fozo's ViT."""
    pool = hints.pool or _infer(state)
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


def _infer(state: dict[str, Tensor]) -> str:
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


def _join_heads(state: dict[str, Tensor], hints: Hints) -> None:
    """Make one head of the two that DeiT averages: it reads both tokens side by side, and halves what it finds."""
    if "head_dist.weight" not in state:
        return  # they were joined before
    names = ("head.weight", "head.bias", "head_dist.weight", "head_dist.bias")
    if any(name not in state for name in names) or state[names[0]].shape != state[names[2]].shape:
        raise FozoError(f"{hints.name} has two heads that do not match; check the file")
    weight, bias, other, other_bias = (state.pop(name) for name in names)
    state["head.weight"], state["head.bias"] = torch.cat([weight, other], dim=-1) / 2, (bias + other_bias) / 2


def _fold_query(state: dict[str, Tensor], hints: Hints) -> None:
    """Compute the query of an attention pool, which is the same for every image."""
    latent, weight, bias = (state.pop(name, None) for name in (LATENT, "attn_pool.q.weight", "attn_pool.q.bias"))
    assert latent is not None
    if latent.shape[:2] != (1, 1):
        raise FozoError(f"{hints.name} pools with {latent.shape[1]} queries, where fozo has one")
    try:
        state["attn_pool.query"] = latent if weight is None else F.linear(latent, weight, bias)
    except RuntimeError as error:
        raise FozoError(f"{hints.name} is not a plain ViT: its attention pool does not fit together") from error


def _no_class_token(state: dict[str, Tensor]) -> None:
    """Make a class token that the head does not read a register, which it is."""
    names = ("cls_token", "reg_token")
    tokens = [state[name] for name in names if name in state]
    if len({token.shape[2] for token in tokens}) == 1:  # others are refused by their shapes
        state["reg_token"] = torch.cat(tokens, dim=1)
    if "patch_embed.proj.weight" in state:
        embedding = state["patch_embed.proj.weight"]
        state["cls_token"] = embedding.new_zeros(1, 0, len(embedding))
