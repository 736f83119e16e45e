"""What a user holds: ``method(images)`` adapts to a batch and predicts it.

A method is a frozen config, an engine, and what adaptation changes (:attr:`Method.STATE`). The base class does the rest
once for all methods: the check of the images, a lock, a transaction (if anything raises, everything is as it was),
presets and options, states, journals, freezing and exact resets. A subclass implements :meth:`Method.begin` and
:meth:`Method.step`, declares its state, and reads like its paper. :func:`fozo.testing.check_method` checks the result.
"""

from __future__ import annotations

import copy
import logging
import math
import os
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast, overload

import numpy as np

from fozo.core.normalisation import Watch
from fozo.core.statistics import SourceStatistics
from fozo.data.inputs import as_batch, to_type_of
from fozo.engines.blackbox import BlackBoxEngine
from fozo.engines.load import Model, load_engine
from fozo.errors import FozoError
from fozo.methods.common.info import NEEDS, check_needs
from fozo.methods.common.options import NoOptions, with_options
from fozo.methods.common.stateful import C, Stateful
from fozo.types import Answer, Array, Batch, Floats, Images, ImagesT, Tap

if TYPE_CHECKING:
    from typing_extensions import Self
LOG = logging.getLogger(__name__)
REPORT_SECONDS = 60.0  # Between two log lines about an observer that keeps failing


