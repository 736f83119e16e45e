"""Engines that run a file written by ``fozo export``: all of them but the runtime itself.

A runtime computes named outputs from named inputs; a subclass says how. What is here is the rest of the engine's
contract: checks, knobs as arrays, chunks, and the head.

A call takes some images under some candidates, at most ``chunk`` passes in all, so activations stay in the
processor's cache and peak memory does not grow with the batch or with the number of candidates. Candidates of the
same images share a call, because that is where the graph shares their work.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fozo.core.normalisation import check_images
from fozo.engines.onnx.schema import HEAD_BIAS, HEAD_WEIGHT, IMAGES, MOVES, PROMPTS
from fozo.errors import FozoError
from fozo.io.system import usable_cpus
from fozo.types import (
    NO_KNOBS,
    Affine,
    Batch,
    Floats,
    Images,
    Knobs,
    Spec,
    Tap,
    Taps,
    Threads,
    check_classes,
    engine_repr,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Float32 = npt.NDArray[np.float32]

TAP_NAME = attrgetter("value")
CALL_TOKENS = 800
"""How many tokens go through the blocks in one call: half of what the torch engine takes at a time is as fast, and the
eight images of one of Align's groups are then two calls, which go side by side. Not by the number of threads: INT8
measures ranges by the call, so results would too."""


@dataclass(frozen=True)
class GraphBatch:
    """Checked images. The graph embeds them again in every call, which is under one percent of the call's work."""

    images: Float32

    def __len__(self) -> int:
        return len(self.images)

    def part(self, images: slice) -> GraphBatch:
        return GraphBatch(self.images[images])

    def with_images(self, images: Floats) -> GraphBatch:
        return GraphBatch(np.ascontiguousarray(images, dtype=np.float32))


def model_path(path: str | os.PathLike[str]) -> Path:
    file = Path(path)
    if not file.is_file():
        raise FozoError(f"there is no file {file}; check the path, or write it with: fozo export MODEL -o {file.name}")
    return file


def unreadable(path: Path, error: Exception) -> FozoError:
    return FozoError(
        f"{path} is not a readable ONNX model ({type(error).__name__}); it may be truncated: export it again"
    )


def thread_count(threads: int | None) -> int:
    """Check the user's choice, or take every processor that this process may use."""
    if threads is not None and threads < 1:
        raise FozoError(f"threads must be at least 1, not {threads}")
    return usable_cpus() if threads is None else threads


