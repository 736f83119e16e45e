"""No adaptation: the frozen model as it is, the line that every method has to beat."""

from __future__ import annotations

from fozo.engines.base import Floats, Tokens
from fozo.methods.base import Method, State
from fozo.methods.registry import MethodInfo, register


@register(
    MethodInfo(
        name="noadapt",
        summary="the frozen model as it is",
        needs_gradient=False,
        needs_source=False,
        passes="1",
        adapts="nothing",
        paper="-",
    )
)
class NoAdapt(Method):
    """Predict with the plain model."""

    def adapt(self, tokens: Tokens) -> Floats:
        """Run the plain model."""
        return self.engine.logits(self.engine.run(tokens).pooled[0])

    def reset(self) -> None:
        """Nothing was adapted."""

    def state(self) -> State:
        """Nothing was adapted."""
        return {}

    def restore_state(self, state: State) -> None:
        """Nothing to restore."""
