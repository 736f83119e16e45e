"""What a user holds: ``method(images)`` adapts to a batch and predicts it.

A method is two things. What it *is* (engine, clean statistics, config, what :meth:`Method.prepare` derives from them)
never changes. What it has *learnt* is a value, ``method.state()``, see :mod:`fozo.state`. A subclass says how one batch
turns a state into the next:

    init() -> State                          as nothing has been seen
    step(state, batch) -> Result             logits, the next state, what to report; nothing is written anywhere
    predict_step(state, batch) -> Result     the same without learning; the state of the result is dropped

Everything else is here, once: the check of the images, the lock, journal, freezing, resets, files and observers. A step
that raises has changed nothing, because the new state was not assigned.
"""

from __future__ import annotations

import copy
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast, overload

import numpy as np

from fozo.core.normalisation import Watch
from fozo.core.statistics import Statistics
from fozo.data.inputs import as_batch, to_type_of
from fozo.engines.blackbox import BlackBoxEngine
from fozo.engines.load import Model, load_engine
from fozo.errors import RENAMED, FozoError
from fozo.io.system import uncompiled
from fozo.methods.common.info import NEEDS, MethodInfo, check_needs
from fozo.methods.common.journal import Journal, read_journal
from fozo.methods.common.options import NoOptions, plain, with_options
from fozo.methods.observer import AttachedObserver, DriftReading, Observation, Observer, Reading
from fozo.state import Changes, Leaf, State, check_owner, diff, leaves, patch, read_state, rebuild, save, seal
from fozo.types import Answer, Array, Batch, Floats, ForkSafeLock, Images, ImagesT, Output, Tap

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from typing_extensions import Self

    from fozo.methods.common.module import AdapterModule

LOG = logging.getLogger(__name__)
AUTHORS_NAMES = {
    "EXTRAS", "PRESETS", "check_state", "configure", "equaliser", "identity", "init", "inner", "journaled",
    "last_input", "parameter_count", "plain", "predict_step", "prepare", "reading", "restart", "resume", "seed",
    "snapshot", "step", "wrap",
}  # fmt: skip

MODULE_NAMES = (
    "bfloat16 children compile config cpu cuda device double dtype eval float forward half modules named_parameters "
    "parameters register_forward_hook requires_grad_ to train training zero_grad"
)

C = TypeVar("C", bound="DataclassInstance")  # a frozen config
S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Result(Generic[S]):
    """What a step returns.

    Examples:
        >>> method = fozo.Align(model, statistics)
        >>> result = method.step(method.state(), method.engine.check(batch))
        >>> result.logits.shape, result.passes, method.passes_per_image  # the method itself has not changed
        ((8, 10), 1.0, 1.0)
    """

    logits: Floats | Answer
    """``[B, classes]``, or what a black box returned instead."""
    state: S
    """What was learnt."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers about the batch by name: a loss, a step size."""
    passes: float = 1.0
    """Forward passes an image, on average over the batch."""
    descriptors: Array | None = None
    """Descriptors of the images, where the step has measured them, so that an observer need not."""
    last_input: Floats | None = None
    """The last image as the model read it, where the step has changed it."""
    inner: tuple[Batch, Result[Any]] | None = None
    """What a wrapper's inner method was given, and returned."""
    reading: Reading | None = None
    """What a monitor inside says."""


@dataclass(frozen=True)
class Moment(Generic[S]):
    """All that a batch changes about a method: one reference, so that nothing ever sees half of it."""

    state: S
    batches: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    passes: float = 1.0
    last_input: Floats | None = None
    watched: State | None = None  # what the observer remembers
    reading: Reading | None = None
    journaled: S | None = None  # the state that the journal's last entry leads to, where it is known


@dataclass(frozen=True)
class Saved(State):
    """What a file holds: the state, the batches that led to it, and what an observer remembers."""

    batches: int
    state: State
    watched: State | None = None


@dataclass(frozen=True)
class Nothing(State):
    """The state of a method that remembers nothing."""


