"""Small models of timm's with random weights, and their comparison with an engine."""

from typing import Any

import numpy as np
import torch
from torch import nn

import fozo

SIZES: dict[str, Any] = {
    "img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 6
}  # fmt: skip


def images(count: int = 3, channels: int = 3, height: int = 32, width: int = 32) -> torch.Tensor:
    return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(1))


def shake(model: nn.Module) -> nn.Module:
    """Random weights of a size at which every part of the model matters (zero biases and unit norms hide faults)."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def timm_vit(**changes: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    return shake(VisionTransformer(**{**SIZES, **changes}))


@torch.inference_mode()
def assert_equal_logits(model: nn.Module, engine: fozo.Engine, batch: torch.Tensor) -> None:
    output = model(batch)
    expected = getattr(output, "logits", output).numpy()
    np.testing.assert_allclose(fozo.NoAdapt(engine)(batch.numpy()), expected, rtol=0, atol=1e-5)
