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

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fozo.methods.common.layernorm import Descent, GradientMethod, entropy
from fozo.methods.common.options import one_of, positive, sweep
from fozo.methods.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class SARConfig(Descent):
    """Everything about SAR that can be chosen. The defaults are the FOZO paper's."""

    e_margin: float = 0.4  # E0 of Eq. 2 as a share of ln(classes): predictions of lower entropy are reliable
    rho: float = 0.05  # Radius of Eq. 3: how far the worst point is looked for
    reset_threshold: float = 0.2  # e0 of section 3.3: recover when the average loss falls below this
    ema_decay: float = 0.9  # Weight of the past in that average
    full_recovery: bool = True  # Whether a recovery (or reset) also clears the momentum, and a recovery the average
    step_when_empty: bool = False  # Whether a batch without a reliable prediction takes a step by the momentum
    refilter: str = "reliable"  # images that the second filter checks: those that passed the first, or ``all``
    output: str = "plain"  # Whose predictions are returned: the ``plain`` model's, or those of the ``disturbed`` one

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("sar", e_margin=self.e_margin, rho=self.rho)
        one_of("sar", ("reliable", "all"), refilter=self.refilter)
        one_of("sar", ("plain", "disturbed"), output=self.output)

    @property
    def step_size(self) -> float:
        """The rate in force; the authors double it for single images."""
        return super().step_size * (2 if self.batch_size == 1 else 1)


@register(
    "sar", passes="2, and 2 backward", adapts="LayerNorm weights and biases of the lower blocks",
    paper="Niu et al., ICLR 2023", needs={"torch", "gradient"},
    tuning=sweep("rate", 1e-3, 2.5e-4, 4e-3, 1.6e-2),
)  # fmt: skip
class SAR(GradientMethod[SARConfig]):
    """Sharpness-aware entropy minimisation on reliable predictions, with recovery."""

    STATE: ClassVar = ("average",)
    VARIABLE_LENGTH: ClassVar = {"average": "averages"}
    PRESETS: ClassVar = {
        "paper": SARConfig(),
        "official": SARConfig(full_recovery=False, step_when_empty=True),
        "foa": SARConfig(full_recovery=False, step_when_empty=True, refilter="all", output="disturbed"),
    }
    LOWER_BLOCKS = True
    passes_per_image = 2.0
    average: float | None

    def prepare(self) -> None:
        super().prepare()
        self.margin = self.entropy_share(self.config.e_margin)

    def learn(self, images: Tensor) -> Tensor:
        """Two forward and two backward passes: Eq. 2-6 of the paper."""
        logits = self.norms.logits(images)
        first = entropy(logits)
        reliable = first < self.margin  # Eq. 2
        if not bool(reliable.any()) and not self.config.step_when_empty:
            return logits
        here = self.norms.values()
        gradients = self._mean_gradients(first, reliable)
        logits, first = logits.detach(), first.detach()  # lets the first pass's graph go before the second's is made
        norm = sum(float((gradient**2).sum()) for gradient in gradients) ** 0.5
        # Eq. 5: the worst point within the radius, to first order.
        for weight, gradient in zip(self.norms.parameters, gradients, strict=True):
            weight.data.add_(gradient, alpha=self.config.rho / (norm + 1e-12))
        disturbed = self.norms.logits(images)
        second = entropy(disturbed)
        selected = second < self.margin
        if self.config.refilter == "reliable":
            selected &= reliable
        gradients = self._mean_gradients(second, selected)
        self.norms.assign(here)
        if bool(selected.any()) or self.config.step_when_empty:
            self.descend(gradients)  # Eq. 6: the gradient there, the step here
        if bool(selected.any()):
            self._recover(float(second[selected].detach().mean()))
        return logits if self.config.output == "plain" else disturbed

    def _mean_gradients(self, entropies: Tensor, kept: Tensor) -> list[Tensor]:
        """Gradients of the mean entropy of the images kept; zeros where none is."""
        if not bool(kept.any()):
            return [velocity.clone().zero_() for velocity in self.velocity]
        return self.gradients(entropies[kept].mean())

    def _recover(self, loss: float) -> None:
        """Section 3.3: a tiny loss means that everything is predicted as one class; start again."""
        past, decay = self.average, self.config.ema_decay
        self.average = loss if past is None else decay * past + (1 - decay) * loss
        if self.average < self.config.reset_threshold:
            self.norms.assign(self.norms.start)
            if self.config.full_recovery:
                self.stop()
                self.average = None

    def begin(self) -> None:
        self.norms.assign(self.norms.start)
        self.average = None
        if self.config.full_recovery:
            self.stop()
