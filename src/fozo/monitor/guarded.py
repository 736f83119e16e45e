"""A method that falls back to the plain model while its monitor finds that adaptation hurts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fozo.errors import FozoError
from fozo.methods.common.info import MethodInfo
from fozo.methods.common.options import NoOptions
from fozo.methods.common.wrapper import Forward, Wrapper
from fozo.methods.method import Method, Moment, Result
from fozo.methods.observer import AttachedObserver, Observation
from fozo.monitor.monitor import Monitor, MonitorState, Status
from fozo.state import State, unjournaled
from fozo.types import Answer, Batch, Floats

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class GuardedState(State):
    """What the inner method has learnt, and the evidence on it."""

    inner: State
    monitor: MonitorState = unjournaled()


class Guarded(Wrapper[NoOptions, GuardedState]):
    """Returns the plain model's logits while the monitor's evidence says that adaptation hurts (``status.guarding``).

    It begins where the expected gain of adaptation is below zero by more than two standard errors, and ends where it is
    by less than one (:class:`fozo.monitor.regression.Comparison`). The inner method goes on adapting meanwhile. The
    evidence is a part of the state; while frozen, none is gathered.

    Examples:
        >>> monitor = fozo.Monitor(fozo.MonitorReference.load(reference))
        >>> fozo.Guarded(fozo.adapter(model, source), monitor)(batch).shape
        (8, 10)

    Args:
        inner: any method; call the guarded one from now on.
        monitor: watches nothing yet; it needs ``shadow`` above 0 and a reference with corruptions.
    """

    info = MethodInfo(
        "guarded", "plain predictions while adaptation hurts", "inner + shadow", "what the inner method adapts", ""
    )

    def __init__(self, inner: Method[Any, Any], monitor: Monitor) -> None:
        if monitor.shadow == 0 or monitor.reference.adapted is None:
            raise FozoError(
                "a guard compares with the plain model: it needs a monitor with shadow above 0, and a reference "
                "collected with corruptions"
            )
        self.monitor = monitor
        super().__init__(inner.engine, inner._statistics, inner=inner)

    def prepare(self) -> None:
        super().prepare()
        self.monitor.guard(self, self.inner)

    def init(self) -> GuardedState:
        return GuardedState(self.inner.init(), self.monitor.init())

    def wrap(self, state: GuardedState, batch: Batch, forward: Forward) -> Result[GuardedState]:
        inner = forward(batch)
        assert not isinstance(inner.logits, Answer)
        seen = Observation(batch, inner.logits, inner.descriptors, inner.last_input)
        updated = self._attached.update(state.monitor, seen)
        memory, status = updated or (state.monitor, Status(guarding=state.monitor.guarding))
        assert isinstance(memory, MonitorState) and isinstance(status, Status)
        logits: Floats | Answer = inner.logits
        passes = inner.passes + status.passes_per_image
        if status.guarding and status.plain is not None:
            logits = status.plain
        elif status.guarding:
            logits = self.plain(batch)
            passes += 1
        reading = self.reading if updated is None else status
        after = GuardedState(inner.state, memory)
        return replace(self._result(after, batch, inner), logits=logits, passes=passes, reading=reading)

    def predict_step(self, state: GuardedState, batch: Batch) -> Result[GuardedState]:
        """Predict as the evidence so far says; none is gathered."""
        inner = self._forward(state, learn=False)(batch)
        result = self._result(state, batch, inner)
        if not state.monitor.guarding:
            return result
        return replace(result, logits=self.plain(batch), passes=inner.passes + 1)

    def _result(self, state: GuardedState, batch: Batch, inner: Result[Any]) -> Result[GuardedState]:
        return Result(
            inner.logits,
            state,
            passes=inner.passes,
            descriptors=inner.descriptors,
            last_input=inner.last_input,
            inner=(batch, inner),
            reading=self.reading,
        )

    def metrics(self) -> dict[str, float]:
        return {**self.inner.metrics(), **self.monitor.metrics()}

    def identity(self) -> dict[str, object]:
        return {**super().identity(), "monitor": self.monitor.owner()}

    def clone(self) -> Self:
        twin = super().clone()
        twin.monitor = self.monitor.clone().guard(twin, twin.inner)
        twin._attached = AttachedObserver(twin.monitor, twin.info.name)
        return twin

    def _begin(self) -> None:
        super()._begin()
        self._attached = AttachedObserver(self.monitor, self.info.name)

    def _set(self, moment: Moment[GuardedState]) -> None:
        super()._set(replace(moment, reading=self.monitor.report(moment.state.monitor)))

    def _commit(self, batch: Batch, result: Result[GuardedState], *, learnt: bool) -> None:
        before = self.reading
        super()._commit(batch, result, learnt=learnt)
        if result.reading is not None and result.reading is not before:
            self._attached.notify(result.reading)
