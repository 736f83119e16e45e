"""Bottleneck adapters beside the MLPs of a torch ViT, in a twin of the model that shares every one of its tensors.

Imports torch: to be imported only once a torch engine is at hand.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fozo.errors import FozoError
from fozo.methods.common.twin import twin, write
from fozo.types import Array, Batch, Engine, Tap, Taps

SCALE = 0.1
"""What the adapter's output is multiplied by."""
EPSILON = 1e-5
"""Of the adapter's LayerNorm."""
Masks = npt.NDArray[np.bool_]


class Bottleneck(nn.Module):
    """a(u) = 0.1 up(drop(relu(down(LN(u))))), token by token."""

    def __init__(self, width: int, like: Tensor) -> None:
        super().__init__()
        dim = like.shape[-1]
        shapes = ((dim,), (dim,), (width, dim), (width,), (dim, width), (dim,))
        self.tensors = [like.new_zeros(shape) for shape in shapes]
        """As theta has them: LayerNorm, down, up."""
        self.keep: Tensor | None = None
        """Which hidden values dropout leaves, ``[B, T, w]``, already divided by their share; ``None``: all."""
        self.seen = 0
        """Images that have passed, of those that ``keep`` is for: the engine brings them in chunks."""

    def forward(self, tokens: Tensor) -> Tensor:
        norm, bias, down, down_bias, up, up_bias = self.tensors
        normed = F.layer_norm(tokens, norm.shape, norm, bias, EPSILON)
        hidden = F.linear(normed, down, down_bias).relu()
        if self.keep is not None:
            hidden = hidden * self.keep[self.seen : self.seen + len(tokens), : tokens.shape[1]]
            self.seen += len(tokens)
        return SCALE * F.linear(hidden, up, up_bias)


class AdaptedMLP(nn.Module):
    """A block's norm and MLP with an adapter beside them (parallel) or behind them (sequential)."""

    def __init__(self, norm: nn.Module, mlp: nn.Module, adapter: Bottleneck, parallel: bool) -> None:
        super().__init__()
        self.norm = norm
        self.mlp = mlp
        self.adapter = adapter
        self.parallel = parallel

    def forward(self, tokens: Tensor) -> Tensor:
        output: Tensor = self.mlp(self.norm(tokens))
        correction: Tensor = self.adapter(tokens if self.parallel else output)
        return output + correction


class Adapters:
    """A twin of an engine whose model has adapters at some blocks; the engine's own model is never touched."""

    def __init__(self, engine: Engine, blocks: Sequence[int], width: int, parallel: bool) -> None:
        depth = engine.spec.depth
        if not all(0 <= block < depth for block in blocks):
            raise FozoError(
                f"cazo: blocks is {','.join(map(str, blocks))}, but {engine.spec.name} has blocks 0 to {depth - 1}"
            )
        self.engine = twin(engine)
        vit = self.engine.vit
        with torch.inference_mode(False):
            self.adapters = [Bottleneck(width, vit.cls_token) for _ in blocks]
        for index, adapter in zip(blocks, self.adapters, strict=True):
            block = vit.blocks[index]
            block.mlp = AdaptedMLP(block.norm2, block.mlp, adapter, parallel)  # type: ignore[arg-type]
            block.norm2 = nn.Identity()  # which the adapted MLP applies itself
        self.tokens = vit.pos_embed.shape[1]
        self.tensors: list[Tensor] = [tensor for adapter in self.adapters for tensor in adapter.tensors]

    def __len__(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors)

    def run(self, batch: Batch, theta: Array, keep: Masks | None, share: float) -> Taps:
        """One pass with the adapters at ``theta``, of whose hidden values ``keep`` ``[adapters, B, T, w]`` stay.

        ``share`` is how many do on average, by which those that stay are divided.
        """
        write(theta, self.tensors)
        for index, adapter in enumerate(self.adapters):
            adapter.seen = 0
            adapter.keep = None if keep is None else torch.from_numpy(keep[index] / share).to(adapter.tensors[0])
        return self.engine.run(batch, taps=(Tap.FEATURES, Tap.POOLED))
