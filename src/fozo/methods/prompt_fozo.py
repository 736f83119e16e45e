"""FOZO as published: forward-only zeroth-order prompt optimization (Wang and Wang, CVPR 2026), Algorithm 1.

Three prompts are inserted after the CLS token. Each batch is predicted under 2n perturbed prompts, the losses give a
gradient without backpropagation, and the prediction with the lowest loss is returned.

The paper and the authors' program differ; each difference is one named switch of :class:`Options`, and the presets
``paper`` and ``official`` set them. Two of the differences have no effect and no switch. The paper puts the prompts
before CLS: without a position embedding, attention does not see their place. The paper adjusts epsilon before a batch
from the losses so far, the program after it: the same values reach the same batches.

What neither says: a batch of one has no standard deviation. It borrows the features of the images before it, see
``window``.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.journal import Journal, make_header
from fozo.core.noise import Noise, PhiloxNoise
from fozo.core.objective import Objective
from fozo.core.schedule import Schedule
from fozo.core.shift import ActivationShift
from fozo.core.spsa import SPSA, Step
from fozo.core.statistics import Moments, SourceStatistics, Window
from fozo.engines.base import Engine, Floats, Knobs, Taps, Tokens
from fozo.errors import FozoError
from fozo.methods.base import Method, State
from fozo.methods.presets import pick
from fozo.methods.prompts import starting_prompts

Array = npt.NDArray[np.float64]


AUTHORS_SCHEDULE = Schedule(rate_decay=0.7, rate_step=0.1, rate_min=0.1, rate_max=3.0, rate_at_jump=0.1)


@dataclass(frozen=True)
class Options:
    """Everything about FOZO that can be chosen. The defaults are the authors' program."""

    prompts: int = 3
    weight: float = 0.4
    """lambda of Eq. 15."""
    features: str = "normed"
    """``normed``: CLS after the norm that reads it next (program). ``cls``: CLS as it leaves each block (paper)."""
    distance: str = "squares"
    """See :class:`fozo.core.objective.Objective`."""
    level_batches: bool = False
    """See :class:`fozo.core.objective.Objective`."""
    shift: str = "sum"
    """Activation shift, inside the entropy: ``sum`` of the two sides' means (program), their ``mean``, or ``none``
    (paper)."""
    watch: str = "best"
    """The loss that Eq. 12 compares: the ``best`` of the 2n (program) or their ``mean`` (paper: "the loss at t")."""
    schedule: Schedule = AUTHORS_SCHEDULE
    window: int = 64
    """Images over which the statistics of small batches are taken: the batch and those just before it."""
    small: int = 2
    """Batches with fewer images than this are small."""

    def __post_init__(self) -> None:
        """Refuse unknown switches."""
        if self.features not in ("normed", "cls"):
            raise FozoError(f"features must be 'normed' or 'cls', not {self.features!r}")
        if self.shift not in ("sum", "mean", "none"):
            raise FozoError(f"shift must be 'sum', 'mean' or 'none', not {self.shift!r}")


PRESETS = {
    "official": Options(),
    "paper": Options(features="cls", distance="norms", shift="none", watch="mean", schedule=Schedule(rate=0.08)),
}


