"""Scaled FOZO, this project's variant for small models: the same SPSA on one prompt, in units of the model's tokens.

What differs from the paper (docs/fozo.md has the experiments):

- Perturbations and rates count in the RMS of a clean patch token, projected gradients in their running RMS, and the
  gradients of a step add up: from n << d directions, n times as much of the gradient is known as from one.
- The prompt starts at zero and stays within a trust radius of it.
- The loss matches standard deviations of the deep half of the layers, in units of the clean ones; means are the
  activation shift's to match. The entropy is of each image less that of their average prediction.
- The activation shift knows the content (:mod:`~fozo.methods.common.content_shift`), and this batch counts too.
- The prediction is the average of all candidates'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from scipy.special import entr, log_softmax, logsumexp, softmax

from fozo.core.moments import Moments, Window
from fozo.core.noise import PhiloxNoise
from fozo.core.objective import entropies
from fozo.core.schedule import Schedule
from fozo.core.spsa import SPSA, SPSAState, Step, advance
from fozo.core.statistics import Statistics
from fozo.errors import FozoError
from fozo.methods.common.content_shift import ContentShift, ContentSums
from fozo.methods.common.options import positive
from fozo.methods.fozo.journal import check_point, entry_of, read_entry
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State
from fozo.types import Array, Batch, Floats, Knobs, Tap

LEAST_RMS = 1e-6  # of projected gradients; less is rounding
POWER_WEIGHT = 0.1  # of a new step in the running mean square of projected gradients


@dataclass(frozen=True)
class ScaledFOZOConfig:
    """Everything about scaled FOZO that can be chosen."""

    passes: int = 2
    """Forward passes for each batch: 2n, an even number."""
    weight: float = 4.0
    """Weight of the distance of standard deviations against the entropy."""
    epsilon: float = 1.0
    """How far the prompt is perturbed at first, in units of the RMS of a clean token."""
    epsilon_min: float = 0.5
    """How far it is perturbed in the end."""
    rate: float = 0.05
    """Learning rate, in the same unit."""
    trust: float = 1.0
    """How far the prompt may go from zero (RMS), in the same unit."""
    shift_images: float = 40.0
    """Images that the activation shift remembers."""
    window: int = 64
    """Images over which the statistics of a batch of one are taken: it and those just before it."""

    def __post_init__(self) -> None:
        if self.passes < 2 or self.passes % 2:
            raise FozoError(f"scaled-fozo takes an even number of passes, 2n with n >= 1, not {self.passes}")
        if self.window < 2:
            raise FozoError(f"a window needs room for at least two images, not {self.window}")
        positive("scaled-fozo", shift_images=self.shift_images, trust=self.trust, weight=self.weight)
        self.schedule(1.0)

    def schedule(self, unit: float) -> Schedule:
        """The schedule where a clean token has the RMS ``unit``."""
        return Schedule(epsilon=self.epsilon * unit, epsilon_min=self.epsilon_min * unit, rate=self.rate * unit)


@dataclass(frozen=True)
class ScaledFOZOState(State):
    """What scaled FOZO has learnt."""

    spsa: SPSAState  # the prompt, and where its schedule stands
    power: float  # running mean square of the projected gradients
    shift: ContentSums
    window: Window  # features of recent images


@register(
    "scaled-fozo", passes="2n", adapts="a prompt", paper="fozo, docs/fozo.md",
    needs={"statistics", "tokens", "prompts"}, draws=True, label="FOZO scaled",
)  # fmt: skip
class ScaledFOZO(Method[ScaledFOZOConfig, ScaledFOZOState]):
    """Zeroth-order descent on one prompt in units of the model's tokens, and a shift by content.

    Examples:
        >>> ScaledFOZO(model, statistics, passes=4)(batch).shape
        (8, 10)
    """

    PRESETS: ClassVar = {"default": ScaledFOZOConfig()}

    def prepare(self) -> None:
        config = self.config
        self._unit = token_rms(self.statistics)
        start = np.zeros((1, self.engine.spec.dim))
        schedule = config.schedule(self._unit)
        self._spsa = SPSA(start, schedule, PhiloxNoise(self.seed), config.passes // 2, scheduled_loss="mean")
        self._shift = ContentShift(self.statistics, self.engine.head(), config.shift_images)
        self.parameter_count = start.size

    def init(self) -> ScaledFOZOState:
        spec = self.engine.spec
        window = Window.empty((spec.depth, spec.dim))
        return ScaledFOZOState(self._spsa.init(), power=0.0, shift=self._shift.init(), window=window)

    def step(self, state: ScaledFOZOState, batch: Batch) -> Result[ScaledFOZOState]:
        config = self.config
        candidates = self._spsa.ask(state.spsa)
        taps = self.engine.run(batch, Knobs(prompts=candidates), (Tap.FEATURES, Tap.POOLED))
        features = taps[Tap.FEATURES]
        pooled = taps[Tap.POOLED]
        shift = self._shift.take(state.shift, pooled.mean(axis=0, dtype=np.float64))
        logits = self._logits(pooled, shift)

        losses = []
        for k in range(config.passes):
            moments = state.window.moments(features[k], config.window)
            losses.append(
                config.weight * misalignment(self.statistics.features, moments) + diversity_entropy(logits[k])
            )
        step = self._in_units(state, self._spsa.estimate(state.spsa, losses))
        window = state.window.push(features[int(np.argmin(losses))], config.window)
        learnt = replace(self._take(state, step), shift=shift, window=window)
        metrics = {"loss": step.loss, "epsilon": step.epsilon, "rate": step.rate}
        average = logsumexp(log_softmax(logits, axis=2), axis=0) - math.log(config.passes)
        return Result(cast("Floats", average), learnt, metrics, passes=float(config.passes))

    def predict_step(self, state: ScaledFOZOState, batch: Batch) -> Result[ScaledFOZOState]:
        taps = self.engine.run(batch, Knobs(prompts=state.spsa.point[None]), (Tap.POOLED,))
        return Result(self._logits(taps[Tap.POOLED][0], state.shift), state)

    def _logits(self, pooled: Floats, shift: ContentSums) -> Floats:
        return self.engine.head()((pooled + self._shift.vector(shift)).astype(pooled.dtype))

    def _in_units(self, state: ScaledFOZOState, step: Step) -> Step:
        """The same step at a rate that counts gradients in units of their RMS; none where it would leave the radius."""
        rms = max(math.sqrt(power_after(state.power, step)), LEAST_RMS)
        scaled = replace(step, rate=step.rate * len(step.gradients) / rms)
        offset = advance(state.spsa.point, scaled, self._spsa.noise) - self._spsa.start
        inside = np.square(offset).mean() <= (self.config.trust * self._unit) ** 2
        return scaled if inside else replace(scaled, rate=0.0)

    def _take(self, state: ScaledFOZOState, step: Step) -> ScaledFOZOState:
        return replace(state, spsa=self._spsa.follow(state.spsa, step), power=power_after(state.power, step))

    def journaled(self, state: ScaledFOZOState) -> ScaledFOZOState:
        return replace(self.init(), spsa=state.spsa, power=state.power)

    def _entry(self, old: ScaledFOZOState, new: ScaledFOZOState) -> dict[str, Any]:
        return entry_of(new.spsa)

    def _follow(self, state: ScaledFOZOState, entry: Mapping[str, Any]) -> ScaledFOZOState:
        step, led_to = read_entry(entry, state.spsa.point.size)
        with np.errstate(over="ignore", invalid="ignore"):  # of forged numbers; the checksum detects them
            after = self._take(state, step)
        check_point(after.spsa.point, led_to)
        return after


def power_after(power: float, step: Step) -> float:
    """The running mean square of projected gradients after a step."""
    new = float(np.square(step.gradients).mean())
    return (1 - POWER_WEIGHT) * power + POWER_WEIGHT * new if power else new


def token_rms(source: Statistics) -> float:
    """RMS of a clean patch token's coordinates as it enters the first block."""
    mean = source.patch_mean
    variance = np.exp(source.patch_log_variance.mean[0])
    return float(np.sqrt((mean.mean[0] ** 2 + mean.std[0] ** 2 + variance).mean()))


def misalignment(source: Moments, features: Moments) -> float:
    """Mean squared difference of the deep half's standard deviations, in units of the clean ones."""
    if features.count < 2:
        return 0.0
    half = len(source.mean) // 2
    scale = np.maximum(source.std, max(1e-3 * source.std.mean(), 1e-9))
    return float(np.square((features.std - source.std) / scale)[half:].mean())


def diversity_entropy(logits: npt.ArrayLike) -> float:
    """Mean entropy of images, and the KL divergence of their average prediction from uniform."""
    probabilities: Array = softmax(np.asarray(logits, dtype=np.float64), axis=-1)
    average = probabilities.mean(axis=0)
    divergence = math.log(len(average)) - entr(average).sum()
    return float(entropies(logits).mean() + divergence)
