"""Any torch transformer by hooks: the user's own module runs, and hooks move and read its tokens on the way.

Nothing is known of the module's family. One pass with hooks on every part shows its blocks (a list of modules that take
``[B, T, d]`` and return as much), the norm in each that reads what enters it, and the linear layer that makes the
logits. What the tokens mean is found as in graphs (:mod:`fozo.engines.tokens`). Hooks are there only while the engine
runs, and pass on what other threads send through the module meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fozo.core.normalisation import check_images
from fozo.engines.base import HeadEngine, foreign
from fozo.engines.blackbox import BlackBatch, black_box, to_numpy
from fozo.engines.tokens import LEAST_CHANGE, NOT_A_TRANSFORMER, NoTokensError, NotRunError, check_reach, find_layout
from fozo.engines.torch_engine import CPU_TOKENS, GPU_TOKENS, sampled_moments, token_moments
from fozo.engines.walk import Visit
from fozo.errors import FozoError
from fozo.types import (
    NO_KNOBS,
    Affine,
    Batch,
    Floats,
    ForkSafeLock,
    Images,
    Knobs,
    Spec,
    Tap,
    Taps,
    Threads,
    taps_of,
)

TOLERANCE = 1e-4
"""By how much the head's answer may differ from the module's, as a part of the largest logit."""
LEAST_BLOCKS = 2


@dataclass(frozen=True)
class Parts:
    """The parts of a module that hooks are put on."""

    blocks: list[nn.Module]
    norms: list[nn.Module]
    """The norm in each block that reads what enters it."""
    head: nn.Linear


@dataclass
class Pass:
    """One forward pass: moves to make, and what was seen. Rows are images under candidates."""

    moves: list[tuple[slice, Tensor, Tensor]]
    """Which tokens, and scale and shift ``[rows, L, d]``."""
    matrices: Tensor | None
    """``[rows, A, d, d]``."""
    aligned: range
    prefix: int
    class_token: bool
    taps: dict[Tap, list[Tensor]]

    def token(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0] if self.class_token else tokens[:, self.prefix :].mean(dim=1)

    def enter(self, block: int, tokens: Tensor) -> Tensor:
        patches = tokens[:, self.prefix :]
        mean = patches.mean(dim=1, keepdim=True)
        self.record(Tap.PATCH_MEAN, mean[:, 0])
        self.record(Tap.PATCH_VARIANCE, (patches - mean).square().mean(dim=1))
        if block > 0:
            self.record(Tap.CLS, self.token(tokens).clone())
        if self.moves or self.matrices is not None:
            tokens = tokens.clone()
        if block in self.aligned:
            self.record(Tap.PATCH_MOMENTS, sampled_moments(patches, block))
            if self.matrices is not None:
                tokens[:, self.prefix :] = patches @ self.matrices[:, self.aligned.index(block)]
        for which, scale, shift in self.moves:
            tokens[:, which] = tokens[:, which] * scale[:, block, None] + shift[:, block, None]
        return tokens

    def record(self, tap: Tap, value: Tensor) -> None:
        if tap in self.taps:
            self.taps[tap].append(value)


class HookedEngine(HeadEngine):
    """Runs a torch module as it is, and moves and reads its tokens by hooks. :func:`hooked` makes one."""

    abilities = frozenset({"tokens", "matrices", "blocks"})

    def __init__(self, module: nn.Module, parts: Parts, spec: Spec, prefix: int, chunk: int | None = None) -> None:
        self.module = module
        self.parts = parts
        self.spec = spec
        self.prefix = prefix
        weight = parts.head.weight
        self.device = str(weight.device)
        self.dtype = weight.dtype
        tokens = CPU_TOKENS if self.device == "cpu" else GPU_TOKENS
        self.chunk = chunk or max(1, tokens // (prefix + spec.patches))
        self.threads = Threads(torch.get_num_threads())
        self._warned: set[str] = set()
        self._lock = ForkSafeLock()
        bias = np.zeros(spec.classes, np.float32) if parts.head.bias is None else to_numpy(parts.head.bias)
        self._head = Affine(np.ascontiguousarray(to_numpy(weight).T), bias)

    def check(self, images: Images) -> BlackBatch:
        check_images(images, self.spec, self._warned)
        return BlackBatch(images)

    @torch.no_grad()
    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        spec = self.spec
        images = self._images(batch)
        count = len(batch)
        candidates = knobs.check(spec, count)
        if knobs.prompts is not None:
            raise FozoError(
                f"{spec.name} runs as it is and takes no prompts; use a method that needs none, such as align"
            )
        rows = candidates * count
        moves = []
        for move, which in ((knobs.cls, slice(0, int(spec.class_token))), (knobs.patches, slice(self.prefix, None))):
            if move is not None:
                scale, shift = (self._by_row(array, candidates, count) for array in (move.scale, move.shift))
                moves.append((which, scale, shift))
        matrices = None if knobs.matrices is None else self._by_row(knobs.matrices, candidates, count)
        chunks: dict[Tap, list[Floats]] = {}
        for start in range(0, rows, self.chunk):
            some = range(start, min(start + self.chunk, rows))
            chosen = slice(some.start, some.stop)
            cut = [(which, scale[chosen], shift[chosen]) for which, scale, shift in moves]
            now = Pass(
                cut,
                None if matrices is None else matrices[chosen],
                spec.aligned,
                self.prefix,
                spec.class_token,
                {tap: [] for tap in taps},
            )
            pooled = self._forward(images[[row % count for row in some]], now)
            for tap, layers in now.taps.items():
                if tap not in (Tap.LOGITS, Tap.POOLED):
                    chunks.setdefault(tap, []).append(to_numpy(torch.stack(layers, dim=1)))
            chunks.setdefault(Tap.POOLED, []).append(to_numpy(pooled))
        values = {tap: np.concatenate(parts) for tap, parts in chunks.items()}
        result = {tap: value.reshape(candidates, count, *value.shape[1:]) for tap, value in values.items()}
        if Tap.LOGITS in taps:
            result[Tap.LOGITS] = self._head(result[Tap.POOLED])
        return {tap: result[tap] for tap in taps}

    @torch.no_grad()
    def walk(self, batch: Batch, visit: Visit) -> Taps:
        """Run one pass block by block, all images together; see :class:`fozo.engines.walk.BlockEngine`."""

        def leave(block: int, tokens: Tensor) -> Tensor | None:
            move = visit(block, token_moments(tokens))
            return None if move is None else tokens @ self._tensor(move.matrix) + self._tensor(move.shift)

        pooled: list[Tensor] = []
        with self._lock, _hooks() as hook:
            for i, block in enumerate(self.parts.blocks):
                hook.after(block, partial(leave, i))
            hook.before(self.parts.head, lambda features: pooled.append(features.flatten(1)))
            self.module(self._images(batch))
        values = to_numpy(pooled[0])[None]
        return {Tap.POOLED: values, Tap.LOGITS: self._head(values)}

    def _images(self, batch: Batch) -> Tensor:
        if not isinstance(batch, BlackBatch) or tuple(batch.given.shape[1:]) != self.spec.image_shape:
            raise foreign(batch)
        return self._tensor(batch.given)

    def _tensor(self, array: Images) -> Tensor:
        return torch.as_tensor(array).to(self.device, self.dtype)

    def _by_row(self, array: Floats, candidates: int, images: int) -> Tensor:
        every = np.broadcast_to(array, (candidates, images, *array.shape[2:])).reshape(-1, *array.shape[2:])
        return self._tensor(every.copy())

    def _forward(self, images: Tensor, now: Pass) -> Tensor:
        """Run the module under hooks, and return what its head reads."""
        pooled: list[Tensor] = []
        parts = self.parts
        with self._lock, _hooks() as hook:
            for i, block in enumerate(parts.blocks):
                hook.before(block, partial(now.enter, i))
            for norm in parts.norms[1:]:
                hook.after(norm, lambda tokens: now.record(Tap.FEATURES, now.token(tokens).clone()))
            hook.after(parts.blocks[-1], lambda tokens: now.record(Tap.CLS, now.token(tokens).clone()))
            hook.before(parts.head, lambda features: pooled.append(features.flatten(1)))
            self.module(images)
        now.record(Tap.FEATURES, pooled[0][:, : self.spec.dim])
        return pooled[0]


class Hooks:
    """Hooks of one thread on parts of a module. A function that returns a tensor replaces what it was given."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.thread = threading.get_ident()

    def before(self, module: nn.Module, call: Callable[[Tensor], Tensor | None]) -> None:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401
            if threading.get_ident() != self.thread or not (args or kwargs):
                return None
            name = None if args else next(iter(kwargs))
            changed = call(args[0] if name is None else kwargs[name])
            if changed is None:
                return None
            return ((changed, *args[1:]), kwargs) if name is None else (args, {**kwargs, name: changed})

        self.stack.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)

    def after(self, module: nn.Module, call: Callable[[Tensor], Tensor | None]) -> None:
        def hook(module: nn.Module, args: Any, output: Any) -> Any:  # noqa: ANN401
            if threading.get_ident() != self.thread:
                return None
            first = output[0] if isinstance(output, tuple) else output
            changed = call(first)
            if changed is None or not isinstance(output, tuple):
                return changed
            return (changed, *output[1:])

        self.stack.callback(module.register_forward_hook(hook).remove)


