"""The PyTorch engine: the frozen ViT, run with as little work as equal results allow.

Three savings are exact (proven equal to ``ViT.forward`` in the tests):

* images are embedded once, whatever the number of candidates;
* in the first block, LayerNorm and QKV of the image tokens are computed once for all candidates: prompts join
  only for the attention itself;
* in the last block only the CLS row is computed, where the head reads nothing else.

A batch is worked through in chunks, each chunk for all candidates, so that activations stay in the processor's
cache and peak memory does not grow with the batch.
"""

from __future__ import annotations

import copy
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fozo.core.moments import TokenMoments
from fozo.core.normalisation import check_images
from fozo.engines.base import EngineBase, foreign
from fozo.engines.blackbox import to_numpy
from fozo.engines.precision import faster_dtype
from fozo.engines.walk import Visit
from fozo.errors import check_counts
from fozo.models.vit import Block, Linear, ViT
from fozo.types import (
    NO_KNOBS,
    SAMPLED_TOKENS,
    Affine,
    Batch,
    Floats,
    Images,
    Knobs,
    Move,
    Spec,
    Tap,
    Taps,
    Threads,
    aligned_blocks,
)

TensorMove = tuple[Tensor, Tensor, list[bool]]  # scale, shift, and which layers they change anything in
CPU_TOKENS = 1600
"""How many tokens go through the blocks together on a CPU: eight images of 224 px in patches of 16. Fewer make the
matrix products too small, more leave the cache."""
GPU_TOKENS = 51200  # the same for a device that wants large products
MEASURED_IMAGES = 4

if hasattr(os, "register_at_fork"):
    # OpenMP, which torch computes with, waits for ever in a forked child for the threads that its parent had, unless
    # it uses one. A child that wants more has to be spawned.
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


