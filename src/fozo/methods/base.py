"""What a user holds: ``method(images)`` adapts to a batch and predicts it.

A method is a frozen config, an engine, and what adaptation changes. The base class does for all of them, once: the
check of the images, a lock, a transaction (if anything raises, everything is as it was), presets and options, states
that can be saved, restored and refused, and exact resets. A subclass implements :meth:`Method.begin`,
:meth:`Method.step`, :meth:`Method.variables` and :meth:`Method.assign`, and reads like its paper.
:func:`fozo.testing.check_method` says whether it kept its promises.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeVar, cast, overload

import numpy as np

from fozo.core.normalisation import Watch
from fozo.core.statistics import SourceStatistics
from fozo.data.inputs import as_batch, to_type_of
from fozo.engines.load import Model, load_engine
from fozo.errors import FozoError
from fozo.io import ArraySpec, load_arrays, save_arrays
from fozo.methods.common.fork import LOCKS
from fozo.methods.common.observer import DriftReading, Observation, Observer
from fozo.methods.common.options import plain, with_options
from fozo.types import Answer, Array, Batch, Floats, Images, ImagesT, State

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import Self

C = TypeVar("C", bound="DataclassInstance")
LOG = logging.getLogger(__name__)

NEEDS = {
    "source": "source statistics; make them with fozo.calibrate",
    "fisher": "the Fisher information of clean images",
    "tokens": "the tokens of a ViT: use an engine that shows them, or the method equalise, which needs none",
    "covariances": "the token covariances of clean images; make them with fozo.methods.pea.measure_covariances",
    "torch": "to change a copy of the model: use a torch engine",
    "blocks": "to move all tokens between blocks: use a torch engine",
    "gradient": "gradients: use a torch engine in full precision, because rounding has none",
}
"""What a method may need, in words."""
STATE_VERSION = 4
LARGEST = 1e30
"""No number that adaptation leads to comes near it; beyond, products of two would not be finite."""


class HasArraySpec(Protocol):
    """An array, or what a file's header says of one."""

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Its precision."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""


@dataclass(frozen=True)
class MethodInfo:
    """What a user should know of a method before choosing it."""

    name: str
    summary: str
    passes: str
    """Forward passes for each image."""
    adapts: str
    paper: str
    needs: frozenset[str] = frozenset()
    """Of :data:`NEEDS`: abilities of the engine, and what has to be measured on clean images first."""
    draws: bool = False
    """Whether it draws random numbers, so that its seed matters."""