class Method(Stateful[C]):
    """Adapts to normalised images and predicts them.

    Examples:
        >>> method = fozo.Align(model, source)
        >>> logits = method(batch)  # adapts and predicts
        >>> method.save("camera.state")

    Args:
        engine: the frozen model, or what :func:`fozo.load_engine` makes an engine of.
        source: its statistics on clean data or the file that keeps them, where the method needs them.
        config: all that can be chosen; or else a preset and the fields that should differ from it.
        preset: name of a config of ``PRESETS``; the first by default.
        seed: of what the method draws, if it draws anything.
        journal: file to append what each batch changed to; see :meth:`replay`.
        options: fields of the config, those of nested configs with a dot (``"schedule.decay"``), and its ``EXTRAS``.
    """

    PRESETS: ClassVar[Mapping[str, Any]] = {"default": NoOptions()}
    """Named configs; the first is the default."""
    SHARES_PREPARED: ClassVar[bool] = True
    """Whether siblings share what ``prepare()`` made: not where a step writes into it."""
    EXTRAS: ClassVar[tuple[str, ...]] = ()
    """Keyword arguments that a config file cannot hold (noise, Fisher information); read from ``self.extras``."""

    parameters: int = 0
    """Numbers that adaptation searches or descends in (the papers' #Params); ``prepare()`` sets it."""
    descriptors: Array | None = None
    """Descriptors of the latest batch, where the step has measured them, so that an observer need not."""
    last_input: Floats | None = None
    """The last image of the latest batch as the model read it, where the step has changed it."""

    def __init__(
        self,
        engine: Model,
        source: SourceStatistics | str | os.PathLike[str] | None = None,
        config: C | None = None,
        *,
        preset: str | None = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        **options: object,
    ) -> None:
        self.engine = load_engine(engine)
        if isinstance(source, (str, os.PathLike)):
            source = SourceStatistics.load(source)
        if source is not None and not isinstance(source, SourceStatistics):
            raise FozoError(f"{self.info.name} takes {NEEDS['source']}(model, images), not a {type(source).__name__}")
        self.extras: dict[str, Any] = {name: options.pop(name, None) for name in self.EXTRAS}
        if config is None:
            config = self.configure(preset, options)
        elif preset is not None or options:
            raise FozoError(f"{self.info.name} was given config= and {preset or next(iter(options))}; give one of them")
        check_needs(self.info, self.engine, source)
        self.config, self.seed = config, seed
        self.statistics = source
        """Those of clean data, or ``None``."""
        self._renew()
        self.prepare()
        self.begin()
        if journal is not None:
            self.open_journal(journal)

    def _renew(self) -> None:
        super()._renew()
        self._frozen = False
        self._observed: AttachedObserver | None = None
        self._watch = Watch()

    @property
    def source(self) -> SourceStatistics:
        if self.statistics is None:
            raise FozoError(f"{self.info.name} was made without source statistics")
        return self.statistics

    @classmethod
    def configure(cls, preset: str | None, options: Mapping[str, object]) -> C:
        """Return a preset with options applied, naming what is possible where something is unknown."""
        name = next(iter(cls.PRESETS)) if preset is None else preset
        if name not in cls.PRESETS:
            raise FozoError(f"{cls.info.name} has no preset {name!r}; choose from {', '.join(cls.PRESETS)}")
        return cast("C", with_options(cls.info.name, "", cls.PRESETS[name], options))

    # What a method implements.

    def prepare(self) -> None:
        """Derive from engine, source and config what steps only read; siblings share it."""

    def begin(self) -> None:
        """Set up everything that adaptation changes, as new; nothing in a method that remembers nothing."""

    @abstractmethod
    def step(self, batch: Batch) -> Floats | Answer:
        """Adapt to a checked batch and return its logits ``[B, classes]``, or what a black box returned instead."""

    def predict(self, batch: Batch) -> Floats | Answer:
        """Predict with what was learnt, and learn nothing. By default a step that is undone; others may be cheaper."""
        undo = self.checkpoint()
        try:
            return self.step(batch)
        finally:
            undo()

    # What a method calls.

    def report(self, **metrics: float) -> None:
        """Set what :meth:`metrics` says about this batch."""
        self._metrics = metrics

    def plain(self, batch: Batch) -> Floats | Answer:
        """Run the plain model: logits, or what a black box returned instead."""
        if not isinstance(self.engine, BlackBoxEngine):
            logits: Floats = self.engine.run(batch)[Tap.LOGITS][0]
            return logits
        answer = self.engine.answer(batch)
        found = self.engine.logits(answer, len(batch))
        return Answer(answer) if found is None else found

    # What a user calls.

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
        child has a copy that continues by itself.
        """
        with self.lock:
            clean = None if self.statistics is None else self.statistics.inputs
            given = as_batch(images, self.engine.spec, clean)
            batch = self.engine.check(given)
            if clean is not None:
                self._watch(given, self.engine.spec, clean)
            undo = self.rollback()
            try:  # not in `transaction()`: Ctrl-C may come between its end and the return
                self._metrics, self.descriptors, self.last_input = {}, None, None
                index = 0 if self.journal is None else self.journal_index  # before the step counts
                logits = self.predict(batch) if self._frozen else self.step(batch)
                if not isinstance(logits, Answer) and not np.isfinite(logits).all():
                    what = f"the logits of {self.info.name} are not all finite; nothing was changed"
                    raise FozoError(f"{what}: check the model's weights, or reset the method")
                if self.journal is not None and not self._frozen:
                    self.journal.append(index, self.record())
                    self._recorded, self._entries = self.variables(), index + 1
                self.show(batch, logits)
                if isinstance(logits, Answer):
                    return cast("Images", logits.value)  # of a black box: the methods for those say Any
                return to_type_of(given, logits)
            except BaseException:
                undo()
                raise

    def show(self, batch: Batch, found: Floats | Answer) -> None:
        """Show a predicted batch to the observer."""
        if self._observed is not None:
            logits = np.zeros((len(batch), 0), np.float32) if isinstance(found, Answer) else found
            self._observed.observe(Observation(batch, logits, self.descriptors, self.last_input))

    def checkpoints(self) -> list[Callable[[], None]]:
        found = None if self._observed is None else getattr(self._observed.observer, "checkpoint", None)
        return super().checkpoints() + ([] if found is None else [found()])

    def names(self, logits: Images) -> list[str]:
        """Name the likeliest class of each image; where the model has no names, by its number."""
        rows = logits if isinstance(logits, np.ndarray) else logits.detach().cpu()
        return [self.engine.spec.label(int(best)) for best in rows.argmax(1)]

    def metrics(self) -> dict[str, float]:
        """Return numbers about the latest batch by name: a loss, a step size; and those of an observer."""
        with self.lock:  # never those of half a batch
            observer = self.observer
            return dict(self._metrics) | ({} if observer is None else observer.metrics())

    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self) -> None:
        """Predict with what was learnt and learn nothing more, until :meth:`unfreeze`: no state or journal changes."""
        self.set_frozen(True)

    def unfreeze(self) -> None:
        self.set_frozen(False)

    def set_frozen(self, frozen: bool) -> None:
        with self.lock:
            self._frozen = frozen

    def reset(self) -> None:
        """Forget everything adapted: behave exactly as newly made. An observer is reset, too."""
        with self.lock:
            with self.transaction():
                self.begin()
                self._metrics, self._entries = {}, 0
                self._recorded = {} if self.journal is None else self.variables()
                if self._observed is not None:
                    self._observed.observer.reset()
            self._rewind()

    def clone(self) -> Self:
        """Make a fresh method of the same config on the same engine."""
        return type(self)(self.engine, self.statistics, self.config, seed=self.seed, **self.extras)

    def sibling(self) -> Self:
        """Make a fresh method as :meth:`clone` does, in no time and memory: what ``prepare()`` made is shared."""
        if not self.SHARES_PREPARED:
            return self.clone()
        made = copy.copy(self)
        made._renew()
        made.begin()
        return made

    def release(self) -> None:
        """Free scratch buffers; the next batch makes them again."""
        with self.lock:
            self.descriptors = self.last_input = None

    # Observers.

    @property
    def observer(self) -> Observer | None:
        return None if self._observed is None else self._observed.observer

    def attach(self, observer: Observer) -> None:
        """Let an observer, such as :class:`fozo.Monitor`, look at every batch after it is predicted."""
        with self.lock:
            if self._observed is not None:
                watching = type(self.observer).__name__
                raise FozoError(f"{self.info.name} is watched by a {watching} already; detach it first")
            self._observed = AttachedObserver(observer, self.info.name)

    def detach(self, observer: Observer | None = None) -> None:
        """Remove the observer, or nothing if it is not the one given."""
        with self.lock:
            if observer is None or observer is self.observer:
                self._observed = None

    @property
    def drift(self) -> DriftReading:
        with self.lock:
            if self.observer is None:
                raise FozoError(f"{self.info.name} has no monitor; use fozo.Monitor(reference).watch(adapter)")
            return self.observer.drift

    def __repr__(self) -> str:
        usual = next(iter(self.PRESETS.values()))
        chosen = {f.name: getattr(self.config, f.name) for f in fields(self.config)}
        changed = [f"{name}={value!r}" for name, value in chosen.items() if value != getattr(usual, name)]
        return f"<{', '.join([f'{type(self).__name__} on {self.engine.spec.name}', *changed])}>"


class DriftReading(Protocol):
    """What every drift detector can answer, in river's words."""

    @property
    def drift_detected(self) -> bool: ...

    @property
    def warning_detected(self) -> bool: ...


