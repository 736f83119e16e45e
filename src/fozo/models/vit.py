"""A plain Vision Transformer in PyTorch, written to be read: every supported model is converted into this one.

The parameter names are timm's. What only some models have is folded away on loading (see ``convert.py``), so that
the module has no options that change its arithmetic: layer scale goes into the projections it multiplies, missing
biases become zeros, and a position embedding without rows for CLS and registers gets zero rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fozo.errors import FozoError


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "quick_gelu": quick_gelu,
}


POOLS = {
    "cls": "the class token",
    "cls+mean": "[CLS, mean of the patch tokens] (DINOv2)",
    "cls+distilled": "[CLS, distillation token], the one head on each being joined to one on both (DeiT)",
    "mean": "the mean of the normed patch tokens",
    "normed mean": "the norm of the mean of the patch tokens (timm's fc_norm)",
    "attention": "the normed patch tokens, mixed by the attention of one learned query (SigLIP's MAP)",
}
"""What a head may read. A model whose head does not read a class token has none here: if it was trained with one, that
is a register like any other."""


@dataclass(frozen=True)
class Architecture:
    """The shape of a ViT."""

    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    channels: int
    dim: int
    depth: int
    heads: int
    hidden: int
    classes: int
    registers: int = 0
    """Tokens before the patches, other than CLS, that the model was trained with: registers, DeiT's distillation token,
    or a class token that the head does not read."""
    pre_norm: bool = False
    """Whether there is a norm right after the embedding (CLIP)."""
    pool: str = "cls"
    """What the head reads, one of :data:`POOLS`."""
    norm_epsilon: float = 1e-6
    activation: str = "gelu"

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise FozoError(f"a width of {self.dim} cannot be split over {self.heads} heads; check heads")
        if any(image % patch for image, patch in zip(self.image_size, self.patch_size, strict=True)):
            raise FozoError(f"patches of {self.patch_size} do not tile an image of {self.image_size}")
        if self.activation not in ACTIVATIONS:
            raise FozoError(f"unknown activation {self.activation!r}; known are {', '.join(ACTIVATIONS)}")
        if self.pool not in POOLS:
            raise FozoError(f"unknown pool {self.pool!r}; known are {', '.join(map(repr, POOLS))}")
        if self.pool == "cls+distilled" and not self.registers:
            raise FozoError("a model whose head reads a distillation token needs one among its registers")

    @property
    def grid(self) -> tuple[int, int]:
        return self.image_size[0] // self.patch_size[0], self.image_size[1] // self.patch_size[1]

    @property
    def class_token(self) -> bool:
        return self.pool.startswith("cls")

    @property
    def prefix(self) -> int:
        return int(self.class_token) + self.registers

    @property
    def head_width(self) -> int:
        return 2 * self.dim if self.pool in ("cls+mean", "cls+distilled") else self.dim


class Linear(nn.Linear):
    """A linear layer that can also compute some of its outputs only."""

    def rows(self, x: Tensor, start: int, stop: int) -> Tensor:
        return F.linear(x, self.weight[start:stop], self.bias[start:stop])


class PatchEmbed(nn.Module):
    """Image to patch tokens."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.proj = nn.Conv2d(a.channels, a.dim, kernel_size=a.patch_size, stride=a.patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """``[B, channels, height, width] -> [B, patches, d]``."""
        embedded: Tensor = self.proj(images)
        return embedded.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention, in pieces so that an engine can share or leave out work."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.heads = a.heads
        self.dim = a.dim
        self.qkv = Linear(a.dim, 3 * a.dim)
        self.proj = Linear(a.dim, a.dim)

    def split(self, x: Tensor) -> Tensor:
        """``[B, T, c*d] -> [c, B, heads, T, d/heads]`` for c of q, k, v side by side."""
        batch, tokens, width = x.shape
        parts = width // self.dim
        return x.view(batch, tokens, parts, self.heads, self.dim // self.heads).permute(2, 0, 3, 1, 4)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Mix values by attention and project: ``[B, heads, T, d/heads] -> [B, T, d]``."""
        mixed = F.scaled_dot_product_attention(q, k, v)
        projected: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return projected

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.qkv(x))
        return self.attend(q, k, v)

    def first(self, x: Tensor) -> Tensor:
        """Self-attention computed for the first token only, at a third of the queries' cost and less."""
        q = self.split(self.qkv.rows(x[:, :1], 0, self.dim))[0]
        k, v = self.split(self.qkv.rows(x, self.dim, 3 * self.dim))
        return self.attend(q, k, v)


