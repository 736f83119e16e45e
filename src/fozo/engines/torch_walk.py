"""A pass of a torch ViT that stops after every block, for methods that align all tokens as the pass goes.

Every image is through a block before any enters the next, because the moments of all of them decide how each is moved;
otherwise the images go in chunks, as they do in the engine's other passes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fozo.core.moments import TokenMoments
from fozo.engines.walk import Visit
from fozo.models.vit import ViT


def walk(vit: ViT, tokens: Tensor, chunk: int, visit: Visit) -> Tensor:
    """Run tokens ``[B, T, d]`` through all blocks and return what the head reads, ``[B, h]``."""
    parts = list(torch.split(tokens, chunk))
    for layer, block in enumerate(vit.blocks):
        parts = [block(part) for part in parts]
        moments = token_moments(parts[0])
        for part in parts[1:]:
            moments = moments.merge(token_moments(part))
        move = visit(layer, moments)
        if move is not None:
            matrix, shift = (torch.from_numpy(array).to(tokens) for array in (move.matrix, move.shift))
            parts = [part @ matrix + shift for part in parts]
    return torch.cat([vit.pool(part) for part in parts])


def token_moments(tokens: Tensor) -> TokenMoments:
    """Moments of ``[B, T, d]``: products in the model's precision, about the mean, and sums of them in double."""
    flat = tokens.flatten(0, 1)
    mean = flat.double().mean(dim=0)
    centred = flat - mean.to(flat)
    return TokenMoments(len(flat), mean.cpu().numpy(), (centred.T @ centred).double().cpu().numpy())
