"""A method around another one: what it does to images, or to logits, composes with every method.

>>> adapter = Equalise.before(fozo.FOZO(model, source))
>>> adapter = NEO.behind(fozo.FOA(model, source))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.common.stateful import C
from fozo.types import Answer, Batch, Floats, State

if TYPE_CHECKING:
    from typing_extensions import Self

PREFIX = "inner."


class Wrapper(Method[C]):
    """A method around ``inner``, or around the plain model where that is ``None``.

    It uses the inner method itself, not a copy: they share a lock, and a reset or a state is of both. The journal is
    the outermost method's. An observer sees what the method sees that it is attached to: before an equaliser the
    camera's images, behind it the equalised ones. A subclass calls :meth:`forward` in its ``step``.
    """

    EXTRAS: ClassVar[tuple[str, ...]] = ("inner",)
    inner: Method[Any] | None

    @classmethod
    def around(cls, method: Method[Any], **options: Any) -> Self:  # noqa: ANN401 - those of any class
        """Make one around a method, on its engine and with its statistics."""
        return cls(method.engine, method.statistics, inner=method, **options)

    def prepare(self) -> None:
        self.inner = self.extras["inner"]
        if self.inner is None:
            return
        if self.inner.engine is not self.engine:
            raise FozoError(f"{self.info.name} and its inner {self.inner.info.name} need one engine; give it to both")
        if self.inner.journal is not None:
            name = self.inner.info.name
            raise FozoError(f"{name} has a journal of its own; give journal= to {self.info.name} instead")
        self.lock, self.parameters = self.inner.lock, self.inner.parameters

    def forward(self, batch: Batch) -> Floats | Answer:
        """Let the inner method adapt and predict, or only predict while frozen."""
        inner = self.inner
        if inner is None:
            return self.plain(batch)
        inner.report()
        inner.descriptors = inner.last_input = None
        found = inner.predict(batch) if self.frozen or inner.frozen else inner.step(batch)
        self.passes_per_image = inner.passes_per_image
        self.descriptors, self.last_input = inner.descriptors, inner.last_input
        if not isinstance(found, Answer):
            inner.show(batch, found)
        return found

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with nullcontext() if self.inner is None else self.inner.transaction(), super().transaction():
            yield

    def checkpoint(self) -> Callable[[], None]:
        """Of its own state: the inner method has a transaction of its own."""
        return partial(super().assign, super().variables())

    def variables(self) -> State:
        inner = {} if self.inner is None else self.inner.variables()
        return super().variables() | {PREFIX + name: value for name, value in inner.items()}

    def assign(self, variables: State) -> None:
        super().assign(variables)
        if self.inner is not None:
            inner = {name.removeprefix(PREFIX): value for name, value in variables.items() if name.startswith(PREFIX)}
            self.inner.assign(inner)

    def variable_length(self) -> Mapping[str, str]:
        inner = {} if self.inner is None else self.inner.variable_length()
        return {**self.VARIABLE_LENGTH, **{PREFIX + name: PREFIX + rows for name, rows in inner.items()}}

    def identity(self) -> dict[str, object]:
        if self.inner is None:
            return super().identity()
        return super().identity() | {"inner": {"method": self.inner.info.name, **self.inner.identity()}}

    def metrics(self) -> dict[str, float]:
        with self.lock:
            inner = {} if self.inner is None else self.inner.metrics()
            return {PREFIX + name: value for name, value in inner.items()} | super().metrics()

    def freeze(self) -> None:
        super().freeze()
        if self.inner is not None:
            self.inner.freeze()

    def unfreeze(self) -> None:
        super().unfreeze()
        if self.inner is not None:
            self.inner.unfreeze()

    def reset(self) -> None:
        with self.lock:
            if self.inner is not None:
                self.inner.reset()
            super().reset()

    def clone(self) -> Self:
        inner = None if self.inner is None else self.inner.clone()
        return type(self)(self.engine, self.statistics, self.config, seed=self.seed, **{**self.extras, "inner": inner})

    def sibling(self) -> Self:
        made = super().sibling()
        if self.inner is not None:
            made.inner = self.inner.sibling()
            made.extras = {**self.extras, "inner": made.inner}
            made.lock = made.inner.lock
        return made

    def release(self) -> None:
        super().release()
        if self.inner is not None:
            self.inner.release()

    def __repr__(self) -> str:
        return super().__repr__() if self.inner is None else f"{super().__repr__()[:-1]}, inner={self.inner!r}>"
