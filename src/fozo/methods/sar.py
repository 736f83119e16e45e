"""SAR: sharpness-aware and reliable entropy minimization (Niu et al., ICLR 2023).

Learns from reliable predictions (of low entropy) only, steps with the gradient at the worst point nearby (SAM), and
returns to the start when the average loss shows that the model has collapsed. LayerNorms of all but the last quarter
of the blocks (0-8 of 12) are adapted.

What differs from the authors' program: there a recovery, and ``reset``, leave the momentum alone, and the average
keeps its low value; and a batch without a reliable prediction moves the model by its momentum. Both are slips: the
preset ``official`` has them, the default does not. The preset ``foa`` is the version in FOA's program, which filters
all images the second time and returns the predictions of the disturbed model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from fozo.engines.blackbox import to_numpy
from fozo.methods.common.layernorm import Descent, DescentState, GradientMethod, LayerNorms, entropy
from fozo.methods.common.options import one_of, positive, sweep
from fozo.methods.method import Result
from fozo.methods.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SARConfig(Descent):
    """Everything about SAR that can be chosen. The defaults are the FOZO paper's."""

    e_margin: float = 0.4
    """E0 of Eq. 2 as a share of ln(classes): predictions of lower entropy are reliable."""
    rho: float = 0.05
    """Radius of Eq. 3: how far away the worst point is looked for."""
    reset_threshold: float = 0.2
    """e0 of section 3.3: recover when the average loss falls below this."""
    ema_decay: float = 0.9
    """Weight of the past in that average."""
    full_recovery: bool = True
    """Whether a recovery (or reset) also clears the momentum, and a recovery the average."""
    step_when_empty: bool = False
    """Whether a batch without a reliable prediction takes a step by the momentum."""
    refilter: str = "reliable"
    """Images that the second filter checks: those that passed the first (``reliable``), or ``all``."""
    output: str = "plain"
    """Whose predictions are returned: the ``plain`` model's, or those of the ``disturbed`` one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("sar", e_margin=self.e_margin, rho=self.rho)
        one_of("sar", ("reliable", "all"), refilter=self.refilter)
        one_of("sar", ("plain", "disturbed"), output=self.output)

    @property
    def step_size(self) -> float:
        """The rate in force; the authors double it for single images."""
        return super().step_size * (2 if self.batch_size == 1 else 1)


@dataclass(frozen=True)
class SARState(DescentState):
    """Norms, momentum, and the average loss that shows a collapse."""

    average_loss: float | None = None
    """None before the first step."""


@register(
    "sar", passes="2, and 2 backward", adapts="LayerNorm weights and biases of the lower blocks",
    paper="Niu et al., ICLR 2023", needs={"torch", "gradient"},
    tuning=sweep("rate", 1e-3, 2.5e-4, 4e-3, 1.6e-2),
)  # fmt: skip
class SAR(GradientMethod[SARConfig, SARState]):
    """Sharpness-aware entropy minimisation on reliable predictions, with recovery."""

    PRESETS: ClassVar = {
        "paper": SARConfig(),
        "official": SARConfig(full_recovery=False, step_when_empty=True),
        "foa": SARConfig(full_recovery=False, step_when_empty=True, refilter="all", output="disturbed"),
    }
    LOWER_BLOCKS = True

    def prepare(self) -> None:
        super().prepare()
        self._margin = self._entropy_share(self.config.e_margin)

    def init(self) -> SARState:
        return SARState(norms=self._start, velocity=np.zeros_like(self._start))

    def restart(self, state: SARState) -> SARState:
        fresh = self.init()
        return fresh if self.config.full_recovery else replace(fresh, velocity=state.velocity)

    def learn(self, state: SARState, norms: LayerNorms, images: Tensor) -> Result[SARState]:
        """Two forward and two backward passes: Eq. 2-6 of the paper."""
        import torch

        config = self.config
        logits = norms.logits(images)
        entropies = entropy(logits)
        reliable = entropies < self._margin  # Eq. 2
        if not bool(reliable.any()) and not config.step_when_empty:
            return Result(to_numpy(logits), state, passes=2.0)
        gradients, loss = _mean_gradients(norms, entropies, reliable)
        logits = logits.detach()  # lets the graph of the first pass go before that of the second is made
        del entropies
        length = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
        with torch.no_grad():  # Eq. 5: the worst point within the radius, to first order
            for weight, gradient in zip(norms.parameters, gradients, strict=True):
                weight.add_(gradient, alpha=config.rho / (length + 1e-12))
        disturbed_logits = norms.logits(images)
        disturbed_entropies = entropy(disturbed_logits)
        selected = disturbed_entropies < self._margin
        if config.refilter == "reliable":
            selected &= reliable
        gradients, disturbed_loss = _mean_gradients(norms, disturbed_entropies, selected)
        learnt = state
        if disturbed_loss is not None or config.step_when_empty:
            learnt = self._descend(learnt, gradients)  # Eq. 6: the gradient there, the step here
        if disturbed_loss is not None:
            learnt = self._recovered(learnt, disturbed_loss)
            loss = disturbed_loss
        predicted = logits if config.output == "plain" else disturbed_logits
        metrics = {} if loss is None else {"loss": loss}
        return Result(to_numpy(predicted), learnt, metrics, passes=2.0)

    def _recovered(self, state: SARState, loss: float) -> SARState:
        """Section 3.3: a tiny loss means that everything is predicted as one class; start again."""
        decay = self.config.ema_decay
        past = state.average_loss
        average = loss if past is None else decay * past + (1 - decay) * loss
        if average >= self.config.reset_threshold:
            return replace(state, average_loss=average)
        if self.config.full_recovery:
            return self.init()
        return replace(state, norms=self._start, average_loss=average)


def _mean_gradients(norms: LayerNorms, entropies: Tensor, kept: Tensor) -> tuple[list[Tensor], float | None]:
    """Gradients of the mean entropy of the images kept, and this loss; zeros and no loss where none is kept."""
    if not bool(kept.any()):
        return [parameter.detach().clone().zero_() for parameter in norms.parameters], None
    loss = entropies[kept].mean()
    return norms.gradients(loss), loss.item()
