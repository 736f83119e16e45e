"""A method around another one: what it does to images, or to logits, composes with every method."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.common.stateful import C
from fozo.methods.noadapt import NoAdapt
from fozo.types import Answer, Batch, Floats, State

if TYPE_CHECKING:
    from typing_extensions import Self

PREFIX = "inner."
V = TypeVar("V")


class Wrapper(Method[C]):
    """A method around ``inner``, or around the plain model where none is given.

    It uses the inner method itself, not a copy: they share a lock, and a reset or a state is of both. The journal is
    the outermost method's. An observer sees what the method sees that it is attached to: before an equaliser the
    camera's images, behind it the equalised ones. A subclass calls :meth:`forward` in its ``step``.
    """

    EXTRAS: ClassVar[tuple[str, ...]] = ("inner",)
    inner: Method[Any]

    @classmethod
    def around(cls, method: Method[Any], **options: Any) -> Self:  # noqa: ANN401 - those of any class
        """Make one around a method, on its engine and with its statistics."""
        return cls(method.engine, method.statistics, inner=method, **options)

    def prepare(self) -> None:
        self.inner = inner = self.extras["inner"] or NoAdapt(self.engine)
        if inner.engine is not self.engine:
            raise FozoError(f"{self.info.name} and its inner {inner.info.name} need one engine; give it to both")
        if inner.journal is not None:
            name = inner.info.name
            raise FozoError(f"{name} has a journal of its own; give journal= to {self.info.name} instead")
        self.lock, self.parameters = inner.lock, inner.parameters

    def forward(self, batch: Batch) -> Floats | Answer:
        """Let the inner method adapt and predict, or only predict while frozen."""
        inner = self.inner
        inner.report()
        inner.descriptors = inner.last_input = None
        found = inner.predict(batch) if self.frozen or inner.frozen else inner.step(batch)
        self.passes_per_image = inner.passes_per_image
        self.descriptors, self.last_input = inner.descriptors, inner.last_input
        inner.show(batch, found)
        return found

    def checkpoints(self) -> list[Callable[[], None]]:
        return [*super().checkpoints(), self.inner.rollback()]

    def checkpoint(self) -> Callable[[], None]:
        """Of its own state: the inner method has a rollback of its own."""
        return partial(super().assign, super().variables())

    def variables(self) -> State:
        return super().variables() | _prefixed(self.inner.variables())

    def assign(self, variables: State) -> None:
        super().assign(variables)
        self.inner.assign({name.removeprefix(PREFIX): variables[name] for name in variables if name.startswith(PREFIX)})

    def variable_length(self) -> Mapping[str, str]:
        inner = self.inner.variable_length()
        return {**self.VARIABLE_LENGTH, **_prefixed({name: PREFIX + rows for name, rows in inner.items()})}

    def identity(self) -> dict[str, object]:
        if isinstance(self.inner, NoAdapt):
            return super().identity()
        return super().identity() | {"inner": {"method": self.inner.info.name, **self.inner.identity()}}

    def metrics(self) -> dict[str, float]:
        with self.lock:
            return _prefixed(self.inner.metrics()) | super().metrics()

    def set_frozen(self, frozen: bool) -> None:
        super().set_frozen(frozen)
        self.inner.set_frozen(frozen)

    def reset(self) -> None:
        with self.lock:
            self.inner.reset()
            super().reset()

    def clone(self) -> Self:
        extras = {**self.extras, "inner": self.inner.clone()}
        return type(self)(self.engine, self.statistics, self.config, seed=self.seed, **extras)

    def sibling(self) -> Self:
        made = super().sibling()
        made.inner = self.inner.sibling()
        made.lock = made.inner.lock
        return made

    def release(self) -> None:
        super().release()
        self.inner.release()

    def __repr__(self) -> str:
        own = super().__repr__()
        return own if isinstance(self.inner, NoAdapt) else f"{own[:-1]}, inner={self.inner!r}>"


def _prefixed(values: Mapping[str, V]) -> dict[str, V]:
    return {PREFIX + name: value for name, value in values.items()}
