"""FOA: test-time model adaptation with only forward passes (Niu et al., ICML 2024).

Three prompts after the CLS token are sampled by CMA-ES. A candidate's fitness (Eq. 5) is how far the batch's CLS
features lie from their source statistics, plus the entropy of its predictions; the best candidate's features are
shifted back to the source's (Eq. 7-9) before the head reads them.

Not in the paper, but in the authors' program and here: the best prompts of the last batch are tried again with each
new population, so that 28 passes are 27 samples and one incumbent; candidates are rounded to float32 to be evaluated.
A batch of one has no standard deviation and borrows the features of the images before it, as in FOZO.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fozo.core.cmaes import CMAES, CMAESState
from fozo.core.moments import MovingAverage, Window
from fozo.core.objective import Objective
from fozo.errors import FozoError
from fozo.methods.common.matching import SHIFT_DECAY, first_prompts, shifted
from fozo.methods.common.options import sweep
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State
from fozo.types import Batch, Floats, Knobs, Tap


@dataclass(frozen=True)
class FOAConfig:
    """Everything about FOA that can be chosen. The defaults are the FOZO paper's."""

    passes: int = 28
    """Forward passes for each batch: from 3 on the last is the incumbent, the best candidate of the batch before; with
    2 there is none, because CMA-ES needs a population of two."""
    prompts: int = 3
    """Prompts that are inserted after the CLS token."""
    weight: float = 0.4
    """lambda of Eq. 5; the authors use 0.2 for ImageNet-R."""
    window: int = 64
    """Images over which the statistics of a batch of one are taken: itself and those just before it."""

    def __post_init__(self) -> None:
        if self.passes < 2:
            raise FozoError(f"foa takes at least 2 passes, not {self.passes}")
        if self.window < 2:
            raise FozoError(f"a window needs room for at least two images, not {self.window}")


@dataclass(frozen=True)
class FOAState(State):
    """What FOA has learnt."""

    search: CMAESState
    shift: MovingAverage  # of what the head reads
    window: Window  # features of recent images


@register(
    "foa", passes="K, the population (28 or 2)", adapts="prompts", paper="Niu et al., ICML 2024",
    needs={"statistics", "tokens", "prompts"}, draws=True, compared={"passes": 2},
    tuning=sweep("weight", 0.4, 0.1, 1.6, 6.4),
)  # fmt: skip
class FOA(Method[FOAConfig, FOAState]):
    """Prompts found by CMA-ES, and activation shifting.

    Beside what every :class:`fozo.Method` takes:

    Args:
        start: prompts ``[p, d]`` to start from instead of random ones.
        draws: normal numbers to use instead of the seeded ones, see :class:`fozo.core.cmaes.CMAES`.
    """

    PRESETS: ClassVar = {"paper": FOAConfig()}
    EXTRAS: ClassVar = ("start", "draws")

    def prepare(self) -> None:
        passes = self.config.passes
        start = first_prompts(self.engine.spec, self.config.prompts, self.seed, self._extras["start"])
        self._search = CMAES(
            start,
            population=passes - 1 if passes > 2 else 2,
            keep_best=passes > 2,
            seed=self.seed,
            draws=self._extras["draws"],
        )
        self._objective = Objective(weight=self.config.weight)
        self.parameter_count = start.size

    def init(self) -> FOAState:
        spec = self.engine.spec
        return FOAState(
            search=self._search.init(),
            shift=MovingAverage.empty((spec.head_width,)),
            window=Window.empty((spec.depth, spec.dim)),
        )

    def step(self, state: FOAState, batch: Batch) -> Result[FOAState]:
        config = self.config
        asked = self._search.ask(state.search)
        candidates = asked.astype(np.float32)
        taps = self.engine.run(batch, Knobs(prompts=candidates), (Tap.FEATURES, Tap.POOLED))
        features = taps[Tap.FEATURES]
        pooled = taps[Tap.POOLED]
        head = self.engine.head()
        logits = head(pooled)

        losses = []
        for k in range(len(candidates)):
            moments = state.window.moments(features[k], config.window)
            losses.append(self._objective(self.statistics.features, moments, logits[k]))  # Eq. 5
        best = int(np.argmin(losses))
        prediction: Floats = logits[best]
        if state.shift.count:
            prediction = head(shifted(pooled[best], self.statistics.pooled.mean, state.shift))  # Eq. 7

        search = self._search.tell(state.search, asked, losses)
        mean = pooled.mean(axis=1, dtype=np.float64).mean(axis=0)
        learnt = FOAState(
            search=replace(search, point=candidates[best].astype(np.float64)),
            shift=state.shift.update(mean, SHIFT_DECAY),  # Eq. 9
            window=state.window.push(features[best], config.window),
        )
        return Result(prediction, learnt, {"loss": float(losses[best])}, passes=float(config.passes))

    def predict_step(self, state: FOAState, batch: Batch) -> Result[FOAState]:
        prompts = state.search.point.astype(np.float32)
        taps = self.engine.run(batch, Knobs(prompts=prompts[None]), (Tap.POOLED,))
        pooled = shifted(taps[Tap.POOLED][0], self.statistics.pooled.mean, state.shift)
        return Result(self.engine.head()(pooled), state)