@dataclass(eq=False)
class Chunk:
    """Some images on their way through the ViT, under every candidate: moves, prompts and taps, block by block."""

    vit: ViT
    x: Tensor
    images: slice
    candidates: int
    prompts: Tensor | None
    moves: list[TensorMove | None]
    matrices: Tensor | None
    taps: Mapping[Tap, Tensor]

    def __post_init__(self) -> None:
        a = self.vit.architecture
        self.aligned = aligned_blocks(a.depth)
        self.extra = 0 if self.prompts is None else self.prompts.shape[1]
        self.count = len(self.x)
        self.cls = int(a.class_token)
        # Tokens before the first patch, once prompts have joined.
        self.prefix = self.extra + a.prefix

    def run(self, chunk: int) -> None:
        """Run the candidates, several together where the images are too few to fill a chunk."""
        shared = self._share_first_block()
        together = max(1, chunk // self.count)
        for start in range(0, self.candidates, together):
            self._run_candidates(slice(start, min(start + together, self.candidates)), shared)

    def _share_first_block(self) -> tuple[Tensor, Tensor] | None:
        """Image tokens entering the first block and their QKV, unless candidates move them differently there."""
        if any(factors.shape[0] > 1 for move in self.moves if move is not None for factors in move[:2]):
            return None
        self._cut_moves(slice(0, 1))
        block: Block = self.vit.blocks[0]  # type: ignore[assignment]
        x = self._move(self.x[None].clone() if self.steps[0] else self.x[None], 0, joined=False)[0]
        return x, block.attn.qkv(block.norm1(x))

    def _run_candidates(self, ks: slice, shared: tuple[Tensor, Tensor] | None) -> None:
        blocks: list[Block] = list(self.vit.blocks)  # type: ignore[arg-type]
        group = ks.stop - ks.start
        self.layers: dict[Tap, list[Tensor]] = {tap: [] for tap in self.taps}
        self._record_patches(self.x[:, self.vit.architecture.prefix :].expand(group, -1, -1, -1))
        prompts = None if self.prompts is None else self.prompts[ks]
        if shared is None:
            self._cut_moves(ks)
            x = _insert(self.x.expand(group, *self.x.shape), prompts, self.cls)
            x = self._move(x, 0).flatten(0, 1)
            q, k, v = blocks[0].attn.split(blocks[0].attn.qkv(blocks[0].norm1(x)))
        else:
            tokens, qkv = shared
            x = _insert(tokens.expand(group, *tokens.shape), prompts, self.cls).flatten(0, 1)
            added = None if prompts is None else blocks[0].attn.qkv(blocks[0].norm1(prompts))
            q, k, v = blocks[0].attn.split(_insert(qkv.expand(group, *qkv.shape), added, self.cls).flatten(0, 1))
        last = len(blocks) - 1
        cls_only = self.vit.architecture.pool == "cls"
        if last == 0 and cls_only:
            x = x[:, :1]
            q = q[:, :, :1]
        x = blocks[0].finish(x, blocks[0].attn.attend(q, k, v))
        del q, k, v
        for i in range(1, len(blocks)):
            grouped = self._group(x)
            self._record_token(Tap.CLS, grouped)
            self._record_patches(grouped[:, :, self.prefix :])
            if i in self.aligned:
                self._record_moments(grouped[:, :, self.prefix :], i)
                self._multiply(grouped, i, ks)
            x = self._move(grouped, i).flatten(0, 1)
            normed = blocks[i].norm1(x)
            self._record_token(Tap.FEATURES, self._group(normed))
            if i == last and cls_only:
                x = blocks[i].finish(x[:, :1], blocks[i].attn.first(normed))
            else:
                x = blocks[i].finish(x, blocks[i].attn(normed))
        self._finish(self._group(x), ks)

    def _finish(self, x: Tensor, ks: slice) -> None:
        """Apply the final norm, record what the head reads, and store all records."""
        self._record_token(Tap.CLS, x)
        pooled = self._group(self.vit.pool(x.flatten(0, 1), self.extra))
        self._record(Tap.FEATURES, pooled[..., : x.shape[-1]])
        for tap, layers in self.layers.items():
            if layers:
                self.taps[tap][ks, self.images] = torch.stack(layers, dim=2)
        if Tap.POOLED in self.taps:
            self.taps[Tap.POOLED][ks, self.images] = pooled

    def _group(self, x: Tensor) -> Tensor:
        """``[g*c, T, d] -> [g, c, T, d]``, a view."""
        return x.view(-1, self.count, *x.shape[1:])

    def _cut_moves(self, ks: slice) -> None:
        """Cut moves ``[K or 1, B or 1, L, d]`` into those of each block: 0 for CLS or 1 for patches, scale, shift."""
        self.steps: list[list[tuple[int, Tensor, Tensor]]] = [[] for _ in self.vit.blocks]
        for kind, move in enumerate(self.moves):
            if move is None:
                continue
            scales, shifts, moved = move
            of_layers = zip(self.steps, self._cut(scales, ks), self._cut(shifts, ks), moved, strict=True)
            for step, scale, shift, moves in of_layers:
                if moves:
                    step.append((kind, scale, shift))

    def _cut(self, factors: Tensor, ks: slice) -> tuple[Tensor, ...]:
        """Cut ``[K or 1, B or 1, L, d]`` into those of some candidates and of this chunk's images, layer by layer."""
        if factors.shape[0] > 1:
            factors = factors[ks]
        if factors.shape[1] > 1:
            factors = factors[:, self.images]
        return factors[:, :, None].unbind(3)

    def _move(self, x: Tensor, layer: int, *, joined: bool = True) -> Tensor:
        """Apply the affine moves of a block to ``[g, c, T, d]``, in place."""
        for kind, scale, shift in self.steps[layer]:
            first_patch = self.prefix if joined else self.prefix - self.extra
            tokens = x[:, :, first_patch:] if kind else x[:, :, : self.cls]
            torch.addcmul(shift, tokens, scale, out=tokens)
        return x

    def _multiply(self, x: Tensor, layer: int, ks: slice) -> None:
        """Multiply the patch tokens of ``[g, c, T, d]`` by the matrix of a block, in place."""
        if self.matrices is None:
            return
        matrices = self.matrices[:, :, self.aligned.index(layer)]
        if len(matrices) > 1:
            matrices = matrices[ks]
        if matrices.shape[1] > 1:
            matrices = matrices[:, self.images]
        patches = x[:, :, self.prefix :]
        patches.copy_(patches @ matrices)

    def _record_moments(self, patches: Tensor, layer: int) -> None:
        """Note mean and covariance of every fourth patch token of ``[g, c, patches, d]``, if they are wanted."""
        if Tap.PATCH_MOMENTS in self.layers:
            self._record(Tap.PATCH_MOMENTS, sampled_moments(patches, layer))

    def _record(self, tap: Tap, value: Tensor) -> None:
        """Note ``[g, c, d]`` as the next layer of a tap, if it is wanted."""
        if tap in self.layers:
            self.layers[tap].append(value)

    def _record_token(self, tap: Tap, x: Tensor) -> None:
        """Note the CLS token of ``[g, c, T, d]``, or where there is none the mean patch, if it is wanted."""
        if tap in self.layers:
            self._record(tap, x[:, :, 0].clone() if self.cls else x[:, :, self.prefix :].mean(dim=2))

    def _record_patches(self, patches: Tensor) -> None:
        """Note mean and variance over the patch tokens ``[g, c, patches, d]``, if they are wanted."""
        if Tap.PATCH_MEAN in self.layers or Tap.PATCH_VARIANCE in self.layers:
            # Not var_mean, which over this axis takes a dozen times as long; about the mean, against cancellation.
            mean = patches.mean(dim=2, keepdim=True)
            self._record(Tap.PATCH_MEAN, mean[:, :, 0])
            if Tap.PATCH_VARIANCE in self.layers:
                self._record(Tap.PATCH_VARIANCE, (patches - mean).square_().mean(dim=2))


def _insert(x: Tensor, added: Tensor | None, at: int) -> Tensor:
    """Insert ``added`` ``[g, p, w]`` into the tokens of every ``[g, c, T, w]``; without it, copy ``x``."""
    if added is None:
        return x.clone(memory_format=torch.contiguous_format)
    return torch.cat([x[:, :, :at], added[:, None].expand(-1, x.shape[1], -1, -1), x[:, :, at:]], dim=2)


class TorchBatch:
    """Checked images on the model's device, embedded when they are first run, and only once."""

    def __init__(self, x: Tensor, vit: ViT, chunk: int, host: Floats | None = None) -> None:
        """``host`` are the images as NumPy, where they have been on the CPU anyway."""
        self.x = x
        self.vit = vit
        self.chunk = chunk
        self._host = host

    def __len__(self) -> int:
        return len(self.x)

    @property
    def images(self) -> Floats:
        """The images as NumPy; on a CPU they share the tensor's memory, from elsewhere they are copied once."""
        if self._host is None:
            self._host = to_numpy(self.x)
        return self._host

    @cached_property
    @torch.inference_mode()
    def tokens(self) -> Tensor:
        """Tokens that enter the first block, ``[B, T, d]``."""
        return torch.cat([self.vit.embed(images) for images in torch.split(self.x, self.chunk)])

    def part(self, images: slice) -> TorchBatch:
        return TorchBatch(self.x[images], self.vit, self.chunk, None if self._host is None else self._host[images])

    def with_images(self, images: Floats) -> TorchBatch:
        tensor = torch.as_tensor(images)
        return TorchBatch(tensor.to(self.x), self.vit, self.chunk, images if tensor.dtype == self.x.dtype else None)


@dataclass(frozen=True)
class TorchHead(Affine):
    """The head, applied by the model's own layer on its own device: a quantised one rounds its input there."""

    layer: Linear

    @torch.inference_mode()
    def __call__(self, pooled: Floats) -> Floats:
        return to_numpy(self.layer(torch.as_tensor(np.ascontiguousarray(pooled)).to(self.layer.weight)))


def fingerprint(vit: ViT) -> str:
    """Hash a model's architecture and weights, whatever their precision or device."""
    digest = hashlib.blake2b(repr(sorted(asdict(vit.architecture).items())).encode(), digest_size=16)
    for name, tensor in sorted(vit.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().to("cpu", torch.float32).contiguous().numpy().data)
    return digest.hexdigest()


def measured_dtype(vit: ViT) -> torch.dtype:
    """Measure whether a model is faster in float32 or in bfloat16, on the device where it is."""
    architecture = vit.architecture
    device = vit.cls_token.device
    shape = (MEASURED_IMAGES, architecture.channels, *architecture.image_size)

    def make(name: str) -> Callable[[], object]:
        dtype = getattr(torch, name)
        twin = copy.deepcopy(vit).to(dtype)
        images = torch.zeros(shape, dtype=dtype, device=device)

        @torch.inference_mode()
        def run() -> object:
            return twin(images).cpu()

        return run

    model = f"torch {torch.__version__}, {device}, {torch.get_num_threads()} threads, {architecture}"
    dtype: torch.dtype = getattr(torch, faster_dtype(model, make))
    return dtype


def _restricted(vit: ViT, classes: Sequence[int]) -> ViT:
    """The same model, its tensors shared, with only some rows of its head."""
    state = vit.state_dict()
    for name in ("head.weight", "head.bias"):
        state[name] = state[name][list(classes)]
    with torch.device("meta"):
        smaller = ViT(replace(vit.architecture, classes=len(classes)))
    smaller.load_state_dict(state, assign=True)
    return smaller.eval().requires_grad_(False)


class TorchEngine(EngineBase):
    """Runs a :class:`ViT` on a CPU or a GPU. Never trains, never touches torch's global state.

    But for one thing: forked children compute on one thread, because with more they would hang.
    """

    abilities = frozenset({"tokens", "prompts", "matrices", "torch", "gradient", "blocks"})

    def __init__(
        self,
        vit: ViT,
        *,
        name: str = "vit",
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        labels: Sequence[str] | None = None,
        classes: Sequence[int] | None = None,
        chunk: int | None = None,
    ) -> None:
        """Wrap a frozen model; ``chunk`` bounds how many images go through the blocks together.

        ``classes`` restricts the head to these classes, and ``labels`` (of all of them) with it. The fingerprint stays
        that of the whole model: source statistics do not depend on the head.
        """
        same = ("depth", "dim", "classes", "channels", "image_size", "patch_size", "head_width", "class_token")
        shape: dict[str, Any] = {field: getattr(vit.architecture, field) for field in same}
        names = None if labels is None else tuple(labels)
        dtype = vit.cls_token.dtype
        precision = "" if dtype.itemsize >= 4 else f"-{str(dtype).removeprefix('torch.')}"
        self.spec = Spec(name, fingerprint=fingerprint(vit) + precision, mean=mean, std=std, labels=names, **shape)
        if classes is not None:
            self.spec = self.spec.restricted(classes)
            vit = _restricted(vit, classes)
        self.vit = vit
        self.device = str(vit.cls_token.device)
        self.dtype = dtype
        tokens = CPU_TOKENS if self.device == "cpu" else GPU_TOKENS
        self.chunk = max(1, tokens // vit.pos_embed.shape[1]) if chunk is None else chunk
        check_counts(chunk=self.chunk)
        self._warned: set[str] = set()
        self._threads = Threads(torch.get_num_threads())
        self._head = TorchHead(to_numpy(vit.head.weight).T, to_numpy(vit.head.bias), vit.head)

    @property
    def threads(self) -> Threads:
        if self._threads.count != torch.get_num_threads():
            self._threads = Threads(torch.get_num_threads())
        return self._threads

    @torch.inference_mode()
    def check(self, images: Images) -> TorchBatch:
        """Refuse what the model cannot read, and bring the rest to its device and precision."""
        remote = images if isinstance(images, Tensor) and images.device.type != "cpu" else None
        # They are copied once: checking them on the device takes several round trips.
        host = images if remote is None or not remote.is_floating_point() else to_numpy(remote)
        check_images(host, self.spec, self._warned)
        if not isinstance(host, np.ndarray):
            return TorchBatch(host.to(self.device, self.dtype), self.vit, self.chunk)
        # Torch reads neither negative strides nor all of NumPy's types.
        host = np.ascontiguousarray(host, dtype=np.float64 if self.dtype == torch.float64 else np.float32)
        x = (torch.as_tensor(host) if remote is None else remote).to(self.device, self.dtype)
        return TorchBatch(x, self.vit, self.chunk, host if self.dtype.itemsize >= 4 else None)

    def head(self) -> TorchHead:
        return self._head

    @torch.inference_mode()
    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        batch = self._own(batch)
        spec = self.spec
        count = len(batch)
        k = knobs.check(spec, count)
        widths: dict[Tap, tuple[int, ...]] = {Tap.LOGITS: (spec.classes,), Tap.POOLED: (spec.head_width,)}
        widths[Tap.PATCH_MOMENTS] = (len(spec.aligned), spec.dim + 1, spec.dim)
        wanted = set(taps) | ({Tap.POOLED} if Tap.LOGITS in taps else set())
        shapes = {tap: (k, count, *widths.get(tap, (spec.depth, spec.dim))) for tap in sorted(wanted)}
        # One tensor holds them all, and is copied once, when the device is done.
        flat = torch.empty(sum(map(math.prod, shapes.values())), dtype=self.dtype, device=self.device)
        values = _cut(flat, shapes)
        prompts = None if knobs.prompts is None else self._tensor(knobs.prompts)
        moves = [None if move is None else self._tensors(move) for move in (knobs.cls, knobs.patches)]
        matrices = None if knobs.matrices is None else self._tensor(knobs.matrices)
        for start in range(0, count, self.chunk):
            images = slice(start, min(start + self.chunk, count))
            Chunk(self.vit, batch.tokens[images], images, k, prompts, moves, matrices, values).run(self.chunk)
        if Tap.LOGITS in taps:
            values[Tap.LOGITS].copy_(self.vit.head(values[Tap.POOLED]))
        copied = _cut(to_numpy(flat), shapes)
        return {tap: copied[tap] for tap in taps}

    @torch.inference_mode()
    def walk(self, batch: Batch, visit: Visit) -> Taps:
        """Run one pass block by block; see :class:`fozo.engines.walk.BlockEngine`.

        Every image is through a block before any enters the next: the moments of all decide how each is moved.
        """
        pieces = list(torch.split(self._own(batch).tokens, self.chunk))
        for layer, block in enumerate(self.vit.blocks):
            pieces = [block(piece) for piece in pieces]
            move = visit(layer, reduce(TokenMoments.merge, map(token_moments, pieces)))
            if move is not None:
                matrix = self._tensor(move.matrix)
                shift = self._tensor(move.shift)
                pieces = [piece @ matrix + shift for piece in pieces]
        pooled = to_numpy(torch.cat([self.vit.pool(piece) for piece in pieces]))[None]
        return {Tap.POOLED: pooled, Tap.LOGITS: self._head(pooled)}

    def _own(self, batch: Batch) -> TorchBatch:
        if not isinstance(batch, TorchBatch) or batch.x.shape[1:] != self.spec.image_shape:
            raise foreign(batch)
        return batch

    def _tensors(self, move: Move) -> TensorMove:
        moved = ((move.scale != 1) | (move.shift != 0)).any(axis=(0, 1, 3)).tolist()
        return self._tensor(move.scale), self._tensor(move.shift), moved

    def _tensor(self, array: Floats) -> Tensor:
        return torch.as_tensor(array.copy(), dtype=self.dtype, device=self.device)  # torch takes no negative strides


def sampled_moments(patches: Tensor, layer: int) -> Tensor:
    """Mean and covariance of every fourth token of ``[..., patches, d]``: ``[..., d + 1, d]``."""
    tokens = patches[..., layer % SAMPLED_TOKENS % patches.shape[-2] :: SAMPLED_TOKENS, :]
    mean = tokens.mean(dim=-2, keepdim=True)
    centred = tokens - mean
    covariance = centred.mT @ centred / tokens.shape[-2]
    return torch.cat([mean, covariance], dim=-2)


def token_moments(tokens: Tensor) -> TokenMoments:
    """Moments of ``[B, T, d]``: products in the model's precision, about the mean, and sums of them in double."""
    flat = tokens.flatten(0, 1)
    mean = flat.double().mean(dim=0)
    centred = flat - mean.to(flat)
    return TokenMoments(len(flat), mean.cpu().numpy(), (centred.T @ centred).double().cpu().numpy())


A = TypeVar("A", Tensor, Floats)


def _cut(flat: A, shapes: Mapping[Tap, tuple[int, ...]]) -> dict[Tap, A]:
    """Name views of one array, in turn, as arrays of these shapes."""
    ends = pairwise(accumulate(map(math.prod, shapes.values()), initial=0))
    return {tap: flat[start:stop].reshape(shapes[tap]) for tap, (start, stop) in zip(shapes, ends, strict=True)}
