"""SAR: sharpness-aware and reliable entropy minimization (Niu et al., ICLR 2023).

Only sure predictions are learned from, the step is taken with the gradient at the worst point nearby (SAM), and the
model returns to its start when its average loss shows that it has collapsed. LayerNorms of all but the last quarter
of the blocks (0-8 of 12) are adapted.

What differs from the authors' program: there a recovery, and ``reset``, leave the momentum alone, and the average
keeps its low value; and a batch without a sure prediction still moves the model by its momentum. Both are slips: the
preset ``official`` has them, the default does not. The preset ``foa`` is the version in FOA's program, which filters
all images the second time and returns the predictions of the disturbed model.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine
from fozo.errors import FozoError
from fozo.methods.base import State
from fozo.methods.layernorm import Descent, GradientMethod, entropy, lower_blocks
from fozo.methods.presets import pick, positive
from fozo.methods.registry import MethodInfo, register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options(Descent):
    """Everything about SAR that can be chosen. The defaults are the FOZO paper's."""

    margin: float = 0.4
    """E0 of Eq. 2 as a share of ln(classes): predictions of lower entropy are sure."""
    radius: float = 0.05
    """rho of Eq. 3: how far the worst point is looked for."""
    collapse: float = 0.2
    """e0 of section 3.3: recover when the average loss falls below this."""
    memory: float = 0.9
    """Weight of the past in that average."""
    full_recovery: bool = True
    """Whether a recovery (or reset) also clears the momentum, and a recovery the average."""
    coast: bool = False
    """Whether a batch without a sure prediction still takes a step by the momentum."""
    refilter: str = "sure"
    """Whom the second filter asks: the images that passed the first (``sure``), or ``all``."""
    output: str = "plain"
    """Whose predictions are returned: the ``plain`` model's, or those of the ``disturbed`` one."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        super().__post_init__()
        positive("sar", margin=self.margin, radius=self.radius)
        if self.refilter not in ("sure", "all"):
            raise FozoError(f"refilter must be 'sure' or 'all', not {self.refilter!r}")
        if self.output not in ("plain", "disturbed"):
            raise FozoError(f"output must be 'plain' or 'disturbed', not {self.output!r}")

    @property
    def step_size(self) -> float:
        """The rate in force; the authors double it for single images."""
        return super().step_size * (2 if self.batch_size == 1 else 1)


PRESETS = {
    "paper": Options(),
    "official": Options(full_recovery=False, coast=True),
    "foa": Options(full_recovery=False, coast=True, refilter="all", output="disturbed"),
}


@register(
    MethodInfo(
        name="sar",
        summary="sharpness-aware entropy minimization on sure predictions, with recovery",
        needs_gradient=True,
        needs_source=False,
        passes="2, and 2 backward",
        adapts="LayerNorm weights and biases of the lower blocks",
        paper="Niu et al., ICLR 2023",
    )
)
class SAR(GradientMethod):
    """Minimise the entropy of sure predictions where the loss is flat."""

    spent = 2.0

    def __init__(
        self, engine: Engine, source: SourceStatistics | None = None, *, preset: str = "paper", **switches: object
    ) -> None:
        """Prepare to adapt; ``preset`` is ``paper``, ``official`` or ``foa``, ``switches`` fields of Options."""
        self.choices = pick("sar", PRESETS, preset, switches)
        super().__init__(engine, source, self.choices, lower_blocks(engine.spec.depth))
        self.margin = self.choices.margin * math.log(engine.spec.classes)
        self.average: float | None = None

    def learn(self, images: Tensor) -> Tensor:
        """Two forward and two backward passes: Eq. 2-6 of the paper."""
        logits = self.norms.logits(images)
        first = entropy(logits)
        sure = first < self.margin  # Eq. 2
        if not bool(sure.any()) and not self.choices.coast:
            return logits
        here = self.norms.values()
        gradients = self._gradients(first, sure)
        logits, first = logits.detach(), first.detach()  # lets the first pass's graph go before the second's is made
        norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
        # Eq. 5: the worst point within the radius, to first order.
        self._move(gradients, self.choices.radius / (norm + 1e-12))
        disturbed = self.norms.logits(images)
        second = entropy(disturbed)
        still = second < self.margin
        if self.choices.refilter == "sure":
            still &= sure
        gradients = self._gradients(second, still)
        self.norms.assign(here)
        if bool(still.any()) or self.choices.coast:
            self.descend(gradients)  # Eq. 6: the gradient there, the step here
        if bool(still.any()):
            self._recover(float(second[still].detach().mean()))
        return logits if self.choices.output == "plain" else disturbed

    def _gradients(self, entropies: Tensor, kept: Tensor) -> list[Tensor]:
        """Gradients of the mean entropy of the images kept; zeros where none is."""
        if not bool(kept.any()):
            return [velocity.clone().zero_() for velocity in self.velocity]
        return self.norms.gradients(entropies[kept].mean())

    def _move(self, directions: list[Tensor], length: float) -> None:
        for weight, direction in zip(self.norms.parameters, directions, strict=True):
            weight.data.add_(direction, alpha=length)

    def _recover(self, loss: float) -> None:
        """Section 3.3: a tiny loss means that everything is predicted as one class; start again."""
        past, memory = self.average, self.choices.memory
        self.average = loss if past is None else memory * past + (1 - memory) * loss
        if self.average < self.choices.collapse:
            self.norms.assign(self.norms.start)
            if self.choices.full_recovery:
                self.stop()
                self.average = None

    def reset(self) -> None:
        """Forget everything adapted (but see ``full_recovery``)."""
        self.norms.assign(self.norms.start)
        self.average = None
        if self.choices.full_recovery:
            self.stop()

    def state(self) -> State:
        """LayerNorms, momentum and average loss."""
        return {**super().state(), "average": np.array([] if self.average is None else [self.average])}

    def restore_state(self, state: State) -> None:
        """Continue from a state."""
        super().restore_state(state)
        average = state["average"]
        self.average = float(average[0]) if len(average) else None

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return asdict(self.choices)
