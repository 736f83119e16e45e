"""All that adaptation changes: read and set as named arrays, undone if a batch fails, saved, journaled and replayed."""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from fozo.errors import FozoError
from fozo.methods.common import state as states
from fozo.methods.common.info import MethodInfo
from fozo.methods.common.journal import Journal, apply_changes, changes, read_journal
from fozo.methods.common.options import plain
from fozo.types import Engine, State

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import Self

C = TypeVar("C", bound="DataclassInstance")
WAIT = 10.0  # seconds, for all methods together: one that takes longer may be waiting for the fork
_methods: list[weakref.ref[Stateful[Any]]] = []  # appending and copying are atomic, unlike those of a WeakSet
_forking = threading.Lock()
_held: list[threading.RLock] = []


class Stateful(ABC, Generic[C]):
    """The part of :class:`fozo.Method` that is about its state."""

    info: ClassVar[MethodInfo]
    STATE: ClassVar[tuple[str, ...]] = ()
    """Attributes that adaptation changes: arrays, numbers, or objects with ``state()`` and ``load_state()``.

    A step replaces arrays and never writes into them. Plain integers are counts and cannot be negative.
    """
    VARIABLE_LENGTH: ClassVar[Mapping[str, str]] = {}
    """Variables with any number of rows, and what that number is called: equal names mean equal numbers.

    A number named here and in ``STATE`` may be ``None``.
    """

    UNJOURNALED: ClassVar[tuple[str, ...]] = ()
    """Variables that journal entries leave out, so that a replay begins them again."""

    engine: Engine
    config: C
    seed: int
    passes_per_image: float = 1.0  # forward passes that the latest batch cost, as an average over its images

    def _renew(self) -> None:
        """Set what belongs to one object and to no sibling of it."""
        self.lock = threading.RLock()
        _methods.append(weakref.ref(self, _methods.remove))
        self.journal: Journal | None = None
        self._recorded: State = {}  # the variables as the journal's last entry left them
        self._entries = 0  # the journal's entries that led here
        self._metrics: dict[str, float] = {}

    @abstractmethod
    def sibling(self) -> Self: ...

    def variables(self) -> State:
        """Return all that adaptation changes as named arrays, which later steps will not write into.

        The names, shapes and precisions are always the same, but for the rows that :attr:`VARIABLE_LENGTH` lets vary.
        """
        return states.read_attributes(self, self.STATE, self.VARIABLE_LENGTH)

    def assign(self, variables: State) -> None:
        """Put variables of the right names, shapes and precisions in force; refuse impossible values here."""
        states.write_attributes(self, self.STATE, self.VARIABLE_LENGTH, variables)

    def variable_length(self) -> Mapping[str, str]:
        return self.VARIABLE_LENGTH

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores the current state; by all variables unless a method knows a cheaper way."""
        return partial(self.assign, self.variables())

    def checkpoints(self) -> list[Callable[[], None]]:
        """Return :meth:`checkpoint`, and those of what it works with."""
        return [self.checkpoint()]

    def record(self) -> dict[str, object]:
        """Return what the latest batch changed as a journal entry (JSON): by default all rows of the state that did."""
        return {"arrays": changes(self._recorded, self.variables())}

    def follow(self, entry: Mapping[str, Any]) -> None:
        """Change the state as the batch did that :meth:`record` made this entry for."""
        self.assign(apply_changes(self.variables(), entry["arrays"]))

    @property
    def journal_index(self) -> int:
        """Index of the next journal entry; a method whose state counts its batches returns that count."""
        return self._entries

    def journal_header(self) -> dict[str, object]:
        """Return what has to be the same for a journal to be continued or replayed."""
        return {"model": self.engine.spec.name, **self.owner()}

    def open_journal(self, path: str | os.PathLike[str]) -> None:
        """Append what each batch changes to a file from now on, as ``journal=`` does from the first batch on."""
        with self.lock:
            self.journal, self._recorded = Journal(path, self.journal_header()), self.variables()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Put everything back to where it was if the body raises."""
        undo = self.rollback()
        try:
            yield
        except BaseException:
            undo()
            raise

    def rollback(self) -> Callable[[], None]:
        """Return a function that puts everything back to where it is now: state, metrics and journal."""
        restores = self.checkpoints()
        before = self._metrics, self.passes_per_image, self._recorded, self._entries

        def undo() -> None:
            for restore in restores:
                restore()
            self._metrics, self.passes_per_image, self._recorded, self._entries = before
            self._rewind()

        return undo

    def _rewind(self) -> None:
        """Let the journal note that the run went back."""
        if self.journal is not None:
            self.journal.rewind(self.journal_index)

    def state(self) -> State:
        """Return a copy of all that adaptation has changed."""
        with self.lock:
            return {name: np.array(value) for name, value in self.variables().items()}

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned. A state that does not fit is refused, and nothing is changed."""
        with self.lock:
            self.check_arrays(state)
            states.check_finite(state)
            with self.transaction():
                try:
                    self.assign({name: np.array(value) for name, value in state.items()})
                except FozoError:
                    raise
                except Exception as error:  # right shapes and types, but values that adaptation does not lead to
                    what = f"this is not a state of {self.info.name} ({type(error).__name__}: {error})"
                    raise FozoError(f"{what}; give a state that it saved itself") from error
                self._metrics = {}
            self._rewind()

    def check_arrays(self, arrays: Mapping[str, states.AnyArray]) -> None:
        states.check_arrays(self.info.name, self.variables(), self.variable_length(), arrays)

    def identity(self) -> dict[str, object]:
        """Return plain values (JSON) that have to be the same for a state to be continued."""
        return {"config": plain(self.config)} | ({"seed": self.seed} if self.info.draws else {})

    def owner(self) -> dict[str, object]:
        """Return :meth:`identity`, and which method and model a file is of."""
        spec = self.engine.spec
        classes = None if spec.subset is None else list(spec.subset)
        return {"method": self.info.name, "fingerprint": spec.fingerprint, "classes": classes, **self.identity()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to an ``.npz`` (no pickle), atomically."""
        states.save_state(path, self.engine.spec.name, self.owner(), self.state())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved state, as if the run had never been interrupted.

        A state of another method, model or config is refused, and nothing is changed.
        """
        self.load_state(states.load_state(path, self.owner(), self.check_arrays))

    def replay(self, journal: str | os.PathLike[str], batches: int | None = None) -> None:
        """Continue from where a journal leads, without any image: after all its batches, or the first ``batches``.

        That is how an adaptation is continued after a crash, audited, and undone to any batch. The journal has to be of
        the same model, statistics and config. If it is refused, nothing is changed.
        """
        file, other = read_journal(journal), self.sibling()
        file.check(self.journal_header())
        followed = file.replay(other.follow, batches)
        with self.lock, self.transaction():
            self._entries = followed
            self.load_state(other.state())
            self._recorded = {} if self.journal is None else self.variables()


def _alive() -> list[Stateful[Any]]:
    return [method for reference in _methods.copy() if (method := reference()) is not None]


def _before() -> None:
    """Let a fork wait until no batch is under way, so a child inherits methods that are whole and locks that are free.

    A child has only the thread that forked. What other threads had locked would stay locked for ever, and what they had
    half changed would stay so.
    """
    _forking.acquire()
    deadline = time.monotonic() + WAIT
    for method in _alive():
        if method.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            _held.append(method.lock)


def _after() -> None:
    while _held:
        _held.pop().release()
    _forking.release()


def _after_in_child() -> None:
    renewed: dict[int, threading.RLock] = {}  # a wrapper shares its inner method's
    for method in _alive():
        if method.lock not in _held:  # its owner does not exist here
            method.lock = renewed.setdefault(id(method.lock), threading.RLock())
    _after()


if hasattr(os, "register_at_fork"):  # Windows has no forks
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
