"""A method around another one: what it does to images, or to logits, composes with every method."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fozo.errors import FozoError
from fozo.methods.method import C, Method, Moment, Result, S
from fozo.methods.noadapt import NoAdapt
from fozo.state import State
from fozo.types import Batch

if TYPE_CHECKING:
    from typing_extensions import Self

Forward: TypeAlias = "Callable[[Batch], Result[Any]]"


class Wrapper(Method[C, S]):
    """A method around ``inner``, or around the plain model where none is given.

    It uses the inner method itself, not a copy: they share a lock, and a reset or a file is of both. The journal is the
    outermost method's. An observer sees what the method sees that it is attached to: before an equaliser the camera's
    images, behind it the equalised ones. A subclass implements :meth:`wrap`; its state has a field ``inner``.
    """

    EXTRAS: ClassVar[tuple[str, ...]] = ("inner",)

    @classmethod
    def around(cls, method: Method[Any, Any], **options: Any) -> Self:  # noqa: ANN401 - those of any class
        """Make one around a method, on its engine and with its statistics."""
        return cls(method.engine, method._statistics, inner=method, **options)

    @abstractmethod
    def wrap(self, state: S, batch: Batch, forward: Forward) -> Result[S]:
        """Adapt and predict; ``forward`` lets the inner method adapt to a batch and predict it."""

    def prepare(self) -> None:
        inner: Method[Any, Any] = self._extras["inner"] or NoAdapt(self.engine)
        if inner.engine is not self.engine:
            raise FozoError(f"{self.info.name} and its inner {inner.info.name} need one engine; give it to both")
        if inner._journal is not None:
            name = inner.info.name
            raise FozoError(f"{name} has a journal of its own; give journal= to {self.info.name} instead")
        self.inner = inner
        self.parameter_count = inner.parameter_count
        if self._statistics is None:
            self._statistics = inner._statistics

    def step(self, state: S, batch: Batch) -> Result[S]:
        return self.wrap(state, batch, self._forward(state, learn=True))

    def predict_step(self, state: S, batch: Batch) -> Result[S]:
        return self.wrap(state, batch, self._forward(state, learn=False))

    def _forward(self, state: S, *, learn: bool) -> Forward:
        inner_state = _inner(state)
        if learn and not self.inner.frozen:
            return partial(self.inner.step, inner_state)
        return partial(self._predict_inner, inner_state)

    def _predict_inner(self, state: State, batch: Batch) -> Result[Any]:
        return replace(self.inner.predict_step(state, batch), state=state)

    def journaled(self, state: S) -> S:
        kept: S = replace(state, inner=self.inner.journaled(_inner(state)))  # type: ignore[call-arg]
        return kept

    def check_state(self, state: S) -> None:
        self.inner.check_state(_inner(state))

    def restart(self, state: S) -> S:
        inner = self.inner.restart(_inner(state))
        fresh: S = replace(self.init(), inner=inner)  # type: ignore[call-arg]
        return fresh

    # What is learnt inside is in both methods' hands: the inner one has it, and this one's state shows it.

    def _begin(self) -> None:
        super()._begin()
        self._lock = self.inner._lock

    def _state(self) -> S:
        state: S = replace(self._now.state, inner=self.inner._state())  # type: ignore[call-arg]
        return state

    def _commit(self, batch: Batch, result: Result[S], *, learnt: bool) -> None:
        if result.inner is not None:
            inner_batch, inner_result = result.inner
            self.inner._commit(inner_batch, inner_result, learnt=learnt and not self.inner.frozen)
        super()._commit(batch, result, learnt=learnt)

    def _set(self, moment: Moment[S]) -> None:
        super()._set(moment)
        inner = self.inner
        watched = inner._now.watched
        if not moment.batches and inner._observer is not None:
            watched = inner._observer.observer.init()
        inner._set(Moment(_inner(moment.state), moment.batches, watched=watched))

    def _moments(self) -> list[tuple[Method[Any, Any], Moment[Any]]]:
        return [*self.inner._moments(), *super()._moments()]

    def freeze(self, frozen: bool = True) -> None:
        super().freeze(frozen)
        self.inner.freeze(frozen)

    def clone(self) -> Self:
        twin = copy.copy(self)
        twin.inner = self.inner.clone()
        twin._begin()
        return twin

    def metrics(self) -> dict[str, float]:
        return {**{f"inner.{name}": value for name, value in self.inner.metrics().items()}, **super().metrics()}

    def identity(self) -> dict[str, object]:
        if isinstance(self.inner, NoAdapt):
            return super().identity()
        return {**super().identity(), "inner": {"method": self.inner.info.name, **self.inner.identity()}}

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if isinstance(self.inner, NoAdapt) else f"{text[:-1]}, inner={self.inner!r}>"


def _inner(state: State) -> Any:  # noqa: ANN401 - the state of any method
    return state.inner  # type: ignore[attr-defined]
