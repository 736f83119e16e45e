"""What a method shows to an observer of its batches, and how an observer that fails is contained."""

import logging
import math
import time
from dataclasses import dataclass
from typing import Protocol

from fozo.types import Array, Batch, Floats

LOG = logging.getLogger(__name__)
REPORT_SECONDS = 60.0  # Between two log lines about an observer that keeps failing


class DriftReading(Protocol):
    """What every drift detector can answer, in river's words."""

    @property
    def drift_detected(self) -> bool: ...

    @property
    def warning_detected(self) -> bool: ...


@dataclass(frozen=True)
class Observation:
    """What a method saw in a batch."""

    batch: Batch  # The images as they came in, checked; read-only
    logits: Floats  # ``[B, classes]``: what was predicted; ``[B, 0]`` where a black box returns no logits
    descriptors: Array | None  # ``[B, f]`` of :mod:`fozo.core.descriptor`, where the method has measured them
    last_input: Floats | None = None  # the last image as the model read it, if it was changed; copy it to keep it


class Observer(Protocol):
    """Watches a method: :class:`fozo.Monitor`, or your own. It never changes a prediction.

    If it has ``checkpoint()``, which returns a function that undoes, batches of calls that raise are undone.
    """

    @property
    def drift(self) -> DriftReading: ...

    def observe(self, observation: Observation) -> None: ...

    def metrics(self) -> dict[str, float]:
        """Numbers to report beside the method's own."""

    def reset(self) -> None:
        """Forget all batches: the method was reset."""


class AttachedObserver:
    """Calls an observer. Its failures are logged, the first with a traceback and then one line a minute."""

    def __init__(self, observer: Observer, method: str) -> None:
        self.observer, self.method = observer, method
        self.failures, self._next_report = 0, -math.inf

    def observe(self, observation: Observation) -> None:
        try:
            self.observer.observe(observation)
        except Exception:
            self.failures += 1
            if time.monotonic() < self._next_report:
                return
            self._next_report = time.monotonic() + REPORT_SECONDS
            if self.failures == 1:
                LOG.exception("the monitor of %s failed; predictions do not depend on it", self.method)
            else:
                LOG.error("the monitor of %s has failed on %d batches", self.method, self.failures)
