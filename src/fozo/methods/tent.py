"""TENT: fully test-time adaptation by entropy minimization (Wang et al., ICLR 2021).

One gradient step a batch on the mean entropy of its predictions, over the affine parameters of every LayerNorm (the
paper's are BatchNorms; a ViT has none). As in the authors' program the logits returned are those from before the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fozo.engines.blackbox import to_numpy
from fozo.methods.common.layernorm import Descent, DescentState, GradientMethod, LayerNorms, entropy
from fozo.methods.common.options import sweep
from fozo.methods.method import Result
from fozo.methods.registry import register

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TentConfig(Descent):
    """The FOZO paper's values: SGD at 0.001 with momentum 0.9."""


@register(
    "tent", passes="1, and 1 backward", adapts="LayerNorm weights and biases", paper="Wang et al., ICLR 2021",
    needs={"torch", "gradient"}, label="TENT", tuning=sweep("rate", 1e-3, 2.5e-4, 4e-3, 1.6e-2),
)  # fmt: skip
class Tent(GradientMethod[TentConfig, DescentState]):
    """Entropy minimisation over every LayerNorm."""

    PRESETS: ClassVar = {"paper": TentConfig()}

    def learn(self, state: DescentState, norms: LayerNorms, images: Tensor) -> Result[DescentState]:
        logits = norms.logits(images)
        loss = entropy(logits).mean()
        learnt = self._descend(state, norms.gradients(loss))
        return Result(to_numpy(logits), learnt, {"loss": loss.item()})
