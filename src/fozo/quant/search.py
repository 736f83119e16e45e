"""PTQ4ViT (Yuan et al., ECCV 2022): search the steps of every product of a ViT on a few clean images.

For each operand in turn it finds the candidate whose rounded product is nearest to the exact one. The published program
tries 100 candidates, three rounds, on all images at once, and needs a large GPU for it. Two savings give the same
answer in minutes on a CPU with the memory of a few images:

* errors are sums over images of terms that are never negative, so a candidate whose partial sum exceeds the whole sum
  of another cannot win any more, and is dropped (branch and bound): most candidates see one image only;
* an operand is searched again only where the other operand's step has changed since.

The model stays exact during the whole search: every product is compared with itself. One pass forward and back keeps
what enters each block and the gradient of the loss at what leaves it; each block is then run again by itself for the
operands of its products, so memory holds one block's activations, not the model's.

Different from the authors' program, on purpose: their loss is the divergence of the exact prediction from itself,
whose gradient is zero but for rounding errors, so that their "Hessian" weighs outputs by noise. Here the target is the
prediction at half its logits, which gives every output the gradient that its share in the prediction deserves.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fozo.engines.ptq4vit import BITS, METRICS, Scales
from fozo.engines.ptq4vit.engine import QKV_PARTS, after_gelu, after_softmax, levels, rounded_weight, uniform
from fozo.engines.torch_engine import TorchEngine
from fozo.errors import FozoError
from fozo.models.vit import Block, Linear, ViT
from fozo.types import Images

CANDIDATES = 100
LOWEST_FACTOR = 0.01  # times the step that holds the largest value
HIGHEST_FACTOR = 1.2  # times the same step; this one is not tried
ROUNDS = 3
SOFTNESS = 0.5  # the target is the softmax of this fraction of the logits
GROUP = 4  # images that go forward and back together
FIRST_TOKENS = 256  # in the first sample: few, so that bad candidates are dropped early; later ones double
SPLITS = 20  # where softmax's ranges may meet: 1, 1/2, ... 2^-19.
BLOCK_NUMBERS = 1 << 21  # numbers in one block of candidates' inputs or outputs: 8 MB, which fits a processor's cache
Error = Callable[[Tensor, Tensor, Tensor], Tensor]

# Error of rounded outputs against exact ones along the last axis, never negative; only one of them uses the gradient of
# the loss, whose square stands for the diagonal of the Hessian.
ERRORS: dict[str, Error] = {
    "l2": lambda raw, rounded, gradient: (rounded - raw).square_().sum(dim=-1),
    "hessian": lambda raw, rounded, gradient: (rounded - raw).mul_(gradient).square_().sum(dim=-1),
    "cosine": lambda raw, rounded, gradient: 1 - F.cosine_similarity(raw, rounded, dim=-1),
}


class Operands(NamedTuple):
    """Some images' share of a product: its two operands, its exact output, and the loss's gradient there."""

    left: Tensor
    right: Tensor
    output: Tensor
    gradient: Tensor


Rounded = Callable[[Operands, Tensor], Tensor]  # a sample's product under some candidates


def widest(largest: Tensor, side: int) -> Tensor:
    """Give the step that just holds values up to ``largest``; a tensor of zeros gets a step that does no harm."""
    return largest.clamp_min(1e-12) / (side - 0.5)


def best(candidates: Tensor, samples: Sequence[Operands], errors: Callable[[Operands, Tensor], Tensor]) -> Tensor:
    """Find, for each group, the first candidate with the smallest sum of errors over all samples.

    ``errors(sample, tried) -> [tried, groups]``, for as many candidates at a time as fit memory.
    """
    device = candidates.device

    def total(sample: Operands, chosen: Tensor) -> Tensor:
        size = max(1, BLOCK_NUMBERS // max(sample.output.numel(), sample.left.numel()))
        return torch.cat([errors(sample, tried).double() for tried in torch.split(candidates[chosen], size)])

    sums = total(samples[0], torch.arange(len(candidates), device=device))
    # The first sample's winners are run to the end at once: what they reach is the bound for all others.
    leaders = torch.tensor(sorted(set(sums.argmin(dim=0).tolist())), device=device)
    for sample in samples[1:]:
        sums[leaders] += total(sample, leaders)
    bound = sums[leaders].amin(dim=0)
    alive = torch.ones(len(candidates), dtype=torch.bool, device=device)
    alive[leaders] = False
    for sample in samples[1:]:
        alive &= (sums <= bound).any(dim=1)
        left = alive.nonzero()[:, 0]
        if len(left) == 0:
            break
        sums[left] += total(sample, left)
    # Dropped candidates exceed the bound already, so they lose here too.
    return candidates[sums.argmin(dim=0)]


def alternate(
    first: Callable[[Tensor], Tensor], second: Callable[[Tensor], Tensor], start: Tensor
) -> tuple[Tensor, Tensor]:
    """Search two operands in turn, each given the step of the other, until nothing changes or after three rounds."""
    other = start
    one = first(other)
    for _ in range(ROUNDS - 1):
        new = second(one)
        if torch.equal(new, other):
            return one, other
        other = new
        again = first(other)
        if torch.equal(again, one):
            return one, other
        one = again
    return one, second(one)


class Trace(NamedTuple):
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
        self.vit = vit
        self.side = levels(bits)
        self.error = ERRORS[metric]
        self.progress = progress
        self.done = 0
        self.total = 6 * vit.architecture.depth + 2
        factors = torch.linspace(LOWEST_FACTOR, HIGHEST_FACTOR, CANDIDATES + 1, dtype=torch.float64)
        self.factors = factors[:-1].to(images)
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
        weight = convolution.weight.flatten(1)
        self._found("patch_embed.proj", weight=self._weights(samples, weight, convolution.bias, len(weight)))
        for i in range(self.vit.architecture.depth):
            self._block(i)
        self._linear("head", self.vit.head, self._cut(t.head for t in self.traces))
        return self.steps

    def _block(self, i: int) -> None:
        block = self.vit.blocks[i]
        assert isinstance(block, Block)
        name = f"blocks.{i}"
        products = [_open(block, t.inputs[i], t.gradients[i]) for t in self.traces]

        def samples(product: str) -> list[Operands]:
            return self._cut(group.pop(product) for group in products)

        self._linear(f"{name}.attn.qkv", block.attn.qkv, samples("qkv"))
        self._scores(f"{name}.attn.scores", samples("scores"))
        self._mix(f"{name}.attn.mix", samples("mix"))
        self._linear(f"{name}.attn.proj", block.attn.proj, samples("proj"))
        self._linear(f"{name}.mlp.fc1", block.mlp.fc1, samples("fc1"))
        self._linear(f"{name}.mlp.fc2", block.mlp.fc2, samples("fc2"))

    def _cut(self, groups: Iterator[Operands]) -> list[Operands]:
        joined = [torch.cat(parts) for parts in zip(*groups, strict=True)]
        return [Operands(*parts) for parts in zip(*(torch.split(x, self.sizes) for x in joined), strict=True)]

    def _found(self, name: str, **steps: Tensor) -> None:
        self.steps.update({f"{name}.{operand}": step for operand, step in steps.items()})
        self.done += 1
        self.progress(self.done, self.total)

    def _best(self, samples: Sequence[Operands], candidates: Tensor, product: Rounded, axes: tuple[int, ...]) -> Tensor:
        """Find the best candidates for rounded products ``[candidates, ...]``, errors summed over some ``axes``."""

        def errors(sample: Operands, tried: Tensor) -> Tensor:
            summed = self.error(sample.output, product(sample, tried), sample.gradient).sum(dim=axes)
            return summed.view(len(tried), -1)

        return best(candidates, samples, errors)

    def _linear(self, name: str, layer: Linear, samples: list[Operands]) -> None:
        """Search one step for the inputs, and one for the weights, or for each of queries, keys and values."""
        parts = QKV_PARTS if name.endswith("qkv") else 1
        rounding = after_gelu if name.endswith("fc2") else uniform
        tokens = [Operands(*(x.flatten(0, -2)[:, None] for x in sample)) for sample in samples]  # [n, 1, .]
        largest = [s.left.amax() if rounding is after_gelu else s.left.abs().amax() for s in tokens]
        start = widest(torch.stack(largest).amax(), self.side)

        def weights(step: Tensor) -> Tensor:
            rounded = [s._replace(left=rounding(s.left, step, self.side)) for s in tokens]
            return self._weights(rounded, layer.weight, layer.bias, parts)

        def inputs(steps: Tensor) -> Tensor:
            weight = rounded_weight(layer.weight, steps, self.side)

            def product(sample: Operands, factors: Tensor) -> Tensor:
                tries = rounding(sample.left, (factors * start)[:, None, None, None], self.side)
                return F.linear(tries, weight, layer.bias)

            return self._best(tokens, self.factors, product, (1, 2))[0] * start

        weight, step = alternate(weights, inputs, start)
        self._found(name, weight=weight, input=step)

    def _weights(self, samples: Sequence[Operands], weight: Tensor, bias: Tensor, parts: int) -> Tensor:
        """Search a step for each of ``parts`` of the rows, which do not touch each other's outputs.

        Inputs are ``[n, tokens, in]``. Errors run over the tokens and outputs of a part, which only matters to the
        cosine.
        """
        largest = widest(weight.reshape(parts, -1).abs().amax(dim=1), self.side)

        def by_part(outputs: Tensor) -> Tensor:
            return outputs.reshape(*outputs.shape[:-1], parts, -1).transpose(-3, -2).flatten(-2)

        def product(sample: Operands, factors: Tensor) -> Tensor:
            tries = rounded_weight(weight, factors[:, None] * largest, self.side)
            outputs = F.linear(sample.left, tries.flatten(0, 1), bias.repeat(len(factors)))
            return by_part(outputs.view(*outputs.shape[:-1], len(factors), -1).movedim(-2, 0))

        cut = [s._replace(output=by_part(s.output), gradient=by_part(s.gradient)) for s in samples]
        return self._best(cut, self.factors, product, (1,)) * largest

    def _scores(self, name: str, samples: list[Operands]) -> None:
        queries, keys = alternate(
            lambda keys: self._heads([s._replace(right=self._by_head(s.right, keys)) for s in samples], "left"),
            lambda queries: self._heads([s._replace(left=self._by_head(s.left, queries)) for s in samples], "right"),
            self._widest_heads(samples, "right"),
        )
        self._found(name, queries=queries, keys=keys)

    def _mix(self, name: str, samples: list[Operands]) -> None:
        """Search where softmax's two ranges meet, once and with exact values, as published; then the values' steps."""

        def product(sample: Operands, splits: Tensor) -> Tensor:
            return after_softmax(sample.left, splits[:, None, None, None, None], self.side) @ sample.right

        splits = torch.tensor([2.0**-i for i in range(SPLITS)]).to(self.factors)
        split = self._best(samples, splits, product, (1, 2, 3))[0]
        rounded = [s._replace(left=after_softmax(s.left, split, self.side)) for s in samples]
        self._found(name, split=split, values=self._heads(rounded, "right"))

    def _heads(self, samples: Sequence[Operands], operand: str) -> Tensor:
        """Search a step a head for one operand ``[n, heads, ., .]``; the other is rounded already."""
        largest = self._widest_heads(samples, operand)

        def product(sample: Operands, factors: Tensor) -> Tensor:
            tries = self._by_head(getattr(sample, operand), factors[:, None] * largest)
            return tries @ sample.right if operand == "left" else sample.left @ tries

        return self._best(samples, self.factors, product, (1, 3)) * largest

    def _widest_heads(self, samples: Sequence[Operands], operand: str) -> Tensor:
        largest = torch.stack([getattr(s, operand).abs().amax(dim=(0, 2, 3)) for s in samples])
        return widest(largest.amax(dim=0), self.side)

    def _by_head(self, x: Tensor, steps: Tensor) -> Tensor:
        """Round ``[n, heads, ., .]`` with steps ``[..., heads]``."""
        return uniform(x, steps[..., None, :, None, None], self.side)


def _open(block: Block, x: Tensor, gradient: Tensor) -> dict[str, Operands]:
    """Run one block in the open: operands, output and gradient of each of its products."""
    attn = block.attn
    mlp = block.mlp
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
        products = {
            "qkv": (normed, normed, qkv),
            "scores": (q, keys, scores),
            "mix": (odds, v, mixed),
            "proj": (joined, joined, attended),
            "fc1": (normed2, normed2, hidden),
            "fc2": (active, active, projected),
        }
        outputs = [output for _, _, output in products.values()]
        gradients = torch.autograd.grad(middle + projected, outputs, gradient)
    return {
        name: Operands(left.detach(), right.detach(), output.detach(), at_output)
        for (name, (left, right, output)), at_output in zip(products.items(), gradients, strict=True)
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
