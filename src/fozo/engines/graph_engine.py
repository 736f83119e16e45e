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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fozo.engines.base import (
    CPU_TOKENS,
    NO_KNOBS,
    Floats,
    Images,
    Knobs,
    Spec,
    Taps,
    Tokens,
    check_images,
    refuse_broken,
)
from fozo.engines.graph_file import HEAD_BIAS, HEAD_WEIGHT, IMAGES, MOVES, PATCH_TAPS, PROMPTS, TAPS
from fozo.errors import FozoError

if TYPE_CHECKING:
    from typing_extensions import Self

Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True)
class GraphTokens:
    """A checked batch. The graph embeds it anew in every call, which is under one percent of the call's work."""

    images: Float32

    @property
    def batch(self) -> int:
        """Number of images."""
        return len(self.images)


def model_path(path: str | os.PathLike[str]) -> Path:
    """Refuse a path that leads nowhere, before a runtime says so in its own words."""
    file = Path(path)
    if not file.is_file():
        raise FozoError(f"there is no file {file}; check the path, or write it with: fozo export MODEL -o {file.name}")
    return file


def unreadable(path: Path, error: Exception) -> FozoError:
    """What to raise when a runtime cannot read a file."""
    return FozoError(
        f"{path} is not a readable ONNX model ({type(error).__name__}); it may be truncated: export it again"
    )


def thread_count(threads: int | None) -> int:
    """Check the user's choice, or count the processors that this process may use."""
    if threads is None:
        usable = getattr(os, "sched_getaffinity", None)
        return len(usable(0)) if usable else os.cpu_count() or 1
    if threads < 1:
        raise FozoError(f"threads must be at least 1, not {threads}")
    return threads


class GraphEngine(ABC):
    """An engine over an exported model."""

    def __init__(self, spec: Spec, chunk: int | None) -> None:
        """Read the head; a subclass is ready to :meth:`execute` before it calls this."""
        # Half of what torch takes at a time: as fast, and the eight images that FOZO looks at together are two calls,
        # which go side by side. Not by the number of threads: INT8 measures ranges by the call, so results would too.
        self.chunk = max(1, CPU_TOKENS // 2 // (1 + spec.patches)) if chunk is None else chunk
        """How many images (times candidates) go through the blocks together."""
        if self.chunk < 1:
            raise FozoError(f"chunk must be at least 1, not {chunk}")
        self._spec = spec
        blank = np.zeros((1, *spec.image_shape), dtype=np.float32)
        feeds = {IMAGES: blank, **_cut(NO_KNOBS, spec, slice(0, 1), slice(0, 1))}
        self._weight, self._bias = self.execute(feeds, (HEAD_WEIGHT, HEAD_BIAS))

    @abstractmethod
    def execute(self, feeds: Mapping[str, Float32], outputs: Sequence[str]) -> list[Float32]:
        """Run the graph once."""

    @property
    def spec(self) -> Spec:
        """The model's facts."""
        return self._spec

    def adjust(
        self,
        *,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        classes: Sequence[int] | None = None,
    ) -> Self:
        """Use another normalisation, or only some classes of the head. Returns the engine itself."""
        spec = self._spec
        self._spec = replace(spec, mean=mean or spec.mean, std=std or spec.std)
        if classes is not None:
            self._restrict(list(classes))
        return self

    def _restrict(self, classes: list[int]) -> None:
        spec = self._spec
        if spec.subset is not None:
            raise FozoError(f"{spec.name} was exported with {spec.classes} of its classes; leave classes= out")
        if not classes or len(set(classes)) < len(classes) or min(classes) < 0 or max(classes) >= spec.classes:
            raise FozoError(
                f"classes must be distinct indices below {spec.classes}, at least one; check the class mask"
            )
        labels = None if spec.labels is None else tuple(spec.labels[i] for i in classes)
        self._spec = replace(spec, classes=len(classes), subset=tuple(classes), labels=labels)
        self._weight, self._bias = np.ascontiguousarray(self._weight[:, classes]), self._bias[classes]

    def embed(self, images: Images) -> GraphTokens:
        """Check a batch."""
        check_images(tuple(images.shape), images.dtype, self.spec)
        array = images if isinstance(images, np.ndarray) else images.detach().cpu().float().numpy()
        with np.errstate(over="ignore"):  # what overflows float32 is refused in the next line, by image
            batch = np.ascontiguousarray(array, dtype=np.float32)
        refuse_broken(np.all(np.isfinite(batch), axis=(1, 2, 3)))
        return GraphTokens(batch)

    def run(self, tokens: Tokens, knobs: Knobs = NO_KNOBS, *, patch_moments: bool = False) -> Taps:
        """Run every candidate over the batch."""
        if not isinstance(tokens, GraphTokens):
            raise FozoError(f"these tokens ({type(tokens).__name__}) are another engine's; embed with this one")
        spec, batch = self.spec, tokens.batch
        if tokens.images.shape[1:] != spec.image_shape:
            raise FozoError("these tokens are of an engine with another image size; embed with this one")
        knobs.check(spec, batch)
        k = knobs.candidates()
        names = TAPS + PATCH_TAPS if patch_moments else TAPS
        shapes = dict.fromkeys(names, (k, batch, spec.depth, spec.dim)) | {"pooled": (k, batch, spec.head_width)}
        taps = {name: np.empty(shape, dtype=np.float32) for name, shape in shapes.items()}

        def call(part: tuple[slice, slice]) -> None:
            candidates, images = part
            feeds = {IMAGES: tokens.images[images], **_cut(knobs, spec, candidates, images)}
            for name, value in zip(names, self.execute(feeds, names), strict=True):
                taps[name][part] = value

        self.each(call, list(self._calls(k, batch)))
        return Taps(**taps)

    def each(self, call: Callable[[tuple[slice, slice]], None], parts: Sequence[tuple[slice, slice]]) -> None:
        """Make the calls of one run; a runtime that gains by it makes several at a time."""
        for part in parts:
            call(part)

    def _calls(self, k: int, batch: int) -> Iterator[tuple[slice, slice]]:
        """Cut candidates times images into calls of at most ``chunk`` passes."""
        candidates = min(k, self.chunk)
        images = max(1, self.chunk // candidates)
        for first in range(0, batch, images):
            for start in range(0, k, candidates):
                yield slice(start, min(start + candidates, k)), slice(first, min(first + images, batch))

    def logits(self, pooled: Floats) -> Floats:
        """Apply the head."""
        logits: Floats = np.asarray(pooled, dtype=np.float32) @ self._weight + self._bias
        return logits


def _cut(knobs: Knobs, spec: Spec, candidates: slice, images: slice) -> dict[str, Float32]:
    """Write the knobs for some candidates and images as the graph's inputs; a knob that is off does nothing."""
    if knobs.prompts is None:
        prompts = np.zeros((candidates.stop - candidates.start, 0, spec.dim))
    else:
        prompts = knobs.prompts[candidates]
    still = np.ones((1, 1, spec.depth, spec.dim)), np.zeros((1, 1, spec.depth, spec.dim))
    moves = []
    for move in (knobs.cls, knobs.patches):
        for part in still if move is None else (move.scale, move.shift):
            part = part[candidates] if len(part) > 1 else part
            moves.append(part[:, images] if part.shape[1] > 1 else part)
    arrays = (prompts, *np.broadcast_arrays(*moves))
    return {
        name: np.ascontiguousarray(array, dtype=np.float32)
        for name, array in zip((PROMPTS, *MOVES), arrays, strict=True)
    }
