"""FOA: test-time model adaptation with only forward passes (Niu et al., ICML 2024).

Three prompts after the CLS token are sampled by CMA-ES. A candidate's fitness (Eq. 5) is how far the batch's CLS
features lie from their source statistics, plus the entropy of its predictions; the best candidate's features are
shifted back to the source's (Eq. 7-9) before the head reads them.

Not in the paper, but in the authors' program and here: the best prompts of the last batch are tried again with each
new population, so that 28 passes are 27 samples and one veteran; candidates are rounded to float32 to be evaluated.
A batch of one has no standard deviation and borrows the features of the images before it, as in FOZO.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.cmaes import CMAES, Draws
from fozo.core.objective import Objective
from fozo.core.shift import ActivationShift
from fozo.core.statistics import Moments, SourceStatistics, Window
from fozo.engines.base import Engine, Floats, Knobs, Tokens
from fozo.errors import FozoError
from fozo.methods.base import Method, State
from fozo.methods.presets import pick
from fozo.methods.prompts import starting_prompts
from fozo.methods.registry import MethodInfo, register

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Options:
    """Everything about FOA that can be chosen. The defaults are the FOZO paper's."""

    prompts: int = 3
    weight: float = 0.4
    """lambda of Eq. 5; the authors use 0.2 for ImageNet-R."""
    window: int = 64
    """Images over which the statistics of a batch of one are taken: itself and those just before it."""


@register(
    MethodInfo(
        name="foa",
        summary="prompts found by CMA-ES, and activation shifting",
        needs_gradient=False,
        needs_source=True,
        passes="K, the population (28 or 2)",
        adapts="prompts",
        paper="Niu et al., ICML 2024",
    )
)
class FOA(Method):
    """Adapts prompts by CMA-ES, ``passes`` forward passes for each batch."""

    def __init__(
        self,
        engine: Engine,
        source: SourceStatistics | None = None,
        *,
        passes: int = 28,
        seed: int = 0,
        start: npt.ArrayLike | None = None,
        draws: Callable[[int], Draws] | None = None,
        **switches: object,
    ) -> None:
        """Prepare to adapt.

        Args:
            engine: the frozen model.
            source: its statistics on clean data.
            passes: forward passes for each batch: from 3 on the last is the best candidate of the batch before;
                with 2 there is none, because pycma cannot do with a population of one.
            seed: of the first prompts and of every sample.
            start: prompts ``[p, d]`` to start from instead of random ones.
            draws: normal numbers to use instead of the seeded ones, see :class:`fozo.core.cmaes.CMAES`.
            switches: fields of :class:`Options`.
        """
        self.choices = pick("foa", {"paper": Options()}, "paper", switches)
        super().__init__(engine, source)
        assert source is not None
        if passes < 2:
            raise FozoError(f"FOA takes at least 2 passes, not {passes}")
        self.passes, self.seed, self.draws = passes, seed, draws
        self.spent = float(passes)
        self.source = source
        self.objective = Objective(weight=self.choices.weight)
        self.start = starting_prompts(engine.spec, self.choices.prompts, seed, start)
        self._begin()

    def _begin(self) -> None:
        """Set up everything that adaptation changes."""
        veteran = self.passes > 2
        self.search = CMAES(
            self.start,
            population=self.passes - 1 if veteran else 2,
            keep_best=veteran,
            seed=self.seed,
            draws=self.draws,
        )
        self.shift = ActivationShift()
        self.window = Window(self.choices.window)
        self.loss: float | None = None

    @property
    def parameters(self) -> int:
        """How many numbers are adapted."""
        return self.start.size

    def telling(self) -> dict[str, float]:
        """Return the best candidate's fitness."""
        return {} if self.loss is None else {"loss": self.loss}

    def adapt(self, tokens: Tokens) -> Floats:
        """Evaluate a population and learn from its ranking."""
        candidates = self.search.ask().astype(np.float32)
        taps = self.engine.run(tokens, Knobs(prompts=candidates))
        logits = self.engine.logits(taps.pooled)
        losses = [
            self.objective(self.source.features, self._moments(taps.features[k]), logits[k])  # Eq. 5
            for k in range(len(candidates))
        ]
        best = int(np.argmin(losses))
        prediction: Floats = logits[best]
        shift = self.shift.vector(self.source.pooled.mean)
        if shift is not None:
            pooled = taps.pooled[best]
            prediction = self.engine.logits((pooled + shift).astype(pooled.dtype))  # Eq. 7
        self.search.tell(losses)  # refuses losses that are not finite before changing anything
        self.search.best = candidates[best].astype(np.float64)
        self.loss = float(losses[best])
        self.shift.observe(taps.pooled.mean(axis=1, dtype=np.float64).mean(axis=0))  # Eq. 9
        self.window.push(taps.features[best])
        return prediction

    def _moments(self, features: Floats) -> Moments:
        return self.window.moments(features) if len(features) < 2 else Moments.of(features)

    def reset(self) -> None:
        """Forget everything adapted."""
        self._begin()

    def state(self) -> State:
        """What CMA-ES has learned, the shift's average and the window."""
        state = self.search.state()
        if self.shift.average is not None:
            state["shift"] = self.shift.average
        if self.window.rows is not None:
            state["window"] = self.window.rows
        return state

    def restore_state(self, state: State) -> None:
        """Continue from a state."""
        if state["point"].shape != self.start.shape:
            raise FozoError(
                f"the state holds prompts of shape {list(state['point'].shape)}, not {list(self.start.shape)}"
            )
        self.search.restore(state)
        self.shift.average = state.get("shift")
        self.window.rows = state.get("window")

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return {**asdict(self.choices), "passes": self.passes, "seed": self.seed, "pycma": self.search.library}
