"""Some images on their way through a torch ViT, under every candidate: moves, prompts and taps, block by block."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fozo.models.vit import Block, ViT
from fozo.types import Move, Tap

TensorMove = tuple[Tensor, Tensor, list[bool]]  # scale, shift, and which layers they change anything in


def moved_layers(move: Move) -> list[bool]:
    moved: list[bool] = ((move.scale != 1) | (move.shift != 0)).any(axis=(0, 1, 3)).tolist()
    return moved


class Chunk:
    """Some images of a batch, run under every candidate."""

    def __init__(
        self,
        vit: ViT,
        x: Tensor,
        images: slice,
        candidates: int,
        prompts: Tensor | None,
        moves: list[TensorMove | None],
        taps: Mapping[Tap, Tensor],
    ) -> None:
        self.vit, self.x, self.images, self.candidates = vit, x, images, candidates
        self.prompts, self.moves, self.taps = prompts, moves, taps
        self.extra = 0 if prompts is None else prompts.shape[1]
        self.count = len(x)
        self.cls = int(vit.architecture.class_token)
        # Tokens before the first patch, once prompts have joined.
        self.prefix = self.extra + vit.architecture.prefix

    def run(self, chunk: int) -> None:
        """Run the candidates, several together where the images are too few to fill a chunk."""
        shared = self._share_first_block()
        together = max(1, chunk // self.count)
        for start in range(0, self.candidates, together):
            self._run_candidates(slice(start, min(start + together, self.candidates)), shared)

    def _share_first_block(self) -> tuple[Tensor, Tensor] | None:
        """Image tokens entering the first block and their QKV, unless candidates move them differently there."""
        if any(part.shape[0] > 1 for move in self.moves if move is not None for part in move[:2]):
            return None
        self._cut_moves(slice(0, 1))
        block: Block = self.vit.blocks[0]  # type: ignore[assignment]
        x = self._move(self.x[None].clone() if self.steps[0] else self.x[None], 0, joined=False)[0]
        return x, block.attn.qkv(block.norm1(x))

    def _run_candidates(self, ks: slice, shared: tuple[Tensor, Tensor] | None) -> None:
        blocks: list[Block] = list(self.vit.blocks)  # type: ignore[arg-type]
        group = ks.stop - ks.start
        self.found: dict[Tap, list[Tensor]] = {tap: [] for tap in self.taps}
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
            x, q = x[:, :1], q[:, :, :1]
        x = blocks[0].finish(x, blocks[0].attn.attend(q, k, v))
        del q, k, v
        for i in range(1, len(blocks)):
            grouped = self._group(x)
            self._record_token(Tap.CLS, grouped)
            self._record_patches(grouped[:, :, self.prefix :])
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
        own = self.vit.architecture.pool in ("cls+mean", "cls+distilled")
        self._record(Tap.FEATURES, pooled[..., : x.shape[-1]] if own else pooled)
        for tap, layers in self.found.items():
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
            if move is not None:
                cut = (part[ks] if part.shape[0] > 1 else part for part in move[:2])
                cut = (part[:, self.images] if part.shape[1] > 1 else part for part in cut)
                for step, scale, shift, moves in zip(
                    self.steps, *(part[:, :, None].unbind(3) for part in cut), move[2], strict=True
                ):
                    if moves:
                        step.append((kind, scale, shift))

    def _move(self, x: Tensor, layer: int, *, joined: bool = True) -> Tensor:
        """Apply the affine moves of a block to ``[g, c, T, d]``, in place."""
        for kind, scale, shift in self.steps[layer]:
            first_patch = self.prefix if joined else self.prefix - self.extra
            part = x[:, :, first_patch:] if kind else x[:, :, : self.cls]
            torch.addcmul(shift, part, scale, out=part)
        return x

    def _record(self, tap: Tap, value: Tensor) -> None:
        """Note ``[g, c, d]`` as the next layer of a tap, if it is wanted."""
        if tap in self.found:
            self.found[tap].append(value)

    def _record_token(self, tap: Tap, x: Tensor) -> None:
        """Note the CLS token of ``[g, c, T, d]``, or where there is none the mean patch, if it is wanted."""
        if tap in self.found:
            self._record(tap, x[:, :, 0].clone() if self.cls else x[:, :, self.prefix :].mean(dim=2))

    def _record_patches(self, patches: Tensor) -> None:
        """Note mean and variance over the patch tokens ``[g, c, patches, d]``, if they are wanted."""
        if Tap.PATCH_MEAN in self.found or Tap.PATCH_VARIANCE in self.found:
            # Not var_mean, which over this axis takes a dozen times as long; about the mean, against cancellation.
            mean = patches.mean(dim=2, keepdim=True)
            self._record(Tap.PATCH_MEAN, mean[:, :, 0])
            if Tap.PATCH_VARIANCE in self.found:
                self._record(Tap.PATCH_VARIANCE, (patches - mean).square_().mean(dim=2))


def _insert(x: Tensor, added: Tensor | None, at: int) -> Tensor:
    """Insert ``added`` ``[g, p, w]`` into the tokens of every ``[g, c, T, w]``; without it, copy ``x``."""
    if added is None:
        return x.clone(memory_format=torch.contiguous_format)
    return torch.cat([x[:, :, :at], added[:, None].expand(-1, x.shape[1], -1, -1), x[:, :, at:]], dim=2)
