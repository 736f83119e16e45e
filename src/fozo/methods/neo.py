"""NEO: a running mean subtracted from what the head reads (ICLR 2026, arXiv:2510.05635).

Neural collapse says that features of the source have mean zero; a corruption moves that mean, so the mean of what the
stream brings is estimated, this batch included, and subtracted before the head reads: logits = W (z - mu) + b.
Because the head is affine, that is the same as subtracting the running mean of (logits - b), which is what is done
here. So it needs no features: it runs on every engine, and on a black box that gives nothing but logits.

Where paper and program differ, ``average`` is the switch: Algorithm 1 counts every batch once (``batches``), the
authors' program every image (``images``, preset ``official``), which differs as soon as a batch is short. The preset
``continual`` is their NEO-Cont: an exponential average that starts at zero and is not corrected for it, so that the
first batch is moved by a tenth only. On a black box the bias is unknown and taken for zero, unless it is given: then
the model's own preference for some classes is subtracted with the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fozo.errors import FozoError
from fozo.methods.common.options import one_of, share, sweep
from fozo.methods.common.wrapper import Forward, Wrapper
from fozo.methods.method import Result
from fozo.methods.registry import register
from fozo.state import State
from fozo.types import Answer, Array, Batch, Floats


@dataclass(frozen=True)
class NEOConfig:
    """Everything about NEO that can be chosen."""

    average: str = "images"
    """What the mean is over: ``images`` (program), ``batches`` (Algorithm 1), or an ``ema``."""
    rate: float = 0.1
    """Weight of a new batch in the ``ema``."""

    def __post_init__(self) -> None:
        one_of("neo", ("images", "batches", "ema"), average=self.average)
        share("neo", rate=self.rate)


@dataclass(frozen=True)
class NEOState(State):
    """The running mean of (logits - bias), and the count of what it is over."""

    mean: Array
    count: int
    inner: State


@register(
    "neo", passes="1", adapts="the mean of what the head reads", paper="NEO, ICLR 2026",
    tuning={"mean": {}, **{name: {"average": "ema", **rate} for name, rate in sweep("rate", 0.1, 0.5, 0.8).items()}},
)  # fmt: skip
class NEO(Wrapper[NEOConfig, NEOState]):
    """The stream's running mean, subtracted from what the head reads.

    ``bias`` is the head's ``[classes]``, for an engine that does not show it. ``inner`` is a method whose logits are
    corrected instead of the plain model's, see :meth:`around`.
    """

    PRESETS: ClassVar = {
        "official": NEOConfig(),
        "paper": NEOConfig(average="batches"),
        "continual": NEOConfig(average="ema"),
    }
    EXTRAS: ClassVar = ("bias", "inner")

    def prepare(self) -> None:
        super().prepare()
        classes = self.engine.spec.classes
        bias = self._extras["bias"]
        if bias is None:
            bias = self.engine.head().bias if "tokens" in self.engine.abilities else np.zeros(classes)
        self._bias: Array = np.asarray(bias, dtype=np.float64)
        if self._bias.shape != (classes,) or not np.isfinite(self._bias).all():
            raise FozoError(f"neo: bias must be {classes} finite numbers, not of shape {list(self._bias.shape)}")

    def init(self) -> NEOState:
        return NEOState(mean=np.zeros_like(self._bias), count=0, inner=self.inner.init())

    def wrap(self, state: NEOState, batch: Batch, forward: Forward) -> Result[NEOState]:
        inner = forward(batch)
        logits = self._logits_of(inner.logits)
        new = 1 if self.config.average == "batches" else len(logits)
        count = state.count + new
        weight = self.config.rate if self.config.average == "ema" else new / count
        batch_mean = logits.mean(axis=0, dtype=np.float64) - self._bias
        mean = (1 - weight) * state.mean + weight * batch_mean
        return self._centred(logits, NEOState(mean, count, inner.state), batch, inner)

    def predict_step(self, state: NEOState, batch: Batch) -> Result[NEOState]:
        inner = self._forward(state, learn=False)(batch)
        return self._centred(self._logits_of(inner.logits), state, batch, inner)

    def _centred(self, logits: Floats, state: NEOState, batch: Batch, inner: Result[Any]) -> Result[NEOState]:
        centred = (logits - state.mean).astype(logits.dtype)
        return Result(centred, state, {}, inner.passes, inner.descriptors, inner.last_input, inner=(batch, inner))

    def _logits_of(self, logits: Floats | Answer) -> Floats:
        if isinstance(logits, Answer):
            raise FozoError(f"neo needs logits [B, classes], and {self.engine.spec.name} returned something else")
        return logits
