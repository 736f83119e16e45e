"""The ViT with every product quantised, and the engine that runs it.

Quantised are every linear layer, the weights of the patch embedding (one step a channel; the pixels stay as they
are) and attention's two products (one step a head). Norms, softmax, GELU and the residual stream stay in floating
point. Steps belong to tensors, not to tokens, so that any number of prompts may join.

This is a *simulation*: values are rounded to the grid but multiplied in floating point, so it measures what INT8 does
to accuracy and costs more time than the plain model. For speed export with ``--int8``, see docs/edge.md.
"""

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fozo.engines.ptq4vit import Scales
from fozo.engines.torch_engine import TorchEngine
from fozo.errors import FozoError
from fozo.models.vit import Architecture, Attention, Block, Linear, ViT
from fozo.types import Engine

Rounding = Callable[[Tensor, Tensor, int], Tensor]
QKV_PARTS = 3  # queries, keys and values have a weight step each
GELU_DEPTH = 0.16997124254703522  # minus GELU's minimum, as published; its tanh and quick forms have 0.1700 and 0.1636


def levels(bits: int) -> int:
    """Count the levels on one side of zero: 128 for 8 bits, of which the highest is not reached from below."""
    return 1 << (bits - 1)


def uniform(x: Tensor, step: Tensor, side: int) -> Tensor:
    """Round to multiples of ``step`` from ``-side`` to ``side - 1``."""
    return (x / step).round_().clamp_(-side, side - 1).mul_(step)


def after_gelu(x: Tensor, step: Tensor, side: int) -> Tensor:
    """Twin ranges for GELU: a fixed fine step below zero, where all values are small, and ``step`` above."""
    steps = step.where(x >= 0, step.new_tensor(GELU_DEPTH / side))
    return (x / steps).round_().clamp_(-side, side - 1).mul_(steps)


def after_softmax(x: Tensor, split: Tensor, side: int) -> Tensor:
    """Twin ranges for probabilities: ``side - 1`` steps up to ``split``, and as many up to one.

    As published, the two parts are added: a value above ``split`` gets the full lower range on top, and one below it
    the rounded ``split``. The search sees that and keeps ``split`` small.
    """
    top = side - 1
    high = x.maximum(split).mul_(top).round_().div_(top)
    step = split / top
    return (x.minimum(split) / step).round_().mul_(step).add_(high)


def full_precision(engine: Engine) -> TorchEngine:
    if isinstance(engine, QuantisedEngine):
        raise FozoError(f"{engine.spec.name} is quantised already; give the model in full precision")
    if not isinstance(engine, TorchEngine):
        raise FozoError(
            f"PTQ4ViT quantises torch models, not {type(engine).__name__}; "
            f"for ONNX use: fozo export WEIGHTS -o model.onnx --int8 dynamic"
        )
    return engine


def step_shapes(a: Architecture) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"patch_embed.proj.weight": (a.dim,)}
    for i in range(a.depth):
        for layer in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
            shapes[f"blocks.{i}.{layer}.weight"] = (QKV_PARTS if layer == "attn.qkv" else 1,)
            shapes[f"blocks.{i}.{layer}.input"] = ()
        for operand in ("scores.queries", "scores.keys", "mix.values"):
            shapes[f"blocks.{i}.attn.{operand}"] = (a.heads,)
        shapes[f"blocks.{i}.attn.mix.split"] = ()
    return {**shapes, "head.weight": (1,), "head.input": ()}


def rounded_weight(weight: Tensor, steps: Tensor, side: int) -> Tensor:
    """Quantise the rows of a weight in as many equal parts as there are steps ``[..., parts]``."""
    parts = weight.reshape(steps.shape[-1], -1)
    return uniform(parts, steps[..., None], side).reshape(*steps.shape[:-1], *weight.shape)


