"""A method that falls back to the plain model while its monitor finds that adaptation hurts.

guarded = fozo.Guarded(adapter, fozo.Monitor(reference, shadow=0.1))
logits = guarded(images)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fozo.errors import FozoError
from fozo.methods.base import Method, MethodInfo
from fozo.monitor.monitor import Monitor
from fozo.types import Answer, Batch, Floats, State, Tap

if TYPE_CHECKING:
    from typing_extensions import Self

    from fozo.monitor.types import Drift


@dataclass(frozen=True)
class GuardedConfig:
    """Guarding has no options: those of the comparison are the monitor's."""


class Guarded(Method[GuardedConfig]):
    """Returns the plain model's logits while the monitor's evidence says that adaptation hurts (``status.guarding``).

    It begins where the expected gain of adaptation is below zero by more than two standard errors, and ends where it is
    by less than one (:class:`fozo.monitor.shadow.Comparison`). The inner method goes on adapting meanwhile. The
    evidence is in the monitor's state: save it beside the method's.

    Args:
        inner: any method; call the guarded one from now on.
        monitor: watches ``inner`` from now on; it needs ``shadow`` above 0 and a reference with corruptions.
    """

    info = MethodInfo(
        "guarded", "plain predictions while adaptation hurts", "inner + shadow", "what the inner method adapts", ""
    )
    PRESETS: ClassVar = {"default": GuardedConfig()}

    def __init__(self, inner: Method[Any], monitor: Monitor) -> None:
        if monitor.shadow == 0 or monitor.reference.adapted is None:
            raise FozoError(
                "a guard compares with the plain model: it needs a monitor with shadow above 0, and a reference "
                "collected with corruptions"
            )
        self.inner, self.monitor = inner, monitor.watch(inner)
        monitor.guarded = True
        super().__init__(inner.engine)

    @property
    def LENGTHS(self) -> Mapping[str, str]:  # type: ignore[override]
        return {f"inner.{name}": rows for name, rows in self.inner.LENGTHS.items()}

    @property
    def drift(self) -> Drift:
        return self.monitor.drift

    def begin(self) -> None:
        pass

    def step(self, batch: Batch) -> Floats | Answer:
        logits = self.inner(batch.images)
        self.passes_per_image = self.inner.passes_per_image + self.monitor.passes_per_image
        if not self.monitor.status.guarding:
            return logits
        if self.monitor.plain is not None:
            return self.monitor.plain
        self.passes_per_image += 1
        plain: Floats = self.engine.run(batch)[Tap.LOGITS][0]
        return plain

    def checkpoint(self) -> Callable[[], None]:
        return self.inner.checkpoint()

    def variables(self) -> State:
        return {f"inner.{name}": value for name, value in self.inner.variables().items()}

    def assign(self, variables: State) -> None:
        self.inner.assign({name.removeprefix("inner."): value for name, value in variables.items()})

    def metrics(self) -> dict[str, float]:
        return self.inner.metrics()

    def reset(self) -> None:
        self.inner.reset()
        self.monitor.reset()

    def clone(self) -> Self:
        return type(self)(self.inner.clone(), self.monitor.clone())