@contextmanager
def _hooks() -> Iterator[Hooks]:
    with ExitStack() as stack:
        yield Hooks(stack)


def hooked(module: nn.Module, image_size: tuple[int, int] | None = None, chunk: int | None = None) -> HookedEngine:
    """Find the tokens of a module, or raise :class:`NoTokensError` with the reason."""
    try:
        with torch.no_grad():
            return _hooked(module, image_size, chunk)
    except NoTokensError:
        raise
    except Exception as error:  # a module may raise anything on images of the wrong size
        reason = str(error).partition("\n")[0][:200]
        raise NotRunError(f"it cannot be taken apart ({type(error).__name__}: {reason})") from error


def _hooked(module: nn.Module, image_size: tuple[int, int] | None, chunk: int | None) -> HookedEngine:
    kinds = {type(part).__name__.lower() for part in module.modules()}
    if not any("attention" in kind or "attn" in kind for kind in kinds):
        raise NoTokensError(f"it has no attention, {NOT_A_TRANSFORMER}")
    weight = next((weight for weight in module.parameters() if weight.is_floating_point()), None)
    convolution = next((part for part in module.modules() if isinstance(part, nn.Conv2d)), None)
    size = image_size or _image_size(module)
    if weight is None or convolution is None or size is None:
        raise NoTokensError("it does not state the size of its images; give image_size=")
    numbers = np.random.Generator(np.random.Philox(0))
    shape = (1, convolution.in_channels, *size)
    image, other = (numbers.standard_normal(shape).astype(np.float32) for _ in range(2))

    def tensor(array: Floats) -> Tensor:
        return torch.as_tensor(array).to(weight)

    parts, logits = _parts(module, tensor(image))

    def first_tokens(images: Floats) -> Floats:
        seen: list[Tensor] = []
        with _hooks() as hook:
            hook.before(parts.blocks[0], lambda tokens: seen.append(tokens.clone()))
            module(tensor(images))
        return to_numpy(seen[0])

    layout = find_layout(first_tokens, image, other)
    rows, columns = layout.grid
    plain = black_box(module, image_size=size).spec
    spec = replace(
        plain,
        depth=len(parts.blocks),
        dim=layout.tokens.shape[2],
        classes=logits.shape[1],
        channels=convolution.in_channels,
        patch_size=(size[0] // rows, size[1] // columns),
        head_width=parts.head.in_features,
        fingerprint=f"hooked-{plain.fingerprint}",
        class_token=False,
    )
    if spec.head_width < spec.dim:
        raise NoTokensError(f"its head reads {spec.head_width} numbers, fewer than the {spec.dim} of a token")

    def reads(token: int) -> bool:
        """Whether the head reads a token that leaves the last block."""

        def change(tokens: Tensor) -> Tensor:
            changed = tokens.clone()
            changed[:, token] = changed[:, token].flip(-1)
            return changed

        with _hooks() as hook:
            hook.after(parts.blocks[-1], change)
            return bool((_logits(module(tensor(image))) - logits).abs().max() > LEAST_CHANGE * logits.std())

    first = layout.prefix > 0 and reads(0)
    if not first and not reads((layout.prefix + layout.tokens.shape[1]) // 2):
        raise NoTokensError("its head reads none of the tokens that were found")
    engine = HookedEngine(module, parts, replace(spec, class_token=first), layout.prefix, chunk)
    _prove(engine, image, to_numpy(logits))
    return engine


def _image_size(module: nn.Module) -> tuple[int, int] | None:
    """What timm's and transformers' modules state, somewhere within."""
    holders = [holder for part in module.modules() for holder in (part, getattr(part, "config", None))]
    for holder in holders:
        for name in ("img_size", "image_size"):
            size = getattr(holder, name, None)
            if isinstance(size, int):
                return size, size
            if isinstance(size, (tuple, list)) and len(size) == 2:
                return int(size[0]), int(size[1])
    return None


def _logits(output: Any) -> Tensor:  # noqa: ANN401 - of any module
    answers = [getattr(output, name) for name in ("logits", "image_embeds") if hasattr(output, name)]
    logits = answers[0] if answers else output
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise NoTokensError("it does not return logits [B, classes]")
    return logits


def _parts(module: nn.Module, image: Tensor) -> tuple[Parts, Tensor]:
    """Watch one pass: which modules take tokens and return tokens, and which layer makes the logits."""
    took: dict[nn.Module, Tensor] = {}
    gave: dict[nn.Module, Tensor] = {}
    order: list[nn.Module] = []

    def watch(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:  # noqa: ANN401
        first_input = args[0] if args else next(iter(kwargs.values()), None)
        first_output = output[0] if isinstance(output, tuple) else output
        if isinstance(first_input, Tensor) and isinstance(first_output, Tensor):
            took[part] = first_input
            gave[part] = first_output
            order.append(part)

    handles = [part.register_forward_hook(watch, with_kwargs=True) for part in module.modules()]
    try:
        logits = _logits(module(image))
    finally:
        for handle in handles:
            handle.remove()

    def is_block(part: nn.Module) -> bool:
        return part in took and took[part].ndim == 3 and took[part].shape == gave[part].shape

    lists = [list(part) for part in module.modules() if isinstance(part, (nn.ModuleList, nn.Sequential))]
    lists = [blocks for blocks in lists if len(blocks) >= LEAST_BLOCKS and all(map(is_block, blocks))]
    lists = [blocks for blocks in lists if len({type(block) for block in blocks}) == 1]
    if not lists:
        raise NoTokensError("it has no list of blocks that take and return [B, tokens, width]")
    blocks = max(lists, key=len)
    if any(type(part) is type(blocks[0]) for part in order if part not in blocks):
        raise NoTokensError("its blocks stand in stages, between which the tokens change in number and width")
    norms = []
    for block in blocks:
        readers = [part for part in order if part in set(block.modules()) - {block} and took[part] is took[block]]
        if not readers or "norm" not in type(readers[0]).__name__.lower():
            raise NoTokensError("its blocks do not begin with a norm of their tokens")
        norms.append(readers[0])
    heads = [part for part in order if isinstance(part, nn.Linear) and gave[part].numel() == logits.numel()]
    if not heads or not torch.allclose(gave[heads[-1]].flatten(), logits.flatten()):
        raise NoTokensError("its logits are not made by a linear layer")
    return Parts(blocks, norms, heads[-1]), logits


def _prove(engine: HookedEngine, image: Floats, logits: Floats) -> None:
    """Raise :class:`NoTokensError` unless the head gives the logits, and moves reach exactly the blocks after them."""
    batch = engine.check(image)
    taps = engine.run(batch, taps=taps_of(engine))
    if not np.abs(taps[Tap.LOGITS][0] - logits).max() <= TOLERANCE * np.abs(logits).max():
        raise NoTokensError("its head does not give its logits")
    check_reach(engine, batch, taps)
