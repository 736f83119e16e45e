"""FOZO: forward-only zeroth-order prompt optimization (Wang and Wang, CVPR 2026), Algorithm 1.

Three prompts are inserted after the CLS token. Each batch is predicted under 2n perturbed prompts, the losses give a
gradient without backpropagation, and the prediction with the lowest loss is returned.

The paper and the authors' program differ; each difference is one named switch of :class:`FOZOConfig`, and the presets
``paper`` and ``official`` set them. Two of the differences have no effect and no switch. The paper puts the prompts
before CLS: without a position embedding, attention does not see their place. The paper adjusts epsilon before a batch
from the losses so far, the program after it: the same batches get the same values.

What neither says: a batch of one has no standard deviation. It borrows the features of the images before it, see
``window``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fozo.core.moments import MovingAverage, Window
from fozo.core.noise import Noise, PhiloxNoise
from fozo.core.objective import Objective
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA, SPSAState
from fozo.errors import FozoError
from fozo.methods.common.matching import SHIFT_DECAY, first_prompts, shifted
from fozo.methods.common.options import one_of
from fozo.methods.fozo.journal import encode_start, entry_of, follow
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State
from fozo.types import Array, Batch, Knobs, Tap, Value

AUTHORS_SCHEDULE = Schedule(rate_decay=0.7, rate_step=0.1, rate_min=0.1, rate_max=3.0, rate_at_jump=0.1)


@dataclass(frozen=True)
class FOZOConfig:
    """Everything about FOZO that can be chosen. The defaults are the authors' program."""

    passes: int = 2
    """Forward passes for each batch: 2n, an even number."""
    prompts: int = 3
    """Prompts that are inserted after the CLS token."""
    weight: float = 0.4
    """lambda of Eq. 15."""
    features: str = "normed"
    """CLS after the norm that reads it next (program), or ``cls``: as it leaves a block (paper)."""
    distance: str = "squares"
    """See :class:`fozo.core.objective.Objective`."""
    shift: str = "sum"
    """The activation shift's average: of the ``sum`` of the two sides' means (program), or ``none`` (paper)."""
    scheduled_loss: str = "best"
    """The loss of Eq. 12: the ``best`` of the 2n (program) or their ``mean`` (paper: "loss at t")."""
    schedule: Schedule = AUTHORS_SCHEDULE
    """Epsilon and learning rate, batch by batch."""
    window: int = 64
    """Images over which the statistics of a batch of one are taken: it and those just before it."""

    def __post_init__(self) -> None:
        if self.passes < 2 or self.passes % 2:
            raise FozoError(f"fozo takes an even number of passes, 2n with n >= 1, not {self.passes}")
        if self.window < 2:
            raise FozoError(f"a window needs room for at least two images, not {self.window}")
        one_of("fozo", ("normed", "cls"), features=self.features)
        one_of("fozo", ("sum", "none"), shift=self.shift)
        Objective(self.weight, self.distance)


@dataclass(frozen=True)
class FOZOState(State):
    """What FOZO has learnt."""

    spsa: SPSAState  # the prompts [p, d], and where their schedule stands
    shift: MovingAverage  # of what the head reads
    window: Window  # features of recent images


def _scaled_schedule(factor: float) -> dict[str, Value]:
    """Options that make all of the published schedule's steps ``factor`` times as long."""
    usual = FOZOConfig().schedule
    names = ("epsilon", "epsilon_min", "rate", "rate_step", "rate_min", "rate_max", "rate_at_jump")
    return {f"schedule.{name}": factor * (getattr(usual, name) or 0.0) for name in names}


