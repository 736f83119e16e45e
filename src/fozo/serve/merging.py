"""Requests of several cameras in one pass: an engine whose ``run`` may be called by many threads at once.

Each camera has its own memory, and so its own method; they share only the model. Methods need not know of each other:
calls that arrive at the same time are concatenated here, run once, and split again. Moves are per image already, so
images under different moves go through the blocks side by side.

* A pass begins at once if every announced caller is waiting.
* Otherwise it begins ``max_delay`` after the first call came.
* While a pass is under way, the next one gathers.

A model whose answer to an image depends on the other images of its batch (:func:`is_independent`) is not merged unless
an operator asks for it. Calls that cannot be merged (prompts, or several candidates) run alone, in their turn. If a
merged pass fails, its calls run one by one.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from fozo.engines.base import EngineBase
from fozo.types import NO_KNOBS, Batch, Engine, Floats, Knobs, Move, Spec, Tap, Taps

LOG = logging.getLogger("fozo.serve")


@dataclass(eq=False)
class _Call:
    """One caller's batch, and its result."""

    batch: Batch
    knobs: Knobs
    taps: tuple[Tap, ...]
    deadline: float
    done: bool = False
    result: Taps = field(default_factory=dict)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self.mergeable = self.knobs.prompts is None and self.knobs.candidates() == 1
        self.woken = threading.Event()  # set when it is done, or its thread is to look whether a pass should begin

    def fits(self, other: _Call) -> bool:
        same = type(self.batch) is type(other.batch) and self.batch.images.shape[1:] == other.batch.images.shape[1:]
        return self.mergeable and other.mergeable and self.taps == other.taps and same


class MergingEngine(EngineBase):
    """Runs another engine for many threads.

    Args:
        engine: what runs the model.
        max_delay: seconds that a call may wait for others.
        max_batch: images in a merged pass at most; a single call may have more.
    """

    def __init__(self, engine: Engine, *, max_delay: float = 0.002, max_batch: int = 32) -> None:
        self.engine = engine
        self.max_delay = max_delay
        self.max_batch = max_batch
        # Other abilities (gradients, walking through blocks) are for one caller at a time.
        self.abilities = engine.abilities & {"tokens", "prompts", "matrices"}
        self.device = engine.device
        self.threads = engine.threads
        self.check = engine.check
        self.head = engine.head
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._callers = 0
        self._running = False

    @property
    def spec(self) -> Spec:
        return self.engine.spec  # a black box learns its classes with its first batch

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Announce that this thread is at work and will call :meth:`run`: other calls wait for it a little."""
        with self._lock:
            self._callers += 1
        try:
            yield
        finally:
            with self._lock:
                self._callers -= 1
                self._wake()

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        if "tokens" in self.abilities:
            knobs.check(self.spec, len(batch))  # here, so that only this caller sees the error
        call = _Call(batch, knobs, tuple(taps), time.monotonic() + self.max_delay)
        with self._lock:
            self._waiting.append(call)
        try:
            while not call.done:
                with self._lock:
                    call.woken.clear()
                    group, patience = ([], None) if call.done else self._next(call)
                if group:
                    self._run(group)
                elif not call.done:
                    call.woken.wait(patience)
        finally:
            with self._lock:
                if call in self._waiting:  # after Ctrl-C
                    self._waiting.remove(call)
                self._wake()
        if call.error is not None:
            raise call.error
        return call.result

    def _wake(self) -> None:
        """Let the thread of the oldest call look whether a pass should begin. Needs the lock."""
        if self._waiting and not self._running:
            self._waiting[0].woken.set()

    def _next(self, call: _Call) -> tuple[list[_Call], float | None]:
        """Return the calls that this thread is to run now, or how long it may sleep. Needs the lock."""
        if self._running or call not in self._waiting:
            return [], None  # the running thread will wake it
        first = self._waiting[0]
        now = time.monotonic()
        group = list[_Call]()
        others = list[_Call]()
        images = 0
        for waiting in self._waiting:
            if waiting is first or (waiting.fits(first) and images + len(waiting.batch) <= self.max_batch):
                group.append(waiting)
                images += len(waiting.batch)
            else:
                others.append(waiting)
        all_waiting = len(self._waiting) >= self._callers
        left = first.deadline - now
        if not (all_waiting or images >= self.max_batch or not first.mergeable or left <= 0):
            return [], left if call is first else None
        self._waiting = others
        self._running = True
        return group, None

    def _run(self, group: list[_Call]) -> None:
        """Run some calls as one; if that fails, one by one, so that a caller's error reaches only that caller."""
        try:
            if len(group) > 1:
                try:
                    self._run_merged(group)
                    return
                except Exception as error:
                    images = sum(len(call.batch) for call in group)
                    LOG.error("a pass of %d images of several cameras failed; one by one now", images, exc_info=error)
            for call in group:
                try:
                    call.result = self.engine.run(call.batch, call.knobs, call.taps)
                except BaseException as error:  # raised where it was called
                    call.error = error
        finally:
            with self._lock:
                self._running = False
                for call in group:
                    call.done = True
                    call.woken.set()
                self._wake()

    def _run_merged(self, group: list[_Call]) -> None:
        counts = [len(call.batch) for call in group]
        images = np.concatenate([call.batch.images for call in group])
        cls, patches = ([getattr(call.knobs, kind) for call in group] for kind in ("cls", "patches"))
        knobs = Knobs(
            cls=_merge_moves(cls, counts),
            patches=_merge_moves(patches, counts),
            matrices=_merge_matrices([call.knobs.matrices for call in group], counts),
        )
        result = self.engine.run(group[0].batch.with_images(images), knobs, group[0].taps)
        for call, count, end in zip(group, counts, np.cumsum(counts), strict=True):
            call.result = {tap: array[:, end - count : end] for tap, array in result.items()}