class PromptFOZO(Method):
    """Adapts prompts by n-SPSA, ``passes`` = 2n forward passes for each batch."""

    def __init__(
        self,
        engine: Engine,
        source: SourceStatistics | None = None,
        *,
        passes: int = 2,
        seed: int = 0,
        preset: str = "official",
        start: npt.ArrayLike | None = None,
        noise: Noise | None = None,
        journal: str | os.PathLike[str] | None = None,
        **switches: object,
    ) -> None:
        """Prepare to adapt.

        Args:
            engine: the frozen model.
            source: its statistics on clean data.
            passes: forward passes for each batch, an even number.
            seed: of the initial prompts and of every perturbation.
            preset: ``official`` or ``paper``.
            start: prompts ``[p, d]`` to start from instead of random ones.
            noise: directions to use instead of seeded gaussian ones.
            journal: file to append one small record a batch to; see :func:`fozo.replay`.
            switches: any field of :class:`Options` that should differ from the preset.
        """
        super().__init__(engine, source)
        assert source is not None
        if passes < 2 or passes % 2:
            raise FozoError(f"FOZO takes an even number of passes, 2n with n >= 1, not {passes}")
        self.choices = pick("fozo", PRESETS, preset, switches)
        self.objective = Objective(
            weight=self.choices.weight,
            distance=self.choices.distance,
            level_batches=self.choices.level_batches,
        )
        self.passes = passes
        self.spent = float(passes)
        self.seed = seed
        self.source = source
        self.source_features: Moments = source.features if self.choices.features == "normed" else source.cls
        self.noise: Noise = noise or PhiloxNoise(seed)
        self.start = starting_prompts(engine.spec, self.choices.prompts, seed, start)
        self._begin()
        self.journal: Journal | None = None
        if journal is not None:
            spec = engine.spec
            header = make_header(spec.fingerprint, spec.name, None if noise else seed, self.start, self.options())
            self.journal = Journal(journal, header)

    def _begin(self) -> None:
        """Set up everything that adaptation changes."""
        self.spsa = SPSA(
            self.start, self.choices.schedule, self.noise, samples=self.passes // 2, watch=self.choices.watch
        )
        self.shift = ActivationShift(scale=2.0 if self.choices.shift == "sum" else 1.0)
        self.window = Window(self.choices.window)
        self.last: Step | None = None  # what the latest batch did, for whoever watches

    @property
    def prompts(self) -> Array:
        """The prompts as they are now, ``[p, d]``."""
        return self.spsa.point

    @property
    def parameters(self) -> int:
        """How many numbers are adapted."""
        return self.start.size

    def telling(self) -> dict[str, float]:
        """Return the loss that the schedule saw, and the scales it set."""
        step = self.last
        return {} if step is None else {"loss": step.loss, "epsilon": step.epsilon, "rate": step.rate}

    def adapt(self, tokens: Tokens) -> Floats:
        """One turn of Algorithm 1's loop."""
        candidates = self.spsa.ask()  # lines 6-7: P + eps Z, P - eps Z
        taps = self.engine.run(tokens, Knobs(prompts=candidates))  # line 8
        pooled = taps.pooled
        shift = None if self.choices.shift == "none" else self.shift.vector(self.source.pooled.mean)
        if shift is not None:
            pooled = (pooled + shift).astype(pooled.dtype)
        logits = self.engine.logits(pooled)  # line 9
        features = taps.features if self.choices.features == "normed" else taps.cls
        losses = [
            self.objective(self.source_features, self._moments(features[k]), logits[k])  # line 10
            for k in range(self.passes)
        ]
        before = self.state()
        # Lines 11-18. Losses that are not finite are refused before anything is changed.
        step = self.spsa.tell(losses)
        self.last = step
        best = int(np.argmin(losses))
        self._remember(taps, features[best])
        if self.journal is not None:
            try:
                self.journal.append(step, self.spsa.point)
            except FozoError:  # a full disk: what is not on record has not happened
                self.restore_state(before)
                raise
        prediction: Floats = logits[best]  # line 19
        return prediction

    def _moments(self, features: Floats) -> Moments:
        """Statistics of a batch, joined by those of the images before it where it is small."""
        if len(features) < self.choices.small:
            return self.window.moments(features)
        return Moments.of(features)

    def _remember(self, taps: Taps, features: Floats) -> None:
        if self.choices.shift != "none":
            self.shift.observe(taps.pooled.mean(axis=1, dtype=np.float64).mean(axis=0))
        self.window.push(features)

    def reset(self) -> None:
        """Forget everything adapted."""
        self._begin()
        if self.journal is not None:
            self.journal.rewind(0)

    def state(self) -> State:
        """Prompts, pace, shift average and window."""
        state = self.spsa.state()
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
        self._begin()
        self.spsa.restore(state)
        self.shift.average = state.get("shift")
        self.window.rows = state.get("window")
        if self.journal is not None:
            self.journal.rewind(self.spsa.index)

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state or a journal to be continued."""
        flat = {**asdict(self.choices), "passes": self.passes, "seed": self.seed}
        schedule: dict[str, object] = flat.pop("schedule")
        # JSON has no infinity.
        return flat | {name: None if value == math.inf else value for name, value in schedule.items()}
