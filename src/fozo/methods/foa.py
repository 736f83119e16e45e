"""FOA: test-time model adaptation with only forward passes (Niu et al., ICML 2024).

Three prompts after the CLS token are sampled by CMA-ES. A candidate's fitness (Eq. 5) is how far the batch's CLS
features lie from their source statistics, plus the entropy of its predictions; the best candidate's features are
shifted back to the source's (Eq. 7-9) before the head reads them.

Not in the paper, but in the authors' program and here: the best prompts of the last batch are tried again with each
new population, so that 28 passes are 27 samples and one incumbent; candidates are rounded to float32 to be evaluated.
A batch of one has no standard deviation and borrows the features of the images before it, as in FOZO.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fozo.core.cmaes import CMAES
from fozo.core.objective import Objective
from fozo.errors import FozoError
from fozo.methods.common.matching import MatchingMethod, first_prompts
from fozo.methods.registry import register
from fozo.types import Batch, Floats, Knobs, Tap


@dataclass(frozen=True)
class FOAConfig:
    """Everything about FOA that can be chosen. The defaults are the FOZO paper's."""

    passes: int = 28
    """Forward passes for each batch: from 3 on the last is the incumbent, the best candidate of the batch before; with
    2 there is none, because CMA-ES needs a population of two."""
    prompts: int = 3
    weight: float = 0.4  # lambda of Eq. 5; the authors use 0.2 for ImageNet-R
    window: int = 64  # Images over which the statistics of a batch of one are taken: itself and those just before it

    def __post_init__(self) -> None:
        if self.passes < 2:
            raise FozoError(f"foa takes at least 2 passes, not {self.passes}")


@register(
    "foa", passes="K, the population (28 or 2)", adapts="prompts", paper="Niu et al., ICML 2024",
    needs={"source", "tokens", "prompts"}, draws=True,
)  # fmt: skip
class FOA(MatchingMethod[FOAConfig]):
    """Prompts found by CMA-ES, and activation shifting.

    Beside what every :class:`fozo.Method` takes:

    Args:
        start: prompts ``[p, d]`` to start from instead of random ones.
        draws: normal numbers to use instead of the seeded ones, see :class:`fozo.core.cmaes.CMAES`.
    """

    PRESETS: ClassVar = {"paper": FOAConfig()}
    EXTRAS: ClassVar = ("start", "draws")
    STATE: ClassVar = ("search", "shift", "window")

    def prepare(self) -> None:
        self.objective = Objective(weight=self.config.weight)
        self.start = first_prompts(self.engine.spec, self.config.prompts, self.seed, self.extras["start"])
        self.passes_per_image, self.parameters = float(self.config.passes), self.start.size

    def begin(self) -> None:
        passes = self.config.passes
        self.search = CMAES(
            self.start,
            population=passes - 1 if passes > 2 else 2,
            keep_best=passes > 2,
            seed=self.seed,
            draws=self.extras["draws"],
        )
        self.begin_matching(self.config.window, scale=1.0)

    def step(self, batch: Batch) -> Floats:
        candidates = self.search.ask().astype(np.float32)
        taps = self.engine.run(batch, Knobs(prompts=candidates), (Tap.FEATURES, Tap.POOLED))
        features, pooled = taps[Tap.FEATURES], taps[Tap.POOLED]
        head = self.engine.head()
        logits = head(pooled)
        losses = [
            self.objective(self.source.features, self.moments(features[k]), logits[k])  # Eq. 5
            for k in range(len(candidates))
        ]
        best = int(np.argmin(losses))
        prediction: Floats = logits[best]
        if self.shift.average is not None:
            prediction = head(self.shifted(pooled[best]))  # Eq. 7
        self.search.tell(losses)
        self.search.point = candidates[best].astype(np.float64)
        self.shift.observe(pooled.mean(axis=1, dtype=np.float64).mean(axis=0))  # Eq. 9
        self.window.push(features[best])
        self.report(loss=float(losses[best]))
        return prediction

    def pooled(self, batch: Batch) -> Floats:
        return self.prompted(batch, self.search.point.astype(np.float32))
