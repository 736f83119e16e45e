"""TENT: fully test-time adaptation by entropy minimization (Wang et al., ICLR 2021).

One gradient step a batch on the mean entropy of its predictions, over the affine parameters of every LayerNorm (the
paper's are BatchNorms; a ViT has none). As in the authors' program the logits returned are those from before the step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine
from fozo.methods.layernorm import Descent, GradientMethod, entropy
from fozo.methods.presets import pick
from fozo.methods.registry import MethodInfo, register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Options(Descent):
    """The FOZO paper's values: SGD at 0.001 with momentum 0.9."""


@register(
    MethodInfo(
        name="tent",
        summary="entropy minimization over every LayerNorm",
        needs_gradient=True,
        needs_source=False,
        passes="1, and 1 backward",
        adapts="LayerNorm weights and biases",
        paper="Wang et al., ICLR 2021",
    )
)
class Tent(GradientMethod):
    """Minimise the entropy of the predictions."""

    def __init__(self, engine: Engine, source: SourceStatistics | None = None, **switches: object) -> None:
        """Prepare to adapt; ``switches`` are fields of :class:`Options`."""
        self.choices = pick("tent", {"paper": Options()}, "paper", switches)
        super().__init__(engine, source, self.choices)

    def learn(self, images: Tensor) -> Tensor:
        """Predict, then step (section 3.1-3.2 of the paper)."""
        logits = self.norms.logits(images)
        self.descend(self.norms.gradients(entropy(logits).mean()))
        return logits

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return asdict(self.choices)