class QuantisedLinear(Linear):
    """A linear layer that rounds its input and keeps rounded weights."""

    step: Tensor

    def __init__(self, plain: Linear, weight: Tensor, step: Tensor, side: int, rounding: Rounding = uniform) -> None:
        super().__init__(plain.in_features, plain.out_features, device="meta")
        self.weight = nn.Parameter(rounded_weight(plain.weight, weight, side), requires_grad=False)
        self.bias = plain.bias
        self.register_buffer("step", step)
        self.side = side
        self.rounding = rounding

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.rounding(x, self.step, self.side), self.weight, self.bias)

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        return super().rows(self.rounding(x, self.step, self.side), start, stop)


class QuantisedAttention(Attention):
    """Attention whose two products have rounded operands."""

    queries: Tensor
    keys: Tensor
    split_at: Tensor
    values: Tensor

    def __init__(self, a: Architecture, qkv: Linear, proj: Linear, steps: dict[str, Tensor], side: int) -> None:
        with torch.device("meta"):
            super().__init__(a)
        self.qkv = qkv
        self.proj = proj
        self.side = side
        for name in ("queries", "keys", "values"):
            self.register_buffer(name, steps[name][:, None, None])
        self.register_buffer("split_at", steps["split"])

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix values by attention and project, with the scale applied to the integer product as a kernel would."""
        steps = (self.queries, self.keys, self.values)
        q, k, v = (uniform(x, step, self.side) for x, step in zip((q, k, v), steps, strict=True))
        odds = (q @ k.transpose(-1, -2)).mul_(q.shape[-1] ** -0.5).softmax(dim=-1)
        mixed = after_softmax(odds, self.split_at, self.side) @ v
        projected: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return projected


def quantised_vit(vit: ViT, scales: Scales) -> ViT:
    """Make the quantised twin of a model; what is not quantised is shared with it."""
    side = levels(scales.bits)
    steps = {name: torch.tensor(step).to(vit.cls_token) for name, step in scales.steps.items()}

    def linear(plain: Linear, name: str, rounding: Rounding = uniform) -> QuantisedLinear:
        return QuantisedLinear(plain, steps[f"{name}.weight"], steps[f"{name}.input"], side, rounding)

    twin = copy.deepcopy(vit, {id(tensor): tensor for tensor in (*vit.parameters(), *vit.buffers())})
    embedding = twin.patch_embed.proj
    weight = rounded_weight(embedding.weight, steps["patch_embed.proj.weight"], side)
    embedding.weight = nn.Parameter(weight, requires_grad=False)
    for i, block in enumerate(twin.blocks):
        assert isinstance(block, Block)
        name = f"blocks.{i}"
        attention = {
            operand.partition(".")[2]: steps[f"{name}.attn.{operand}"]
            for operand in ("scores.queries", "scores.keys", "mix.values", "mix.split")
        }
        qkv = linear(block.attn.qkv, f"{name}.attn.qkv")
        proj = linear(block.attn.proj, f"{name}.attn.proj")
        block.attn = QuantisedAttention(vit.architecture, qkv, proj, attention, side)
        block.mlp.fc1 = linear(block.mlp.fc1, f"{name}.mlp.fc1")
        block.mlp.fc2 = linear(block.mlp.fc2, f"{name}.mlp.fc2", after_gelu)
    twin.head = linear(vit.head, "head")
    return twin.eval().requires_grad_(False)


class QuantisedEngine(TorchEngine):
    """Runs the quantised twin of a torch engine's model.

    A model of its own: its fingerprint names the bits and the steps, so source statistics are collected with it.
    """

    abilities = frozenset({"tokens", "prompts", "matrices", "torch", "blocks"})

    def __init__(self, plain: TorchEngine, scales: Scales) -> None:
        spec = plain.spec
        scales.check(spec.fingerprint, spec.name, step_shapes(plain.vit.architecture))
        super().__init__(quantised_vit(plain.vit, scales), name=spec.name, chunk=plain.chunk)
        self.spec = replace(spec, fingerprint=f"{spec.fingerprint}-ptq4vit{scales.bits}-{scales.digest}")
        self.scales = scales