class Method(ABC, Generic[C]):
    """Adapts to normalised images and predicts them.

    Args:
        engine: the frozen model, or what :func:`fozo.load_engine` makes an engine of.
        source: its statistics on clean data or the file that keeps them, where the method needs them.
        config: all that can be chosen; or else a preset and the fields that should differ from it.
        preset: name of a config of ``PRESETS``; the first by default.
        seed: of what the method draws, if it draws anything.
        options: fields of the config, those of nested configs with a dot (``"schedule.decay"``), and what it ``TAKES``.
    """

    info: ClassVar[MethodInfo]
    PRESETS: ClassVar[Mapping[str, Any]]
    """Named configs; the first is the default."""
    TAKES: ClassVar[tuple[str, ...]] = ()
    """What it takes beside its config, by keyword: objects that no config file can hold (noise, Fisher information)."""
    LENGTHS: ClassVar[Mapping[str, str]] = {}
    """Variables that may have any number of rows, and what that number is called: equal names mean equal numbers."""

    passes_per_image: float = 1.0
    """Forward passes that the latest batch cost, as an average over its images."""
    described: Array | None = None
    """Descriptors of the latest batch, where the step has measured them: who watches need not do it again."""
    equalised: Floats | None = None
    """The last image of the latest batch as the model read it, where the step has changed it; good until the next."""
    observer: Observer | None = None

    def __init__(
        self,
        engine: Model,
        source: SourceStatistics | str | os.PathLike[str] | None = None,
        config: C | None = None,
        *,
        preset: str | None = None,
        seed: int = 0,
        **options: object,
    ) -> None:
        engine = load_engine(engine)
        if isinstance(source, (str, os.PathLike)):
            source = SourceStatistics.load(source)
        if not isinstance(source, (SourceStatistics, type(None))):
            raise FozoError(f"{self.info.name} takes {NEEDS['source']}(model, images), not a {type(source).__name__}")
        self.given: dict[str, Any] = {name: options.pop(name, None) for name in self.TAKES}
        if config is None:
            config = self.configure(preset, options)
        elif preset is not None or options:
            raise FozoError(f"{self.info.name} was given config= and {preset or next(iter(options))}; give one of them")
        lacking = {"tokens", "gradient", "torch", "blocks"} - engine.abilities | (
            {"source"} if source is None else set()
        )
        for need in ("source", "tokens", "gradient", "torch", "blocks"):  # gradient before torch: the better advice
            if need in self.info.needs & lacking:
                raise FozoError(f"{self.info.name} needs {NEEDS[need]}")
        if source is not None:
            source.check(engine.spec.fingerprint, engine.spec.name, engine.spec)
        self.engine, self.config, self.seed = engine, config, seed
        self._source = source
        self._watch = Watch()
        self._metrics: dict[str, float] = {}
        self._lock = threading.RLock()
        LOCKS.append(weakref.ref(self._lock, LOCKS.remove))
        self.prepare()
        self.begin()

    @property
    def source(self) -> SourceStatistics:
        """The statistics of clean data."""
        if self._source is None:
            raise FozoError(f"{self.info.name} was made without source statistics")
        return self._source

    @classmethod
    def configure(cls, preset: str | None, options: Mapping[str, object]) -> C:
        """Return a preset with options applied, naming what is possible where something is unknown."""
        name = next(iter(cls.PRESETS)) if preset is None else preset
        if name not in cls.PRESETS:
            raise FozoError(f"{cls.info.name} has no preset {name!r}; choose from {', '.join(cls.PRESETS)}")
        return cast("C", with_options(cls.info.name, "", cls.PRESETS[name], options))

    @overload
    def __call__(self, images: ImagesT) -> ImagesT: ...
    @overload
    def __call__(self, images: object) -> Images: ...
    def __call__(self, images: object) -> Images:
        """Adapt to images and return their logits ``[B, classes]``.

        Images are normalised floats ``[B, channels, height, width]`` or ``[channels, height, width]`` of any precision,
        ``uint8`` pixels, PIL images, a list of these, or a batch of a ``DataLoader`` (:mod:`fozo.data.inputs`). Tensors
        in, tensors out, on their device; NumPy otherwise. If it raises, the method is as it was before the call. It may
        be called from many threads: batches are taken one at a time. A fork waits for the batch under way, and the
        child has a copy that goes on by itself.
        """
        with self._lock:
            clean = None if self._source is None else self._source.inputs
            given = as_batch(images, self.engine.spec, clean)
            batch = self.engine.check(given)
            self._watch(given, self.engine.spec, clean)
            with self._transaction():
                self._metrics, self.described, self.equalised = {}, None, None
                logits = self.step(batch)
                if isinstance(logits, Answer):
                    return cast("Images", logits.value)  # of a black box: the methods for those say Any
                if not np.isfinite(logits).all():
                    raise FozoError(
                        f"the logits of {self.info.name} are not all finite; nothing was changed: check the model's "
                        f"weights, or reset the method"
                    )
            return to_type_of(given, self._watched(batch, logits))

    def names(self, logits: Images) -> list[str]:
        """Name the likeliest class of each image; where the model has no names, by its number."""
        rows = logits if isinstance(logits, np.ndarray) else logits.detach().cpu()
        return [self.engine.spec.label(int(best)) for best in rows.argmax(1)]

    def attach(self, observer: Observer | None) -> None:
        """Let somebody look at every batch after it is predicted, :class:`fozo.Monitor` say; ``None`` ends it."""
        with self._lock:
            self.observer = observer

    def _watched(self, batch: Batch, logits: Floats) -> Floats:
        """Show a batch to who watches; should that fail, it is logged, and the predictions stand."""
        if self.observer is None:
            return logits
        try:
            instead = self.observer.observe(Observation(batch, logits, self.described, self.equalised))
        except Exception:
            LOG.exception("the monitor of %s failed; its predictions do not depend on it", self.info.name)
            return logits
        return logits if instead is None else instead

    @property
    def drift(self) -> DriftReading:
        """What its monitor says of drift; without one (:class:`fozo.Monitor` makes one) nobody can tell."""
        if self.observer is None:
            raise FozoError(f"{self.info.name} has no monitor; attach one with fozo.Monitor(reference).watch(adapter)")
        with self._lock:
            return self.observer.drift

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Put everything back to where it was if the body raises."""
        undo, metrics, passes = self.checkpoint(), self._metrics, self.passes_per_image
        try:
            yield
        except BaseException:
            undo()
            self._metrics, self.passes_per_image = metrics, passes
            raise

    def checkpoint(self) -> Callable[[], None]:
        """Return what puts everything back to where it is now, by all variables; a method may know a cheaper way."""
        return partial(self.assign, self.variables())

    def prepare(self) -> None:
        """Derive from engine, source and config what adaptation does not change."""

    @abstractmethod
    def begin(self) -> None:
        """Set up everything that adaptation changes, as new."""

    @abstractmethod
    def step(self, batch: Batch) -> Floats | Answer:
        """Adapt to a checked batch and return its logits ``[B, classes]``, or what a black box returned instead."""

    @abstractmethod
    def variables(self) -> State:
        """Return all that adaptation changes as named arrays, which later steps will not write into.

        The names, shapes and precisions are always the same, but for the rows that :attr:`LENGTHS` lets vary.
        """

    @abstractmethod
    def assign(self, variables: State) -> None:
        """Put variables of the right form in force; what they mean may still be refused here."""

    def report(self, **metrics: float) -> None:
        """Let a step say what :meth:`metrics` will tell of it."""
        self._metrics = metrics

    def metrics(self) -> dict[str, float]:
        """Tell what the latest batch showed, by name: a loss, a step size; and what a monitor says of it."""
        with self._lock:  # half of a batch has none
            return dict(self._metrics) | ({} if self.observer is None else self.observer.metrics())

    @property
    def parameters(self) -> int:
        """How many numbers adaptation searches or descends in (the papers' #Params)."""
        return 0

    def reset(self) -> None:
        """Forget everything adapted: behave exactly as newly made."""
        with self._lock, self._transaction():
            self.begin()
            self._metrics = {}

    def clone(self) -> Self:
        """Make a fresh method of the same config on the same engine."""
        return type(self)(self.engine, self._source, self.config, seed=self.seed, **self.given)

    def state(self) -> State:
        """Return a copy of all that adaptation has changed."""
        with self._lock:
            return {name: np.array(value) for name, value in self.variables().items()}

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned. A state that does not fit is refused, and nothing is changed."""
        with self._lock:
            self._check_specs(state)
            for name, value in state.items():
                if value.dtype.kind == "f" and not (np.abs(value.astype(np.float64)) <= LARGEST).all():
                    raise FozoError(
                        f"the state's {name!r} has values that are not finite; give a state that was saved whole"
                    )
            with self._transaction():
                try:
                    self.assign({name: np.array(value) for name, value in state.items()})
                except FozoError:
                    raise
                except Exception as error:  # of the right form, and yet nothing that adaptation leads to
                    raise FozoError(
                        f"the state is none of {self.info.name}'s ({type(error).__name__}: {error}); give a state that "
                        f"it saved itself"
                    ) from error
                self._metrics = {}

    def _check_specs(self, state: Mapping[str, HasArraySpec]) -> None:
        """Refuse names, shapes and precisions that no state of this method has; arrays or their headers will do."""
        own, rows = self.variables(), dict[str, int]()
        for name in sorted(own.keys() ^ state.keys()):
            what = f"holds {name!r}, which {self.info.name} does not have" if name in state else f"lacks {name!r}"
            raise FozoError(f"the state {what}; give a state that it saved itself")
        for name, value in state.items():
            wanted = own[name].shape
            if name in self.LENGTHS and value.shape:
                wanted = (rows.setdefault(self.LENGTHS[name], value.shape[0]), *wanted[1:])
            if value.dtype != own[name].dtype or value.shape != wanted:
                raise FozoError(
                    f"the state's {name!r} is {value.dtype} of shape {list(value.shape)}, where finite "
                    f"{own[name].dtype} of shape {list(wanted)} is needed; give a state that was saved whole"
                )

    def identity(self) -> dict[str, object]:
        """Say in plain values (JSON) what has to be the same for a state to be continued."""
        facts: dict[str, object] = {"config": plain(self.config)}
        return facts | ({"seed": self.seed} if self.info.draws else {})

    def _owner(self) -> dict[str, object]:
        spec = self.engine.spec
        classes = None if spec.subset is None else list(spec.subset)
        return {"method": self.info.name, "fingerprint": spec.fingerprint, "classes": classes, **self.identity()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to an ``.npz`` (no pickle), atomically."""
        header = {"kind": "state", "version": STATE_VERSION, "model": self.engine.spec.name, **self._owner()}
        save_arrays(path, header, self.state())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved state, as if the run had never been interrupted.

        A state of another method, model or config is refused, and nothing is changed.
        """
        self.load_state(load_arrays(path, "state", partial(self._check_file, os.fspath(path)))[1])

    def _check_file(self, path: str, header: Mapping[str, object], specs: Mapping[str, ArraySpec]) -> None:
        """Refuse a file before its arrays are read: what it is of, and then their specs."""
        if header.get("version") != STATE_VERSION:
            raise FozoError(f"{path} is a state of version {header.get('version')!r}, where {STATE_VERSION} is needed")
        for key, value in self._owner().items():
            theirs = header.get(key)
            if theirs == value:
                continue
            if isinstance(theirs, dict) and isinstance(value, dict):
                key = next((name for name in {**theirs, **value} if theirs.get(name) != value.get(name)), key)
                theirs, value = theirs.get(key), value.get(key)
            raise FozoError(
                f"{path} was saved with {key}={theirs!r} ({header.get('model')}), but this run has "
                f"{value!r}; restore it into a method made the same way"
            )
        self._check_specs(specs)

    def __repr__(self) -> str:
        """Say in one line what it is."""
        usual = self.PRESETS[next(iter(self.PRESETS))]
        chosen = {f.name: getattr(self.config, f.name) for f in fields(self.config)}
        changed = [f"{name}={value!r}" for name, value in chosen.items() if value != getattr(usual, name)]
        return f"<{', '.join([f'{type(self).__name__} on {self.engine.spec.name}', *changed])}>"


class Stateless(Method[C]):
    """A method that remembers nothing from batch to batch."""

    def begin(self) -> None:
        """Nothing is adapted."""

    def variables(self) -> State:
        """Nothing is adapted."""
        return {}

    def assign(self, variables: State) -> None:
        """Nothing is adapted."""


def positive(method: str, **values: float) -> None:
    """Refuse options that have to be above zero and are not (NaN included)."""
    for name, value in values.items():
        if not value > 0:
            raise FozoError(f"{method}: {name} must be above 0, not {value}")


def one_of(method: str, choices: tuple[str, ...], **values: str) -> None:
    """Refuse options that are none of the choices."""
    for name, value in values.items():
        if value not in choices:
            raise FozoError(f"{method}: {name} is {value!r}; choose from {', '.join(choices)}")
