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
from fozo.state import State
from fozo.types import Answer, Batch

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class GuardedState(State):
    """What the inner method has learnt, and the evidence on it."""

    inner: State
    monitor: MonitorState


class Guarded(Wrapper[NoOptions, GuardedState]):
    """Returns the plain model's logits while the monitor's evidence says that adaptation hurts (``status.guarding``).

    It begins where the expected gain of adaptation is below zero by more than two standard errors, and ends where it is
    by less than one (:class:`fozo.monitor.accuracy.Comparison`). The inner method goes on adapting meanwhile. The
    evidence is a part of the state; while frozen, none is gathered.

    Examples:
        >>> monitor = fozo.Monitor(fozo.Reference.load(reference))
        >>> fozo.Guarded(fozo.adapter(model, statistics), monitor)(batch).shape
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
        super().__init__(inner.engine, inner=inner)

    def prepare(self) -> None:
        super().prepare()
        self.monitor.guard(self, self.inner)

    def init(self) -> GuardedState:
        return GuardedState(self.inner.init(), self.monitor.init())

    def journaled(self, state: GuardedState) -> GuardedState:
        """The evidence begins again in a replay: images are not in a journal."""
        return replace(super().journaled(state), monitor=self.monitor.init())

    def wrap(self, state: GuardedState, batch: Batch, forward: Forward) -> Result[GuardedState]:
        inner = forward(batch)
        assert not isinstance(inner.logits, Answer)
        seen = Observation(batch, inner.logits, inner.descriptors, inner.last_input)
        updated = self._attached.update(state.monitor, seen)
        if updated is None:  # the monitor failed: go on with the evidence so far
            return self._guarded(replace(state, inner=inner.state), batch, inner, None)
        memory, status = updated
        assert isinstance(memory, MonitorState) and isinstance(status, Status)
        return self._guarded(GuardedState(inner.state, memory), batch, inner, status)

    def predict_step(self, state: GuardedState, batch: Batch) -> Result[GuardedState]:
        """Predict as the evidence so far says; none is gathered."""
        return self._guarded(state, batch, self._forward(state, learn=False)(batch), None)

    def _guarded(
        self, state: GuardedState, batch: Batch, inner: Result[Any], status: Status | None
    ) -> Result[GuardedState]:
        """Take the plain model's logits while the evidence says so; ``status`` is the monitor's of this batch."""
        plain = None if status is None else status.plain
        passes = inner.passes + (0.0 if status is None else status.passes_per_image)
        logits = inner.logits
        if state.monitor.guarding:
            logits = self.plain(batch) if plain is None else plain
            passes += plain is None
        reading = self.reading if status is None else status
        return replace(
            inner, logits=logits, state=state, metrics={}, passes=passes, inner=(batch, inner), reading=reading
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