@register(
    "fozo", passes="2n", adapts="prompts", paper="Wang and Wang, CVPR 2026",
    needs={"statistics", "tokens", "prompts"}, draws=True, compared={"passes": 2},
    tuning={f"schedule x {factor:g}": _scaled_schedule(factor) for factor in (1.0, 1 / 16, 0.25, 4.0)},
)  # fmt: skip
class FOZO(Method[FOZOConfig, FOZOState]):
    """Zeroth-order descent on prompts.

    Examples:
        >>> method = fozo.FOZO(model, statistics, passes=2)  # preset="paper" follows the paper's text
        >>> method(batch).shape, method.prompts.shape
        ((8, 10), (3, 64))

    Beside what every :class:`fozo.Method` takes, ``start`` are prompts ``[p, d]`` to start from instead of random ones,
    and ``noise`` directions to use instead of seeded gaussian ones.

    A journal (``journal=``) takes some hundred bytes a batch: the steps of the prompts, which
    :func:`fozo.replay_prompts` rebuilds without a model. :meth:`replay` restores prompts, epsilon, rate and the average
    loss. The statistics of recent images (activation shift, window) are not in a journal and begin again; a saved state
    has them.
    """

    EXTRAS: ClassVar = ("start", "noise")
    PRESETS: ClassVar = {
        "official": FOZOConfig(),
        "paper": FOZOConfig(
            features="cls", distance="norms", shift="none", scheduled_loss="mean", schedule=Schedule(rate=0.08)
        ),
    }

    def prepare(self) -> None:
        config = self.config
        noise: Noise = self._extras["noise"] or PhiloxNoise(self.seed)
        start = first_prompts(self.engine.spec, config.prompts, self.seed, self._extras["start"])
        self._spsa = SPSA(start, config.schedule, noise, config.passes // 2, config.scheduled_loss)
        self._objective = Objective(config.weight, config.distance)
        self._tap = Tap.FEATURES if config.features == "normed" else Tap.CLS
        self._source_features = self.statistics.features if config.features == "normed" else self.statistics.cls
        self.parameter_count = start.size

    def init(self) -> FOZOState:
        spec = self.engine.spec
        return FOZOState(
            spsa=self._spsa.init(),
            shift=MovingAverage.empty((spec.head_width,)),
            window=Window.empty((spec.depth, spec.dim)),
        )

    @property
    def prompts(self) -> Array:
        """The prompts as they are now, ``[p, d]``."""
        return self.state().spsa.point

    def step(self, state: FOZOState, batch: Batch) -> Result[FOZOState]:
        """One turn of Algorithm 1's loop."""
        config = self.config
        candidates = self._spsa.ask(state.spsa)  # lines 6-7: P + eps Z, P - eps Z
        taps = self.engine.run(batch, Knobs(prompts=candidates), (self._tap, Tap.POOLED))  # line 8
        features = taps[self._tap]
        pooled = taps[Tap.POOLED]
        logits = self.engine.head()(shifted(pooled, self.statistics.pooled.mean, state.shift))  # line 9

        losses = []
        for k in range(config.passes):
            moments = state.window.moments(features[k], config.window)
            losses.append(self._objective(self._source_features, moments, logits[k]))  # line 10
        step = self._spsa.estimate(state.spsa, losses)  # lines 11-16
        spsa = self._spsa.follow(state.spsa, step)  # lines 17-18
        best = int(np.argmin(losses))

        shift = state.shift
        if config.shift == "sum":  # the program adds up the means of both sides
            shift = shift.update(2 * pooled.mean(axis=1, dtype=np.float64).mean(axis=0), SHIFT_DECAY)
        learnt = FOZOState(spsa, shift, state.window.push(features[best], config.window))
        metrics = {"loss": step.loss, "epsilon": step.epsilon, "rate": step.rate}
        return Result(logits[best], learnt, metrics, passes=float(config.passes))  # line 19

    def predict_step(self, state: FOZOState, batch: Batch) -> Result[FOZOState]:
        taps = self.engine.run(batch, Knobs(prompts=state.spsa.point[None]), (Tap.POOLED,))
        pooled = shifted(taps[Tap.POOLED][0], self.statistics.pooled.mean, state.shift)
        return Result(self.engine.head()(pooled), state)

    # The journal: a step is its seed and a few numbers.

    def journaled(self, state: FOZOState) -> FOZOState:
        return replace(self.init(), spsa=state.spsa)

    def _entry(self, old: FOZOState, new: FOZOState) -> dict[str, Any]:
        return entry_of(new.spsa)

    def _follow(self, state: FOZOState, entry: Mapping[str, Any]) -> FOZOState:
        return replace(state, spsa=follow(self._spsa, state.spsa, entry))

    def _journal_header(self) -> dict[str, object]:
        seed = None if self._extras["noise"] else self.seed
        return {**super()._journal_header(), "seed": seed, **encode_start(self._spsa.start)}