class GraphEngine(ABC):
    """An engine over an exported model."""

    abilities = frozenset({"tokens"})
    device = "cpu"

    def __init__(self, spec: Spec, chunk: int | None, threads: Threads, calls: Threads | None = None) -> None:
        """Read the head; a subclass is ready to :meth:`execute` before it calls this.

        ``calls`` are the threads that :meth:`execute` may be called on at a time; all ``threads`` by default.
        """
        self.threads, self.calls = threads, calls or threads
        self.chunk = max(1, CALL_TOKENS // (1 + spec.patches)) if chunk is None else chunk
        if self.chunk < 1:
            raise FozoError(f"chunk must be at least 1, not {chunk}")
        self.spec = spec
        self._warned: set[str] = set()
        blank = np.zeros((1, *spec.image_shape), dtype=np.float32)
        feeds = {IMAGES: blank, **_feeds(NO_KNOBS, spec, slice(0, 1), slice(0, 1))}
        try:
            weight, bias = self.execute(feeds, (HEAD_WEIGHT, HEAD_BIAS))
        except Exception as error:  # whatever a runtime raises
            raise FozoError(
                f"the graph of {spec.name} does not run ({type(error).__name__}); export it again"
            ) from error
        if (weight.shape, bias.shape) != ((spec.head_width, spec.classes), (spec.classes,)):
            raise FozoError(
                f"the head of {spec.name} is {list(weight.shape)}, not {[spec.head_width, spec.classes]} as its "
                f"metadata says; export it again"
            )
        self._head = Affine(weight, bias)

    def __repr__(self) -> str:
        return engine_repr(self)

    @abstractmethod
    def execute(self, feeds: Mapping[str, Float32], outputs: Sequence[str]) -> list[Float32]:
        """Run the graph once."""

    def head(self) -> Affine:
        return self._head

    def adjust(
        self,
        mean: tuple[float, ...] | None,
        std: tuple[float, ...] | None,
        labels: Sequence[str] | None,
        classes: Sequence[int] | None,
    ) -> Self:
        """Use another normalisation, other names, or only some classes of the head. Returns the engine itself."""
        spec = self.spec
        names = spec.labels if labels is None else tuple(labels)
        spec = self.spec = replace(spec, mean=mean or spec.mean, std=std or spec.std, labels=names)
        if classes is not None:
            if spec.subset is not None:
                raise FozoError(f"{spec.name} was exported with {spec.classes} of its classes; leave classes= out")
            subset = check_classes(classes, spec.classes)
            labels = None if spec.labels is None else tuple(spec.labels[i] for i in subset)
            self.spec = replace(spec, classes=len(subset), subset=tuple(subset), labels=labels)
            self._head = Affine(np.ascontiguousarray(self._head.weight[:, subset]), self._head.bias[subset])
        return self

    def check(self, images: Images) -> GraphBatch:
        check_images(images, self.spec, self._warned)
        array = images if isinstance(images, np.ndarray) else images.detach().cpu().float().numpy()
        return GraphBatch(np.ascontiguousarray(array, dtype=np.float32))

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        spec, count = self.spec, len(batch)
        if not isinstance(batch, GraphBatch) or batch.images.shape[1:] != spec.image_shape:
            raise FozoError(f"this batch ({type(batch).__name__}) is another engine's; check the images with this one")
        k = knobs.check(spec, count)
        found: Taps = {}
        for tap in taps:
            if tap in (Tap.LOGITS, Tap.POOLED):
                found[Tap.POOLED] = np.empty((k, count, spec.head_width), dtype=np.float32)
            else:
                found[tap] = np.empty((k, count, spec.depth, spec.dim), dtype=np.float32)
        fetched, names = list(found.values()), list(map(TAP_NAME, found))

        def call(part: tuple[slice, slice]) -> None:
            feeds = {IMAGES: batch.images[part[1]], **_feeds(knobs, spec, *part)}
            for values, value in zip(fetched, self.execute(feeds, names), strict=True):
                values[part] = value

        candidates = min(k, self.chunk)
        images = max(1, self.chunk // candidates)
        parts = []
        for first in range(0, count, images):
            for start in range(0, k, candidates):
                parts.append((slice(start, min(start + candidates, k)), slice(first, min(first + images, count))))
        self.calls.each(call, parts)
        if Tap.LOGITS in taps:
            # Applied to the whole batch, outside of the graph: methods may shift what the head reads, and do so there.
            found[Tap.LOGITS] = self._head(found[Tap.POOLED])
            if Tap.POOLED not in taps:
                del found[Tap.POOLED]
        return found


@lru_cache(maxsize=16)
def _identity(*shape: int) -> tuple[Float32, Float32]:
    """Scale and shift of no move: made once, because a knob that is off should cost nothing."""
    return np.ones(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)


def _feeds(knobs: Knobs, spec: Spec, candidates: slice, images: slice) -> dict[str, Float32]:
    """Write the knobs for some candidates and images as the graph's inputs, whose moves all have one shape."""
    count = candidates.stop - candidates.start
    prompts = np.zeros((count, 0, spec.dim)) if knobs.prompts is None else knobs.prompts[candidates]
    moves = [None if move is None else (move.scale, move.shift) for move in (knobs.cls, knobs.patches)]
    given = [part for move in moves if move is not None for part in move]
    one_each = any(len(part) > 1 for part in given), any(part.shape[1] > 1 for part in given)
    shape = (count if one_each[0] else 1, images.stop - images.start if one_each[1] else 1, spec.depth, spec.dim)
    feeds = {PROMPTS: np.ascontiguousarray(prompts, dtype=np.float32)}
    for names, move in zip((MOVES[:2], MOVES[2:]), moves, strict=True):
        for name, part in zip(names, _identity(*shape) if move is None else move, strict=True):
            if move is not None:
                part = part[candidates] if len(part) > 1 else part
                part = part[:, images] if part.shape[1] > 1 else part
                part = np.ascontiguousarray(np.broadcast_to(part, shape), dtype=np.float32)
            feeds[name] = part
    return feeds