def is_independent(engine: Engine) -> bool:
    """Whether an image's logits are the same beside a gray and beside a harsh image.

    Batches of one size go through the same kernels, so only what is estimated from a whole batch can differ: the ranges
    of dynamic quantisation (``DynamicQuantizeLinear`` in ONNX).
    """
    spec = engine.spec
    numbers = np.random.default_rng(0)
    mean, std = (np.reshape(values, (-1, 1, 1)) for values in spec.normalisation or (0.0, 1.0))
    gray = numbers.uniform(0.4, 0.6, (2, *spec.image_shape))
    harsh = np.stack([gray[0], numbers.integers(0, 2, spec.image_shape)])
    batches = [engine.check(((pixels - mean) / std).astype(np.float32)) for pixels in (gray, harsh)]
    try:
        one, other = (engine.run(batch)[Tap.LOGITS][0, 0] for batch in batches)
    except Exception:  # it takes one image at a time
        return False
    return bool(np.abs(one - other).max() <= 1e-4 * max(1.0, np.abs(one).max()))


def _merge_moves(moves: Sequence[Move | None], counts: Sequence[int]) -> Move | None:
    scale = _merge([None if move is None else move.scale for move in moves], counts, 1.0)
    shift = _merge([None if move is None else move.shift for move in moves], counts, 0.0)
    return None if scale is None or shift is None else Move(scale, shift)


def _merge_matrices(matrices: Sequence[Floats | None], counts: Sequence[int]) -> Floats | None:
    return _merge(matrices, counts, np.eye(max(0 if values is None else values.shape[-1] for values in matrices)))


def _merge(arrays: Sequence[Floats | None], counts: Sequence[int], neutral: Floats | float) -> Floats | None:
    """Concatenate arrays ``[1, images or 1, ...]`` of several batches of ``counts`` images; ``neutral`` for none."""
    like = next((array for array in arrays if array is not None), None)
    if like is None:
        return None
    merged = np.empty((1, sum(counts), *like.shape[2:]), like.dtype)
    merged[:] = neutral
    for array, count, end in zip(arrays, counts, np.cumsum(counts), strict=True):
        if array is not None:
            merged[:, end - count : end] = array
    return merged
