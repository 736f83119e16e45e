"""PTQ4ViT (Yuan et al., ECCV 2022): search the steps of every product of a ViT on a few clean images.

The model stays exact during the whole search: every product is compared with itself. One pass forward and back keeps
what enters each block and the gradient of the loss at what leaves it; each block is then run again by itself for the
operands of its products, so memory holds one block's activations, not the model's.

Different from the authors' program, on purpose: their loss is the divergence of the exact prediction from itself,
whose gradient is zero but for rounding errors, so that their "Hessian" weighs outputs by noise. Here the target is the
prediction at half its logits, which gives every output the gradient that its share in the prediction deserves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fozo.engines.ptq4vit.engine import QKV_PARTS, after_gelu, levels, uniform
from fozo.engines.ptq4vit.scales import BITS, METRICS, Scales
from fozo.engines.torch_engine import TorchEngine
from fozo.errors import FozoError
from fozo.models.vit import Block, Linear, ViT
from fozo.quant.search import ERRORS, HeadsProduct, LinearProduct, Operands, SoftmaxProduct, embedding_steps
from fozo.types import Images

SOFTNESS = 0.5  # the target is the softmax of this fraction of the logits
GROUP = 4  # images that go forward and back together
FIRST_TOKENS = 256  # of the first sample: few, so that bad candidates are dropped early; later ones double


@dataclass(frozen=True)
class Trace:
    """What one pass keeps of a group of images."""

    embedding: Operands  # Unfolded patches, which makes the embedding a product like any other
    inputs: list[Tensor]  # What enters each block
    gradients: list[Tensor]  # The gradient of the loss at what leaves each block
    head: Operands


def _trace(vit: ViT, images: Tensor) -> Trace:
    patch = vit.architecture.patch_size
    with torch.enable_grad():
        patches = vit.patch_embed(images).requires_grad_()
        states = [vit.add_positions(patches)]
        for block in vit.blocks:
            states.append(block(states[-1]))
        pooled = vit.pool(states[-1])
        logits: Tensor = vit.head(pooled)
        target = (SOFTNESS * logits.detach()).softmax(dim=-1)
        loss = F.kl_div(logits.log_softmax(dim=-1), target, reduction="sum")
        at_patches, at_logits, *gradients = torch.autograd.grad(loss, [patches, logits, *states[1:]])
    unfolded = F.unfold(images, patch, stride=patch).transpose(1, 2)
    embedding = Operands(unfolded, patches.detach(), patches.detach(), at_patches)
    head = Operands(pooled.detach(), pooled.detach(), logits.detach(), at_logits)
    return Trace(embedding, [x.detach() for x in states[:-1]], list(gradients), head)


class _Searcher:
    """Searches the model's products one by one."""

    def __init__(self, vit: ViT, images: Tensor, bits: int, metric: str, progress: Callable[[int, int], None]) -> None:
        self.vit, self.side, self.error = vit, levels(bits), ERRORS[metric]
        self.progress, self.done, self.total = progress, 0, 6 * vit.architecture.depth + 2
        first = max(1, FIRST_TOKENS // vit.pos_embed.shape[1])
        self.sizes: list[int] = []
        while (seen := sum(self.sizes)) < len(images):  # the first few, as many again, then twice as many, and so on
            self.sizes.append(min(max(first, seen), len(images) - seen))
        self.steps: dict[str, Tensor] = {}
        progress(0, self.total)
        self.traces = [_trace(vit, group) for group in torch.split(images, GROUP)]

    def run(self) -> dict[str, Tensor]:
        """Search them all. The embedding has a step for each channel, and its input stays exact."""
        convolution = self.vit.patch_embed.proj
        assert convolution.bias is not None
        samples = self._cut(t.embedding for t in self.traces)
        steps = embedding_steps(samples, convolution.weight.flatten(1), convolution.bias, self.side, self.error)
        self._found("patch_embed.proj", weight=steps)
        for i in range(self.vit.architecture.depth):
            self._block(i)
        self._linear("head", self.vit.head, self._cut(t.head for t in self.traces))
        return self.steps

    def _cut(self, groups: Iterator[Operands]) -> list[Operands]:
        """Join groups of images and cut them into samples."""
        joined = [torch.cat(parts) for parts in zip(*groups, strict=True)]
        return [Operands(*parts) for parts in zip(*(torch.split(x, self.sizes) for x in joined), strict=True)]

    def _found(self, name: str, **steps: Tensor) -> None:
        self.steps.update({f"{name}.{operand}": step for operand, step in steps.items()})
        self.done += 1
        self.progress(self.done, self.total)

    def _linear(self, name: str, layer: Linear, samples: list[Operands]) -> None:
        parts = QKV_PARTS if name.endswith("qkv") else 1
        rounding = after_gelu if name.endswith("fc2") else uniform
        flat = [Operands(*(x.flatten(0, -2) for x in sample)) for sample in samples]
        weight, inputs = LinearProduct(flat, layer, self.side, self.error, parts, rounding).search()
        self._found(name, weight=weight, input=inputs)

    def _block(self, i: int) -> None:
        block = self.vit.blocks[i]
        assert isinstance(block, Block)
        name = f"blocks.{i}"
        products = [_open(block, t.inputs[i], t.gradients[i]) for t in self.traces]

        def samples(product: str) -> list[Operands]:
            return self._cut(group.pop(product) for group in products)

        self._linear(f"{name}.attn.qkv", block.attn.qkv, samples("qkv"))
        queries, keys = HeadsProduct(samples("scores"), self.side, self.error).search()
        self._found(f"{name}.attn.scores", queries=queries, keys=keys)
        split, values = SoftmaxProduct(samples("mix"), self.side, self.error).search()
        self._found(f"{name}.attn.mix", split=split, values=values)
        self._linear(f"{name}.attn.proj", block.attn.proj, samples("proj"))
        self._linear(f"{name}.mlp.fc1", block.mlp.fc1, samples("fc1"))
        self._linear(f"{name}.mlp.fc2", block.mlp.fc2, samples("fc2"))


def _open(block: Block, x: Tensor, gradient: Tensor) -> dict[str, Operands]:
    """Run one block in the open: operands, output and gradient of each of its products."""
    attn, mlp = block.attn, block.mlp
    with torch.enable_grad():
        normed = block.norm1(x)
        qkv = attn.qkv(normed).requires_grad_()
        q, k, v = attn.split(qkv)
        keys = k.transpose(-1, -2)
        scores = q @ keys
        odds = (scores * q.shape[-1] ** -0.5).softmax(dim=-1)
        mixed = odds @ v
        joined = mixed.transpose(1, 2).flatten(2)
        attended = attn.proj(joined)
        middle = x + attended
        normed2 = block.norm2(middle)
        hidden = mlp.fc1(normed2)
        active = mlp.activation(hidden)
        projected = mlp.fc2(active)
        outputs = [qkv, scores, mixed, attended, hidden, projected]
        gradients = torch.autograd.grad(middle + projected, outputs, gradient)
    names = ("qkv", "scores", "mix", "proj", "fc1", "fc2")
    lefts = (normed, q, odds, joined, normed2, active)
    rights = (normed, keys, v, joined, normed2, active)
    return {
        name: Operands(left.detach(), right.detach(), output.detach(), gradient)
        for name, left, right, output, gradient in zip(names, lefts, rights, outputs, gradients, strict=True)
    }


def search_scales(
    engine: TorchEngine, images: Images, bits: int, metric: str, progress: Callable[[int, int], None]
) -> Scales:
    """Search the steps of a model; see :func:`fozo.quant.ptq4vit` for the arguments."""
    if bits not in BITS:
        raise FozoError(f"bits is {bits}; choose from {', '.join(map(str, BITS))}")
    if metric not in METRICS:
        raise FozoError(f"there is no metric {metric!r}; choose from {', '.join(METRICS)}")
    # Not a tensor of inference mode: gradients go through it.
    batch = engine.check(images).x.clone()
    with torch.no_grad():
        steps = _Searcher(engine.vit, batch, bits, metric, progress).run()
    arrays = {name: np.asarray(step.double().cpu()) for name, step in steps.items()}
    return Scales(engine.spec.fingerprint, bits, arrays, engine.spec.name, metric, len(batch))
