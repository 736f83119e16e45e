"""Requests of several cameras in one pass: an engine whose ``run`` may be called by many threads at once.

Each camera has a memory of its own, and so a method of its own; all that they share is the model. Their methods need
not know of each other: what they ask of the engine at the same time is put together here, run once, and taken apart
again. Moves are one for each image already, so images under different moves go through the blocks side by side.

* Nobody waits for company that cannot come: if every caller at work is waiting, the pass begins.
* Nobody waits for long: ``max_delay`` after the first of them came, it begins with those there are.
* While a pass is under way, the next one gathers.

What cannot be put together (prompts, or several candidates) is run by itself, in its turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from fozo.errors import FozoError
from fozo.types import (
    NO_KNOBS,
    Affine,
    Batch,
    Engine,
    Floats,
    Images,
    Knobs,
    Move,
    Spec,
    Tap,
    Taps,
    Threads,
    engine_repr,
)


class _Call:
    """One caller's wish, and what became of it."""

    def __init__(self, batch: Batch, knobs: Knobs, taps: tuple[Tap, ...], deadline: float) -> None:
        self.batch, self.knobs, self.taps, self.deadline = batch, knobs, taps, deadline
        self.mergeable = knobs.prompts is None and knobs.candidates() == 1
        self.woken = threading.Event()
        """Set when the call is done, or when its thread is to look whether a pass should begin."""
        self.done = False
        self.found: Taps = {}
        self.error: BaseException | None = None

    def goes_with(self, other: _Call) -> bool:
        """Whether both may be run as one."""
        alike = type(self.batch) is type(other.batch) and self.batch.images.shape[1:] == other.batch.images.shape[1:]
        return self.mergeable and other.mergeable and self.taps == other.taps and alike


class MergingEngine:
    """Runs another engine for many threads.

    Args:
        engine: what runs the model.
        max_delay: seconds that a call may wait for others.
        max_batch: images after which nobody is waited for any more.
        passes: how many passes may be under way at a time.
    """

    def __init__(self, engine: Engine, *, max_delay: float = 0.002, max_batch: int = 32, passes: int = 1) -> None:
        if not 0 <= max_delay <= 1:
            raise FozoError(f"max_delay is {max_delay}; give seconds from 0 to 1")
        if max_batch < 1 or passes < 1:
            raise FozoError(f"max_batch is {max_batch} and passes {passes}; give whole numbers from 1 up")
        self.engine, self.max_delay, self.max_batch, self.passes = engine, max_delay, max_batch, passes
        # What else an engine can do (gradients, walking through blocks) it does for one caller at a time.
        self.abilities = engine.abilities & {"tokens"}
        self._lock = threading.Lock()
        self._waiting: list[_Call] = []
        self._callers = self._running = self._served = 0
        self._inside = threading.local()

    def __repr__(self) -> str:
        """Say in one line what runs where."""
        return engine_repr(self)

    @property
    def spec(self) -> Spec:
        """The model's facts."""
        return self.engine.spec

    @property
    def device(self) -> str:
        """Where it computes."""
        return self.engine.device

    @property
    def threads(self) -> Threads:
        """Those of the engine."""
        return self.engine.threads

    def check(self, images: Images) -> Batch:
        """Refuse images that the model cannot read, and convert the others."""
        return self.engine.check(images)

    def head(self) -> Affine:
        """Give the head."""
        return self.engine.head()

    @contextmanager
    def caller(self) -> Iterator[None]:
        """Say that this thread is at work and may call :meth:`run`: others then wait for it, though not for long."""
        with self._lock:
            self._callers += 1
        self._inside.value = True
        try:
            yield
        finally:
            self._inside.value = False
            with self._lock:
                self._callers -= 1
                self._wake()

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        """Run the batch, together with what others want run at the same time."""
        if "tokens" in self.abilities:
            knobs.check(self.spec, len(batch))  # here, so that nobody else is told of it
        call = _Call(batch, knobs, tuple(taps), time.monotonic() + self.max_delay)
        stranger = not getattr(self._inside, "value", False)
        with self._lock:
            self._callers += stranger
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
                self._callers -= stranger
                if call in self._waiting:  # Ctrl-C, say
                    self._waiting.remove(call)
                self._wake()
        if call.error is not None:
            raise call.error
        return call.found

    def _wake(self) -> None:
        """Have the thread whose call waits for longest look whether a pass should begin. To be called locked."""
        if self._waiting and self._running < self.passes:
            self._waiting[0].woken.set()

    def _next(self, call: _Call) -> tuple[list[_Call], float | None]:
        """Give the calls that this thread is to run now, or for how long it may sleep. To be called locked."""
        if self._running >= self.passes or call not in self._waiting:
            return [], None  # whoever runs will wake it
        first = self._waiting[0]
        group, images = list[_Call](), 0
        for each in self._waiting:
            if each is first or (each.goes_with(first) and images + len(each.batch) <= self.max_batch):
                group.append(each)
                images += len(each.batch)
        everybody = len(self._waiting) + self._served >= self._callers
        left = first.deadline - time.monotonic()
        if not (everybody or images >= self.max_batch or not first.mergeable or left <= 0):
            return [], left if call is first else None
        self._waiting = [each for each in self._waiting if each not in group]
        self._running += 1
        self._served += len(group)
        return group, None

    def _run(self, group: list[_Call]) -> None:
        """Run some calls as one; if that fails, each by itself, so that one caller's fault is nobody else's."""
        try:
            if len(group) > 1:
                try:
                    self._run_merged(group)
                    return
                except Exception:
                    pass
            for call in group:
                try:
                    call.found = self.engine.run(call.batch, call.knobs, call.taps)
                except BaseException as error:  # raised where it was called
                    call.error = error
        finally:
            with self._lock:
                self._running -= 1
                self._served -= len(group)
                for call in group:
                    call.done = True
                    call.woken.set()
                self._wake()

    def _run_merged(self, group: list[_Call]) -> None:
        counts = [len(call.batch) for call in group]
        images = np.concatenate([call.batch.images for call in group])
        knobs = merged([call.knobs for call in group], counts)
        found = self.engine.run(group[0].batch.with_images(images), knobs, group[0].taps)
        ends = np.cumsum(counts)
        for call, count, end in zip(group, counts, ends, strict=True):
            call.found = {tap: array[:, end - count : end] for tap, array in found.items()}


def merged(knobs: Sequence[Knobs], counts: Sequence[int]) -> Knobs:
    """Moves of several batches, of so many images each, as one: a row for each image."""
    return Knobs(
        cls=_merged([each.cls for each in knobs], counts), patches=_merged([each.patches for each in knobs], counts)
    )


def _merged(moves: Sequence[Move | None], counts: Sequence[int]) -> Move | None:
    made = next((move for move in moves if move is not None), None)
    if made is None:
        return None
    form = made.scale.shape[2:]

    def rows(parts: Sequence[Floats | None], still: float) -> Floats:
        found = np.full((1, sum(counts), *form), still, dtype=made.scale.dtype)
        end = 0
        for part, count in zip(parts, counts, strict=True):
            end += count
            if part is not None:
                found[:, end - count : end] = part
        return found

    scales = [None if move is None else move.scale for move in moves]
    shifts = [None if move is None else move.shift for move in moves]
    return Move(rows(scales, 1.0), rows(shifts, 0.0))
