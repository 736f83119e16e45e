"""What watches a method: it sees every batch after its prediction, and never changes one."""

from __future__ import annotations

import logging
import math
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fozo.state import State
from fozo.types import Array, Batch, Floats

LOG = logging.getLogger(__name__)
REPORT_SECONDS = 60.0  # between two log lines about an observer that keeps failing

W = TypeVar("W", bound=State)


class DriftReading(Protocol):
    """What every drift detector can answer, in river's words."""

    @property
    def drift_detected(self) -> bool: ...

    @property
    def warning_detected(self) -> bool: ...


class Reading(Protocol):
    """What an observer says after a batch."""

    @property
    def drift(self) -> DriftReading: ...

    def metrics(self) -> dict[str, float]:
        """Numbers to report beside the method's own."""


@dataclass(frozen=True)
class Observation:
    """What a method saw in a batch."""

    batch: Batch
    """The images as they came in, checked; read-only."""
    logits: Floats
    """``[B, classes]``: what was predicted; ``[B, 0]`` where a black box returns no logits."""
    descriptors: Array | None
    """``[B, f]`` of :mod:`fozo.core.descriptor`, where the method has measured them."""
    last_input: Floats | None = None
    """The last image as the model read it, if it was changed."""


class Observer(ABC, Generic[W]):
    """Watches a method: :class:`fozo.Monitor`, or your own. What it remembers is a value, as a method's state is."""

    @abstractmethod
    def init(self) -> W:
        """Return what is remembered before the first batch."""

    @abstractmethod
    def update(self, state: W, observation: Observation) -> tuple[W, Reading]:
        """Return what is remembered after a batch, and what there is to say. It changes neither."""

    def report(self, state: W) -> Reading | None:
        """Return what there is to say of a memory that was restored; by default nothing before the next batch."""
        return None

    def notify(self, reading: Reading) -> None:
        """Tell others about a reading, once the batch is over; by default nobody."""

    def owner(self) -> dict[str, object]:
        """Return what has to be the same for a saved memory to be continued."""
        return {"observer": type(self).__name__}


class AttachedObserver:
    """Calls an observer. Its failures are logged, the first with a traceback and then one line a minute."""

    def __init__(self, observer: Observer[Any], method: str) -> None:
        self.observer = observer
        self.method = method
        self.failures = 0
        self._next_report = -math.inf

    def update(self, state: State, observation: Observation) -> tuple[State, Reading] | None:
        """Return the observer's next memory and reading; nothing where it failed."""
        try:
            return self.observer.update(state, observation)
        except Exception:
            self._report()
            return None

    def notify(self, reading: Reading) -> None:
        try:
            self.observer.notify(reading)
        except Exception:
            self._report()

    def _report(self) -> None:
        self.failures += 1
        if time.monotonic() < self._next_report:
            return
        self._next_report = time.monotonic() + REPORT_SECONDS
        if self.failures == 1:
            LOG.exception("the monitor of %s failed; predictions do not depend on it", self.method)
        else:
            LOG.error("the monitor of %s has failed on %d batches", self.method, self.failures)
