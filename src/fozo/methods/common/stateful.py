"""All that adaptation changes: read and set as named arrays, undone if a batch fails, saved, journaled and replayed."""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.io import ArraySpec, load_arrays, save_arrays
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
VERSION = 4
MAX_MAGNITUDE = 1e30  # Adaptation leads to no number near it; beyond it, products of two would not be finite
AnyArray: TypeAlias = npt.NDArray[np.generic] | ArraySpec  # An array, or what a file's header says about one


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
        return read_attributes(self, self.STATE, self.VARIABLE_LENGTH)

    def assign(self, variables: State) -> None:
        """Put variables of the right names, shapes and precisions in force; refuse impossible values here."""
        write_attributes(self, self.STATE, self.VARIABLE_LENGTH, variables)

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
            check_finite(state)
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

    def check_arrays(self, arrays: Mapping[str, AnyArray]) -> None:
        check_arrays(self.info.name, self.variables(), self.variable_length(), arrays)

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
        save_state(path, self.engine.spec.name, self.owner(), self.state())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved state, as if the run had never been interrupted.

        A state of another method, model or config is refused, and nothing is changed.
        """
        self.load_state(load_state(path, self.owner(), self.check_arrays))

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


def read_attributes(owner: object, names: Iterable[str], optional: Collection[str]) -> State:
    """Return attributes as named arrays, objects by their ``state()``; ``optional`` numbers have 0 or 1 rows."""
    found: State = {}
    for name in names:
        value = getattr(owner, name)
        if hasattr(value, "state"):
            found |= value.state()
        elif name in optional and (value is None or isinstance(value, float)):
            found[name] = np.array([] if value is None else [value], dtype=np.float64)
        else:
            found[name] = np.asarray(value)
    return found


def write_attributes(owner: object, names: Iterable[str], optional: Collection[str], state: State) -> None:
    """Set what :func:`read_attributes` returned. Plain integers are counts, so negative ones are refused."""
    for name in names:
        current = getattr(owner, name)
        if hasattr(current, "load_state"):
            current.load_state(state)
            continue
        value: object = state[name]
        if name in optional and (current is None or isinstance(current, float)):
            if len(state[name]) > 1:
                raise FozoError(f"the state's {name!r} is {len(state[name])} numbers, not one; save the state again")
            value = float(state[name][0]) if len(state[name]) else None
        elif isinstance(current, (int, float)):
            value = type(current)(state[name].item())
            if isinstance(current, int) and value < 0:
                raise FozoError(f"the state's {name!r} is {value}, but counts start at 0; give a state saved whole")
        setattr(owner, name, value)


def check_arrays(method: str, current: State, variable: Mapping[str, str], state: Mapping[str, AnyArray]) -> None:
    """Refuse names, shapes and precisions other than the current ones; ``variable`` rows may differ in number."""
    rows: dict[str, int] = {}
    for name in sorted(current.keys() ^ state.keys()):
        what = f"holds {name!r}, which {method} does not have" if name in state else f"lacks {name!r}"
        raise FozoError(f"the state {what}; give a state that it saved itself")
    for name, value in state.items():
        wanted = current[name].shape
        if name in variable and value.shape:
            wanted = (rows.setdefault(variable[name], value.shape[0]), *wanted[1:])
        if value.dtype != current[name].dtype or value.shape != wanted:
            raise FozoError(
                f"the state's {name!r} is {value.dtype} of shape {list(value.shape)}, where finite "
                f"{current[name].dtype} of shape {list(wanted)} is needed; give a state that was saved whole"
            )


def check_finite(state: State) -> None:
    for name, value in state.items():
        if value.dtype.kind == "f" and not (np.abs(value.astype(np.float64)) <= MAX_MAGNITUDE).all():
            raise FozoError(f"the state's {name!r} has values that are not finite; give a state that was saved whole")


def save_state(path: str | os.PathLike[str], model: str, owner: Mapping[str, object], state: State) -> None:
    """Write an ``.npz`` (no pickle), atomically. ``owner`` says what has to be the same to continue from it."""
    header = {"kind": "state", "version": VERSION, "model": model, **owner}
    save_arrays(path, header, state, mode=0o600)  # it tells what a camera saw; a monitor's holds a frame


def load_state(
    path: str | os.PathLike[str], owner: Mapping[str, object], check_specs: Callable[[Mapping[str, AnyArray]], None]
) -> State:
    """Read a state of ``owner``; anything else is refused before its arrays are read."""

    def check(header: Mapping[str, object], specs: Mapping[str, ArraySpec]) -> None:
        _check_owner(os.fspath(path), header, owner)
        check_specs(specs)

    return load_arrays(path, "state", check)[1]


def _check_owner(path: str, header: Mapping[str, object], owner: Mapping[str, object]) -> None:
    if header.get("version") != VERSION:
        what = f"{path} is a state of version {header.get('version')!r}, but this fozo reads version {VERSION}"
        raise FozoError(f"{what}; remove it, and adapt from the start")
    for key in [*owner, "inner"]:
        theirs, ours = header.get(key), owner.get(key)
        if theirs == ours:
            continue
        if isinstance(theirs, dict) and isinstance(ours, dict):
            key = next((name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)), key)
            theirs, ours = theirs.get(key), ours.get(key)
        saved = f"{path} was saved with {key}={theirs!r} ({header.get('model')})"
        raise FozoError(f"{saved}, but this run has {ours!r}; restore it into a method made the same way")
