"""A method that falls back to the plain model while its monitor finds that adaptation hurts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.common.info import MethodInfo
from fozo.methods.common.options import NoOptions
from fozo.methods.common.wrapper import Wrapper
from fozo.monitor.monitor import Monitor
from fozo.types import Answer, Batch, Floats

if TYPE_CHECKING:
    from typing_extensions import Self

    from fozo.monitor.drift import Drift


class Guarded(Wrapper[NoOptions]):
    """Returns the plain model's logits while the monitor's evidence says that adaptation hurts (``status.guarding``).

    It begins where the expected gain of adaptation is below zero by more than two standard errors, and ends where it is
    by less than one (:class:`fozo.monitor.regression.Comparison`). The inner method goes on adapting meanwhile. The
    evidence is in the monitor's state: save it beside the method's.

    Examples:
        >>> monitor = fozo.Monitor(fozo.MonitorReference.load(reference))
        >>> fozo.Guarded(fozo.adapter(model, source), monitor)(batch).shape
        (8, 10)

    Args:
        inner: any method; call the guarded one from now on.
        monitor: is attached to ``inner`` by ``monitor.watch(inner, guard=True)``; it needs ``shadow`` above 0 and a
            reference with corruptions.
    """

    info = MethodInfo(
        "guarded", "plain predictions while adaptation hurts", "inner + shadow", "what the inner method adapts", ""
    )

    def __init__(self, inner: Method[Any], monitor: Monitor) -> None:
        if monitor.shadow == 0 or monitor.reference.adapted is None:
            raise FozoError(
                "a guard compares with the plain model: it needs a monitor with shadow above 0, and a reference "
                "collected with corruptions"
            )
        super().__init__(inner.engine, inner.statistics, inner=inner)
        self.monitor = monitor.watch(inner, guard=True)

    @property
    def drift(self) -> Drift:
        return self.monitor.drift

    def step(self, batch: Batch) -> Floats | Answer:
        logits = self.forward(batch)
        self.passes_per_image += self.monitor.passes_per_image
        if not self.monitor.status.guarding:
            return logits
        if self.monitor.plain is not None:
            return self.monitor.plain
        self.passes_per_image += 1
        return self.plain(batch)

    def metrics(self) -> dict[str, float]:
        return self.inner.metrics()

    def clone(self) -> Self:
        return type(self)(self.inner.clone(), self.monitor.clone())

    def sibling(self) -> Self:
        return type(self)(self.inner.sibling(), self.monitor.clone())