def _advice(kind: type, name: str) -> str:
    """Say what to use instead of an attribute that torch modules, or older adapters, have."""
    renamed = RENAMED.get(name)
    if renamed is not None and hasattr(kind, renamed):
        return f"; it is called {renamed} now"
    if name in MODULE_NAMES.split():
        return "; adapter.module() is a torch module, and load_engine(model, device=..., dtype=...) places the model"
    return ""


class Method(ABC, Generic[C, S]):
    """Adapts to normalised images and predicts them.

    Examples:
        >>> method = fozo.Align(model, statistics)
        >>> logits = method(batch)  # adapts and predicts
        >>> before = method.state()  # a value: load_state(before) goes back to it
        >>> method.save("camera.state")

    Args:
        engine: the frozen model, or what :func:`fozo.load_engine` makes an engine of.
        statistics: those of the engine on clean data or the file that keeps them, where the method needs them.
        config: all that can be chosen; or else a preset and the fields that should differ from it.
        preset: name of a config of ``PRESETS``; the first by default.
        seed: of what the method draws, if it draws anything.
        journal: file to append what each batch changed to; see :meth:`replay`.
        options: fields of the config, those of nested configs with a dot (``"schedule.decay"``), and its ``EXTRAS``.
    """

    info: ClassVar[MethodInfo]
    PRESETS: ClassVar[Mapping[str, Any]] = {"default": NoOptions()}
    """Named configs; the first is the default."""
    EXTRAS: ClassVar[tuple[str, ...]] = ()
    """Keyword arguments that a config file cannot hold (noise, Fisher information); ``prepare`` finds them in
    ``self._extras``."""

    CHANGEABLE: ClassVar[frozenset[str]] = frozenset()
    """Config fields that a saved state does not depend on: it is continued under other values of them."""

    parameter_count: int = 0
    """Numbers that adaptation searches or descends in (the papers' #Params); ``prepare()`` sets it."""

    def __init__(
        self,
        engine: Model,
        statistics: Statistics | str | os.PathLike[str] | None = None,
        config: C | None = None,
        *,
        preset: str | None = None,
        seed: int = 0,
        journal: str | os.PathLike[str] | None = None,
        **options: object,
    ) -> None:
        self.engine = load_engine(engine)
        if isinstance(statistics, (str, os.PathLike)):
            statistics = Statistics.load(statistics)
        if statistics is not None and not isinstance(statistics, Statistics):
            raise FozoError(
                f"{self.info.name} takes {NEEDS['statistics']}(model, images), not a {type(statistics).__name__}"
            )
        self._extras: dict[str, Any] = {name: options.pop(name, None) for name in self.EXTRAS}
        if config is None:
            config = self.configure(preset, options)
        elif preset is not None or options:
            raise FozoError(f"{self.info.name} was given config= and {preset or next(iter(options))}; give one of them")
        check_needs(self.info, self.engine, statistics)
        self.config = config
        self.seed = seed
        self._statistics = statistics
        self.prepare()
        self._begin()
        if journal is not None:
            self.open_journal(journal)

    def _begin(self) -> None:
        """Set what belongs to one stream, and to no clone."""
        self._lock = ForkSafeLock()
        self._frozen = False
        self._journal: Journal | None = None
        self._observer: AttachedObserver | None = None
        self._watch = Watch()
        self._now: Moment[S] = Moment(self.init())

    # What a method implements.

    def prepare(self) -> None:
        """Derive from engine, statistics and config what steps only read; clones share it."""

    def init(self) -> S:
        """Return the state of a method that has seen nothing; by default it remembers nothing."""
        return cast("S", Nothing())

    @abstractmethod
    def step(self, state: S, batch: Batch) -> Result[S]:
        """Adapt to a checked batch and predict it. It changes neither ``state`` nor ``self``."""

    def predict_step(self, state: S, batch: Batch) -> Result[S]:
        """Predict with what was learnt. By default a step whose state is dropped; others may be cheaper."""
        return self.step(state, batch)

    def check_state(self, state: S) -> None:
        """Refuse a state of the right shapes that no run of this method leads to, with a ``FozoError``."""

    def journaled(self, state: S) -> S:
        """Return what a journal keeps of a state; what is too large for it stays as it was at first."""
        return state

    def restart(self, state: S) -> S:
        """Return the state after a reset; some published methods keep a part of the old one."""
        return self.init()

    # What a method calls.

    @property
    def statistics(self) -> Statistics:
        """The clean statistics that it was given."""
        if self._statistics is None:
            raise FozoError(f"{self.info.name} was made without source statistics")
        return self._statistics

    def plain(self, batch: Batch) -> Floats | Answer:
        """Run the plain model: logits, or what a black box returned instead."""
        if not isinstance(self.engine, BlackBoxEngine):
            logits: Floats = self.engine.run(batch)[Tap.LOGITS][0]
            return logits
        answer = self.engine.answer(batch)
        logits_or_none = self.engine.logits(answer, len(batch))
        return Answer(answer) if logits_or_none is None else logits_or_none

    # What a user calls.

    @overload
    def __call__(self, images: ImagesT) -> ImagesT: ...
    @overload
    def __call__(self, images: object) -> Images: ...
    @overload
    def __call__(self, *, pixel_values: object) -> Output: ...
    @uncompiled
    def __call__(self, images: object = None, *, pixel_values: object = None) -> Images | Output:
        """Adapt to images and return their logits ``[B, classes]``.

        Images are normalised floats ``[B, channels, height, width]`` or ``[channels, height, width]`` of any precision,
        ``uint8`` pixels, PIL images, a list of these, or a batch of a ``DataLoader`` (:mod:`fozo.data.inputs`). Tensors
        in, tensors out, on their device; NumPy otherwise. If it raises, the method is as it was before the call. It may
        be called from many threads: batches are taken one at a time. A forked child has a copy that continues by
        itself. With ``pixel_values=``, as a processor of transformers gives it, the result has them as ``.logits``.
        """
        if pixel_values is not None:
            return Output(logits=self(pixel_values))
        with self._lock:
            before = self._moments()
            try:
                array, batch = self._checked(images)
                result = self._run(batch)
                self._commit(batch, result, learnt=not self._frozen)
                return self._answer(array, result.logits)
            except BaseException:  # also Ctrl-C, before the caller has its logits
                self._undo(before)
                raise

    @overload
    def predict(self, images: ImagesT) -> ImagesT: ...
    @overload
    def predict(self, images: object) -> Images: ...
    @uncompiled
    def predict(self, images: object) -> Images:
        """Predict images with what was learnt, and learn nothing from them."""
        with self._lock:
            array, batch = self._checked(images)
            result = self.predict_step(self._state(), batch)
            return self._answer(array, self._finite(result.logits))

    def _checked(self, images: object) -> tuple[Images, Batch]:
        """Images as an array, and as a batch that the engine has checked."""
        clean = None if self._statistics is None else self._statistics.inputs
        array = as_batch(images, self.engine.spec, clean)
        batch = self.engine.check(array)
        if clean is not None:
            self._watch(array, self.engine.spec, clean)
        return array, batch

    def _run(self, batch: Batch) -> Result[S]:
        state = self._state()
        if self._frozen:
            result = replace(self.predict_step(state, batch), state=state)
            self._finite(result.logits)
            return result
        result = self.step(state, batch)
        self._finite(result.logits)
        if self._journal is not None:
            self._write_entry(self._journal, state, result.state)
        return result

    def _finite(self, logits: Floats | Answer) -> Floats | Answer:
        if not isinstance(logits, Answer) and not np.isfinite(logits).all():
            what = f"the logits of {self.info.name} are not all finite; nothing was changed"
            raise FozoError(f"{what}: check the model's weights, or reset the method")
        return logits

    def _commit(self, batch: Batch, result: Result[S], *, learnt: bool) -> None:
        """Take over what a step has returned, here and in the methods inside, and show it to the observer."""
        seal(result.state)
        watched = self._now.watched
        reading = result.reading
        news: Reading | None = None
        if self._observer is not None and watched is not None:
            logits = result.logits
            shown = np.zeros((len(batch), 0), np.float32) if isinstance(logits, Answer) else logits
            observation = Observation(batch, shown, result.descriptors, result.last_input)
            reading = self._now.reading
            updated = self._observer.update(watched, observation)
            if updated is not None:
                watched, news = updated
                reading = news
        batches = self._now.batches + learnt
        journaled = self._now.journaled
        if self._journal is not None and learnt:
            journaled = self.journaled(result.state)
        self._now = Moment(
            result.state, batches, result.metrics, result.passes, result.last_input, watched, reading, journaled
        )
        if self._observer is not None and news is not None:
            self._observer.notify(news)

    def _answer(self, array: Images, logits: Floats | Answer) -> Images:
        """Logits as the images came; what a black box returned, as it is."""
        return cast("Images", logits.value) if isinstance(logits, Answer) else to_type_of(array, logits)

    def _moments(self) -> list[tuple[Method[Any, Any], Moment[Any]]]:
        """Where this method, and those inside, are now."""
        return [(self, self._now)]

    def _undo(self, moments: list[tuple[Method[Any, Any], Moment[Any]]]) -> None:
        for method, moment in moments:
            method._now = moment
            method._rewind()

    def _state(self) -> S:
        return self._now.state

    def _set(self, moment: Moment[S]) -> None:
        """Go (back) to another moment."""
        seal(moment.state)
        if self._observer is not None and moment.watched is not None:
            moment = replace(moment, reading=self._observer.observer.report(moment.watched))
        self._now = moment
        self._rewind()

    def state(self) -> S:
        """All that was learnt, as a value: keep it as long as you like, and load it to go back to it."""
        with self._lock:
            return self._state()

    def load_state(self, state: S) -> None:
        """Continue from what :meth:`state` returned. A state that does not fit is refused, and nothing is changed."""
        like = self.init()
        if type(state) is not type(like):
            what = f"{self.info.name} continues from a {type(like).__name__}, not from a {type(state).__name__}"
            raise FozoError(f"{what}; give what its state() returned")
        rebuild(like, dict(leaves(state)))
        self.check_state(state)
        with self._lock:
            self._set(replace(self._now, state=state, metrics={}))

    def state_dict(self) -> dict[str, Leaf]:
        """Return what was learnt as arrays, numbers and texts by name; the arrays are read-only."""
        return dict(leaves(self.state()))

    def load_state_dict(self, state_dict: Mapping[str, Leaf]) -> None:
        """Continue from what :meth:`state_dict` returned. One that does not fit is refused, and nothing is changed."""
        copies = {name: leaf.copy() if isinstance(leaf, np.ndarray) else leaf for name, leaf in state_dict.items()}
        self.load_state(rebuild(self.init(), copies))

    def module(self) -> AdapterModule:
        """Return a module of PyTorch that calls this adapter."""
        from fozo.methods.common.module import AdapterModule

        return AdapterModule(self)

    def metrics(self) -> dict[str, float]:
        """Return numbers about the latest batch by name: a loss, a step size; and those of an observer."""
        now = self._now
        return {**now.metrics, **({} if now.reading is None else now.reading.metrics())}

    @property
    def passes_per_image(self) -> float:
        """Forward passes that the latest batch cost, as an average over its images."""
        return self._now.passes

    @property
    def last_input(self) -> Floats | None:
        """The last image of the latest batch as the model read it, where the step has changed it."""
        return self._now.last_input

    @property
    def frozen(self) -> bool:
        return self._frozen

    def freeze(self, frozen: bool = True) -> None:
        """Predict with what was learnt and learn nothing more, until :meth:`unfreeze`: no state or journal changes."""
        with self._lock:
            self._frozen = frozen

    def unfreeze(self) -> None:
        self.freeze(False)

    def reset(self) -> None:
        """Forget everything adapted: behave exactly as newly made. An observer is reset, too."""
        with self._lock:
            watched = None if self._observer is None else self._observer.observer.init()
            self._set(Moment(self.restart(self._state()), watched=watched, journaled=self.init()))

    def clone(self) -> Self:
        """Make a fresh method of the same config on the same engine, in no time: what ``prepare()`` made is shared."""
        twin = copy.copy(self)
        twin._begin()
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Return what a pickle or a copy carries: engine, config and all that was learnt.

        The journal and the observer stay with this method: a copy that wrote the same journal would destroy it.
        """
        with self._lock:
            now = replace(self._now, watched=None, reading=None, last_input=None)
            return {**self.__dict__, "_now": now, "_journal": None, "_observer": None}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        seal(self._now.state)

    # Files.

    def identity(self) -> dict[str, object]:
        """Return plain values (JSON) that have to be the same for a state to be continued."""
        seed = {"seed": self.seed} if self.info.draws else {}
        return {"config": plain(self.config), **seed}

    def _owner(self) -> dict[str, Any]:
        """Return :meth:`identity`, and which method and model a file is of."""
        spec = self.engine.spec
        classes = None if spec.subset is None else list(spec.subset)
        return {"method": self.info.name, "fingerprint": spec.fingerprint, "classes": classes, **self.identity()}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state, atomically and without pickle; with it what an attached monitor remembers."""
        saved, owner = self.snapshot()
        save(path, saved, owner)

    def snapshot(self) -> tuple[Saved, dict[str, object]]:
        """Return what a file holds as a value, for a larger file, and its owner."""
        with self._lock:
            now = replace(self._now, state=self._state())
            observer = self._observer
        owner: dict[str, object] = {"method": self._owner()}
        if observer is not None:
            owner["observer"] = observer.observer.owner()
        return Saved(now.batches, now.state, now.watched), owner

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from a saved state, as if the run had never been interrupted.

        A state of another method, model or config is refused, and nothing is changed. So is the memory of a monitor
        that is attached; one of another reference is left out, and the monitor begins anew.
        """
        owner, values = read_state(path)
        self.resume(os.fspath(path), owner, values)

    def resume(self, name: str, owner: Mapping[str, Any], values: Mapping[str, Leaf]) -> None:
        """Continue from the owner and the leaves of a :meth:`snapshot`, which were read from the file ``name``."""
        ours = self._owner()
        saved_by = dict(owner.get("method", {}))
        if isinstance(saved_by.get("config"), Mapping):
            changed = {field: ours["config"][field] for field in self.CHANGEABLE}
            saved_by["config"] = {**saved_by["config"], **changed}
        check_owner(name, saved_by, ours)
        observer = None if self._observer is None else self._observer.observer
        fresh = None if observer is None else observer.init()
        is_known = observer is not None and owner.get("observer") == observer.owner()
        if not is_known:
            known = {path: leaf for path, leaf in values.items() if not path.startswith("watched.")}
            values = {**known, "watched": None}
            if observer is not None:
                LOG.warning("%s has no memory of this monitor, which begins anew", name)
        like = Saved(0, self.init(), fresh if is_known else None)
        saved = rebuild(like, values, f"the state in {name}")
        state = cast("S", saved.state)
        self.check_state(state)
        with self._lock:
            self._set(Moment(state, saved.batches, watched=saved.watched or fresh))

    # The journal.

    def open_journal(self, path: str | os.PathLike[str]) -> None:
        """Append what each batch changes to a file, from now on."""
        with self._lock:
            self._journal = Journal(path, self._journal_header())
            if not self._journal.batches:  # it begins with a new method, whatever was learnt before
                self._now = replace(self._now, batches=0, journaled=self.init())

    def close(self) -> None:
        """Close the journal, where there is one; ``with fozo.Align(..., journal=...) as adapter:`` does it too."""
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _rewind(self) -> None:
        """Let the journal note that the run went back."""
        if self._journal is not None and self._now.batches < self._journal.batches:
            self._journal.rewind(self._now.batches)

    def _write_entry(self, journal: Journal, old: S, new: S) -> None:
        before = self._now.journaled
        if before is None:  # of an earlier process
            before, _ = self._replayed(journal.path, self._now.batches)
        kept = self.journaled(old)
        entry = self._entry(kept, self.journaled(new))
        loaded = diff(before, kept)
        if loaded:  # another state was loaded since the last batch
            entry = {**entry, "before": loaded}
        journal.append(self._now.batches, entry)

    def _entry(self, old: S, new: S) -> dict[str, Any]:
        """Return a journal entry that leads from one state to the next; some methods know a shorter one."""
        return {"changes": diff(old, new)}

    def _follow(self, state: S, entry: Mapping[str, Any]) -> S:
        changes: Changes = entry["changes"]
        return patch(state, changes)

    def _journal_header(self) -> dict[str, object]:
        return {"model": self.engine.spec.name, **self._owner()}

    def replay(self, journal: str | os.PathLike[str], batches: int | None = None) -> None:
        """Continue from where a journal leads, without any image: after all its batches, or the first ``batches``.

        That is how an adaptation is continued after a crash, audited, and undone to any batch. The journal has to be of
        the same model, statistics and config. If it is refused, nothing is changed.
        """
        state, followed = self._replayed(journal, batches)
        with self._lock:
            self._set(Moment(state, followed, watched=self._now.watched, journaled=state))

    def _replayed(self, journal: str | os.PathLike[str], batches: int | None) -> tuple[S, int]:
        """Return where a journal leads, and how many batches led there."""
        file = read_journal(journal)
        file.check(self._journal_header())
        state = self.init()

        def follow(entry: Mapping[str, Any]) -> None:
            nonlocal state
            rest = dict(entry)
            before = rest.pop("before", None)
            if before is not None:
                state = patch(state, before)
            state = self._follow(state, rest)

        followed = file.replay(follow, batches)
        return state, followed

    # Observers.

    def attach(self, observer: Observer[Any]) -> None:
        """Let an observer, such as :class:`fozo.Monitor`, look at every batch after it is predicted."""
        with self._lock:
            if self._observer is not None:
                watching = type(self._observer.observer).__name__
                raise FozoError(f"{self.info.name} is watched by a {watching} already; detach it first")
            self._observer = AttachedObserver(observer, self.info.name)
            memory = observer.init()
            self._now = replace(self._now, watched=memory, reading=observer.report(memory))

    def detach(self, observer: Observer[Any] | None = None) -> None:
        """Remove the observer, or nothing if it is not the one given."""
        with self._lock:
            if self._observer is not None and observer in (None, self._observer.observer):
                self._observer = None
                self._now = replace(self._now, watched=None, reading=None)

    def amend(self, change: Callable[[Any], State]) -> None:
        """Replace what the observer remembers by what ``change`` makes of it."""
        with self._lock:
            self._set(replace(self._now, watched=change(self._now.watched)))

    @property
    def reading(self) -> Reading | None:
        """What the monitor said of the latest batch."""
        return self._now.reading

    @property
    def drift(self) -> DriftReading:
        reading = self._now.reading
        if reading is None:
            raise FozoError(
                f"{self.info.name} has no monitor that has seen a batch; use fozo.Monitor(reference).watch(adapter)"
            )
        return reading.drift

    def names(self, logits: Images) -> list[str]:
        """Name the likeliest class of each image; where the model has no names, by its number."""
        scores = logits if isinstance(logits, np.ndarray) else logits.detach().cpu()
        return [self.engine.spec.label(int(best)) for best in scores.argmax(1)]

    @classmethod
    def configure(cls, preset: str | None, options: Mapping[str, object]) -> C:
        """Return a preset with options applied, naming what is possible where something is unknown."""
        name = next(iter(cls.PRESETS)) if preset is None else preset
        if name not in cls.PRESETS:
            raise FozoError(f"{cls.info.name} has no preset {name!r}; choose from {', '.join(cls.PRESETS)}")
        return cast("C", with_options(cls.info.name, "", cls.PRESETS[name], options))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{_advice(type(self), name)}")

    def __dir__(self) -> list[str]:
        """What a user needs; what an author implements is in docs/methods.md."""
        return [name for name in super().__dir__() if name not in AUTHORS_NAMES]

    def __repr__(self) -> str:
        usual = next(iter(self.PRESETS.values()))
        chosen = {f.name: getattr(self.config, f.name) for f in fields(self.config)}
        changed = [f"{name}={value!r}" for name, value in chosen.items() if value != getattr(usual, name)]
        return f"<{', '.join([f'{type(self).__name__} on {self.engine.spec.name}', *changed])}>"