class MLP(nn.Module):
    """Two linear layers around an activation."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.fc1 = Linear(a.dim, a.hidden)
        self.fc2 = Linear(a.hidden, a.dim)
        self.activation = ACTIVATIONS[a.activation]

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.fc2(self.activation(self.fc1(x)))
        return y


class AttentionPool(nn.Module):
    """Attention of one learned query over all tokens, and an MLP: what it looks for is the same in every image."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.heads = a.heads
        self.query = nn.Parameter(torch.zeros(1, 1, a.dim))
        self.kv = Linear(a.dim, 2 * a.dim)
        self.proj = Linear(a.dim, a.dim)
        self.norm = nn.LayerNorm(a.dim, eps=a.norm_epsilon)
        self.mlp = MLP(a)

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, d] -> [B, d]``."""
        batch, tokens, dim = x.shape
        k, v = self.kv(x).view(batch, tokens, 2, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4)
        q = self.query.expand(batch, 1, dim).view(batch, 1, self.heads, dim // self.heads).transpose(1, 2)
        mixed = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        pooled: Tensor = (mixed + self.mlp(self.norm(mixed)))[:, 0]
        return pooled


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, a: Architecture) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(a.dim, eps=a.norm_epsilon)
        self.attn = Attention(a)
        self.norm2 = nn.LayerNorm(a.dim, eps=a.norm_epsilon)
        self.mlp = MLP(a)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + attended
        y: Tensor = x + self.mlp(self.norm2(x))
        return y

    def forward(self, x: Tensor) -> Tensor:
        """``[B, T, d] -> [B, T, d]``."""
        return self.finish(x, self.attn(self.norm1(x)))


class ViT(nn.Module):
    """The model. ``forward`` is the plain pass that the engine's shortcuts are proven equal to."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        a = architecture
        self.architecture = a
        patches = a.grid[0] * a.grid[1]
        self.cls_token = nn.Parameter(torch.zeros(1, int(a.class_token), a.dim))
        self.reg_token = nn.Parameter(torch.zeros(1, a.registers, a.dim))
        self.pos_embed = nn.Parameter(torch.randn(1, a.prefix + patches, a.dim) * 0.02)
        self.patch_embed = PatchEmbed(a)
        self.norm_pre = nn.LayerNorm(a.dim, eps=a.norm_epsilon) if a.pre_norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(a) for _ in range(a.depth))
        self.norm = nn.LayerNorm(a.dim, eps=a.norm_epsilon)
        self.attn_pool = AttentionPool(a) if a.pool == "attention" else nn.Identity()
        self.head = Linear(a.head_width, a.classes)

    def embed(self, images: Tensor) -> Tensor:
        """Images to tokens [CLS, registers, patches], position embedding added."""
        return self.add_positions(self.patch_embed(images))

    def add_positions(self, patches: Tensor) -> Tensor:
        """Patch tokens to tokens [CLS, registers, patches], position embedding added."""
        prefix = torch.cat([self.cls_token, self.reg_token], dim=1).expand(len(patches), -1, -1)
        normed: Tensor = self.norm_pre(torch.cat([prefix, patches], dim=1) + self.pos_embed)
        return normed

    def pool(self, x: Tensor, prompts: int = 0) -> Tensor:
        """What the head reads of the last block's tokens: see :data:`POOLS`."""
        a = self.architecture
        first_patch = a.prefix + prompts
        pooled: Tensor
        if a.pool == "normed mean":
            pooled = self.norm(x[:, first_patch:].mean(dim=1))
            return pooled
        x = self.norm(x)
        if a.pool == "cls":
            return x[:, 0]
        if a.pool == "cls+mean":
            return torch.cat([x[:, 0], x[:, first_patch:].mean(dim=1)], dim=-1)
        if a.pool == "cls+distilled":
            return torch.cat([x[:, 0], x[:, 1 + prompts]], dim=-1)
        pooled = x[:, first_patch:].mean(dim=1) if a.pool == "mean" else self.attn_pool(x[:, first_patch:])
        return pooled

    def forward(self, images: Tensor, prompts: Tensor | None = None) -> Tensor:
        """Logits of images, with prompts ``[p, d]`` inserted after CLS (or first) if given."""
        x = self.embed(images)
        extra = 0 if prompts is None else len(prompts)
        if prompts is not None:
            cls = int(self.architecture.class_token)
            x = torch.cat([x[:, :cls], prompts.expand(len(x), -1, -1), x[:, cls:]], dim=1)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.pool(x, extra))
        return logits
