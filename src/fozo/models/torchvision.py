"""torchvision's VisionTransformer: a plain pre-norm ViT under other names. Nothing of torchvision is imported."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from torch import nn

from fozo.errors import FozoError
from fozo.models.convert import Weights, checked
from fozo.models.names import Hints
from fozo.models.vit import ViT

NAMES = [
    (r"class_token", "cls_token"),
    (r"conv_proj", "patch_embed.proj"),
    (r"encoder\.pos_embedding", "pos_embed"),
    (r"encoder\.layers\.encoder_layer_(\d+)\.", r"blocks.\1."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"self_attention\.in_proj_(weight|bias)", r"attn.qkv.\1"),
    (r"self_attention\.out_proj", "attn.proj"),
    (r"mlp\.(0|linear_1)\.", "mlp.fc1."),
    (r"mlp\.(3|linear_2)\.", "mlp.fc2."),
    (r"^encoder\.ln\.", "norm."),
    (r"^heads\.(head\.|0\.)?", "head."),
]
"""Its tensors, as patterns onto timm's; the head may have been replaced by the user's layer."""


def looks_like_torchvision(model: nn.Module) -> bool:
    return all(hasattr(model, part) for part in ("conv_proj", "class_token", "encoder", "heads", "image_size"))


def vit_from_torchvision(model: nn.Module, hints: Hints) -> tuple[ViT, Hints]:
    """Convert a torchvision VisionTransformer. Its normalisation is its weights', of which the module knows nothing."""
    state: Weights = {}
    for name, tensor in model.state_dict().items():
        if name.startswith("heads.pre_logits"):
            raise FozoError(
                f"{hints.name} has a layer before its head (representation_size), which fozo's ViT does not"
            )
        for pattern, new in NAMES:
            name = re.sub(pattern, new, name)
        state[name] = tensor
    block: Any = next(iter(model.get_submodule("encoder.layers").children()))
    size: Any = model.image_size
    found = replace(hints, heads=block.num_heads, image_size=(size, size), norm_epsilon=block.ln_1.eps)
    return checked(model, state, found), found
