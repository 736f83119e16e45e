"""Engines that run a file written by ``fozo export``: all of them but the runtime itself.

A runtime computes named outputs from named inputs; a subclass brings it. What is here is the rest of the engine's
contract: checks, knobs as arrays, chunks, and the head.

A call takes some images under some candidates, at most ``chunk`` passes in all, so activations stay in the
processor's cache and peak memory does not grow with the batch or with the number of candidates. Candidates of the
same images share a call, because that is where the graph shares their work.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fozo.core.normalisation import check_images
from fozo.engines.onnx.schema import HEAD_BIAS, HEAD_WEIGHT, IMAGES, MOVES, PROMPTS
from fozo.errors import FozoError
from fozo.io.system import usable_cpus
from fozo.types import NO_KNOBS, Affine, Batch, Floats, Images, Knobs, Move, Spec, Tap, Taps, Threads, engine_repr

if TYPE_CHECKING:
    from typing_extensions import Self

Float32 = npt.NDArray[np.float32]
Execute: TypeAlias = Callable[[Sequence[str], dict[str, Float32]], list[Float32]]  # names of outputs, inputs by name
WHOLE = slice(None)
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


class GraphEngine:
    """An engine over an exported model."""

    abilities = frozenset({"tokens"})
    device = "cpu"

    def __init__(
        self, spec: Spec, execute: Execute, chunk: int | None, threads: Threads, calls: Threads | None = None
    ) -> None:
        """Read the head. ``calls`` are the threads that make calls at a time; all ``threads`` by default."""
        self.threads, self.calls = threads, calls or threads
        self.chunk = max(1, CALL_TOKENS // (1 + spec.patches)) if chunk is None else chunk
        if self.chunk < 1:
            raise FozoError(f"chunk must be at least 1, not {chunk}")
        self.spec, self.execute = spec, execute
        self._warned: set[str] = set()
        layers = (1, 1, spec.depth, spec.dim)
        unmoved = np.ones(layers, np.float32), np.zeros(layers, np.float32)
        self._unmoved = Move(*unmoved)
        feeds = {IMAGES: np.zeros((1, *spec.image_shape), np.float32), PROMPTS: np.zeros((1, 0, spec.dim), np.float32)}
        feeds |= dict(zip(MOVES, 2 * unmoved, strict=True))
        try:
            weight, bias = execute([HEAD_WEIGHT, HEAD_BIAS], feeds)
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

    __repr__ = engine_repr

    def head(self) -> Affine:
        return self._head

    def adjust(self, classes: Sequence[int] | None, **changes: Any) -> Self:  # noqa: ANN401 - fields of a spec
        """Change fields of the spec that are given, and keep only some classes of the head. Returns the engine."""
        self.spec = replace(self.spec, **{name: value for name, value in changes.items() if value is not None})
        if classes is not None:
            self.spec, rows = self.spec.restricted(classes), list(classes)
            self._head = Affine(np.ascontiguousarray(self._head.weight[:, rows]), self._head.bias[rows])
        return self

    def check(self, images: Images) -> GraphBatch:
        check_images(images, self.spec, self._warned)
        array = images if isinstance(images, np.ndarray) else images.detach().cpu().float().numpy()
        return GraphBatch(np.ascontiguousarray(array, dtype=np.float32))

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        spec = self.spec
        if not isinstance(batch, GraphBatch) or batch.images.shape[1:] != spec.image_shape:
            raise FozoError(f"this batch ({type(batch).__name__}) is another engine's; check the images with this one")
        count = len(batch.images)
        k = knobs.check(spec, count)
        found: Taps = {}
        for tap in taps:
            if tap in (Tap.LOGITS, Tap.POOLED):
                found[Tap.POOLED] = np.empty((k, count, spec.head_width), dtype=np.float32)
            else:
                found[tap] = np.empty((k, count, spec.depth, spec.dim), dtype=np.float32)
        prompts = np.zeros((k, 0, spec.dim)) if knobs.prompts is None else knobs.prompts
        cls, patches = knobs.cls or self._unmoved, knobs.patches or self._unmoved
        moves = np.broadcast_arrays(cls.scale, cls.shift, patches.scale, patches.shift)  # [K or 1, B or 1, L, d]

        def call(part: tuple[slice, slice]) -> None:
            candidates, images = part
            own = candidates if len(moves[0]) > 1 else WHOLE, images if moves[0].shape[1] > 1 else WHOLE
            feeds = {IMAGES: batch.images[images], PROMPTS: np.ascontiguousarray(prompts[candidates], np.float32)}
            for name, move in zip(MOVES, moves, strict=True):
                feeds[name] = np.ascontiguousarray(move[own], np.float32)
            for values, value in zip(found.values(), self.execute(list(found), feeds), strict=True):
                values[part] = value

        candidates = min(k, self.chunk)
        images = max(1, self.chunk // candidates)
        parts = []
        for first in range(0, count, images):
            for start in range(0, k, candidates):
                parts.append((slice(start, start + candidates), slice(first, first + images)))
        self.calls.each(call, parts)
        if Tap.LOGITS in taps:
            # Applied to the whole batch, outside of the graph: methods may shift what the head reads, and do so there.
            found[Tap.LOGITS] = self._head(found[Tap.POOLED])
            if Tap.POOLED not in taps:
                del found[Tap.POOLED]
        return found
