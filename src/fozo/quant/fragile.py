"""Which linear layers do not bear 8-bit activations.

Some ViTs grow *massive activations*: in one layer, one feature of a few tokens is a hundred times as large as all
others (in ViT-Tiny at the second MLP layer of block 7: 199, where the next one is 4.6). One step of an
8-bit grid that has room for it is then as large as what an ordinary token carries, and that single layer costs more
accuracy than all others together. Left in float32 it costs next to no speed.

No data is needed to find it, because massive activations hardly depend on the image: noise with the spectrum of
photographs shows them too.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from fozo.models.vit import ViT
from fozo.types import Floats, Spec

IMAGES = 8
MAX_ERROR = 0.1
"""Error of the median token's output, as a part of that output. ViT-Tiny's one fragile layer is at 0.49, its next
one at 0.055, DeiT-Tiny's worst at 0.031 (results/settled.md)."""


def fragile_layers(vit: ViT, spec: Spec) -> list[str]:
    """Names of the layers in the blocks whose typical outputs an 8-bit grid for the inputs would spoil."""
    return [name for name, error in rounding_errors(vit, spec).items() if error > MAX_ERROR]


def rounding_errors(vit: ViT, spec: Spec) -> dict[str, float]:
    """What an 8-bit grid for the inputs does to each linear layer of the blocks, in the order of the pass."""
    found: dict[str, float] = {}

    def measure(name: str, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(layer, nn.Linear)
        (x,) = inputs
        step = ((x.max().clamp(min=0) - x.min().clamp(max=0)) / 255).clamp(min=1e-30)
        lost = ((x / step).round() * step - x) @ layer.weight.T
        exact = x @ layer.weight.T
        found[name] = float((lost.norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-30)).median())

    layers = {f"blocks.{name}": layer for name, layer in vit.blocks.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [layer.register_forward_pre_hook(partial(measure, name)) for name, layer in layers.items()]
    try:
        with torch.inference_mode():
            vit(torch.from_numpy(photograph_like(spec)).to(vit.pos_embed.device, vit.pos_embed.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def photograph_like(spec: Spec) -> Floats:
    """Normalised noise whose amplitude falls as 1 / frequency, as that of photographs does."""
    height, width = spec.image_size
    noise = np.random.default_rng(0).standard_normal((IMAGES, spec.channels, height, width))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)
    pink = np.fft.irfft2(np.fft.rfft2(noise) / frequency, s=(height, width))
    pink /= pink.std(axis=(1, 2, 3), keepdims=True)
    return np.asarray(pink, dtype=np.float32)