@dataclass(frozen=True)
class Observation:
    """What a method saw in a batch."""

    batch: Batch  # The images as they came in, checked; read-only
    logits: Floats  # ``[B, classes]``: what was predicted; ``[B, 0]`` where a black box returns no logits
    descriptors: Array | None  # ``[B, f]`` of :mod:`fozo.core.descriptor`, where the method has measured them
    last_input: Floats | None = None  # the last image as the model read it, if it was changed; copy it to keep it


class Observer(Protocol):
    """Watches a method: :class:`fozo.Monitor`, or your own. It never changes a prediction.

    If it has ``checkpoint()``, which returns a function that undoes, batches of calls that raise are undone.
    """

    @property
    def drift(self) -> DriftReading: ...

    def observe(self, observation: Observation) -> None: ...

    def metrics(self) -> dict[str, float]:
        """Numbers to report beside the method's own."""

    def reset(self) -> None:
        """Forget all batches: the method was reset."""


class AttachedObserver:
    """Calls an observer. Its failures are logged, the first with a traceback and then one line a minute."""

    def __init__(self, observer: Observer, method: str) -> None:
        self.observer, self.method = observer, method
        self.failures, self._next_report = 0, -math.inf

    def observe(self, observation: Observation) -> None:
        try:
            self.observer.observe(observation)
        except Exception:
            self.failures += 1
            if time.monotonic() < self._next_report:
                return
            self._next_report = time.monotonic() + REPORT_SECONDS
            if self.failures == 1:
                LOG.exception("the monitor of %s failed; predictions do not depend on it", self.method)
            else:
                LOG.error("the monitor of %s has failed on %d batches", self.method, self.failures)
