"""The monitor: watches a method, and reports drift, its diagnosis and the expected accuracy.

    monitor = fozo.Monitor(fozo.MonitorReference.load("monitor.npz")).watch(adapter)
    adapter(images)
    if adapter.drift.drift_detected:
        print(monitor.sentence)  # contrast -41 %, fine detail -68 % since image 1,204: like fog; expected accuracy ...

It observes every batch after its prediction, inside the adapter's lock. Its report is one frozen :class:`Status`, which
may be read from any thread. If the monitor fails, the predictions stand.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays
from fozo.methods.base import Method
from fozo.methods.common.observer import Observation
from fozo.monitor.accuracy import Estimate, prediction_features
from fozo.monitor.drift import RECENT
from fozo.monitor.event import Event
from fozo.monitor.faults import SENTENCES, FaultChange
from fozo.monitor.quality import QualityStatistics
from fozo.monitor.reference import MonitorReference
from fozo.monitor.sentences import changes, clear_changes
from fozo.monitor.signatures import Coordinates, Guess
from fozo.monitor.state import KIND, VERSION, HasShape, MonitorState, StreamState, check_shapes
from fozo.monitor.status import Status
from fozo.monitor.thumbnails import thumbnail
from fozo.monitor.types import Drift
from fozo.types import Floats, Tap

if TYPE_CHECKING:
    from typing_extensions import Self

LOG = logging.getLogger("fozo.monitor")


class Monitor:
    """Watches one adapter at a time, from :meth:`watch` to :meth:`unwatch` or to the end of a ``with`` block.

    Args:
        reference: of the same model and method, from :meth:`MonitorReference.collect`.
        false_alarms: fraction of clean batches that may raise an alarm.
        content: squared shift that is attributed to content, in units of a clean image's: 0 for streams as mixed as the
            images calibrated on.
        shadow: fraction of the images that the plain model predicts too; 0 for none.
        thumbnails: whether events keep a small picture of what the camera saw and of what the model read. They may show
            people, so they are off by default.
        on_event: is called with every :class:`Event`; it should be quick.
        clock: returns the time of a batch, in seconds since 1970.
    """

    passes_per_image: float = 0.0
    """Forward passes of the plain model for the latest batch, beside the adapter's own."""
    plain: Floats | None = None
    """The plain model's logits of the latest batch, where it predicted all of its images."""
    guarded: bool = False
    """Whether a :class:`fozo.Guarded` method uses it: then all images are compared while adaptation hurts."""

    def __init__(
        self,
        reference: MonitorReference,
        *,
        false_alarms: float = 1e-4,
        content: float = CONTENT_VARIANCE,
        shadow: float = 0.02,
        thumbnails: bool = False,
        on_event: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 0 <= shadow <= 1:
            raise FozoError(f"shadow is {shadow}; give a fraction of the images from 0 to 1")
        self.reference, self.shadow, self.clock, self.on_event = reference, shadow, clock, on_event
        self.thumbnails = thumbnails
        self.false_alarms, self.content = false_alarms, content
        self._adapter: Method[Any] | None = None
        self._pictures: dict[str, Floats] = {}
        self._lock = threading.RLock()
        self.reset()

    def watch(self, adapter: Method[Any]) -> Self:
        """Observe an adapter's batches from now on. An adapter has one monitor, and a monitor one adapter."""
        self.reference.check(adapter)
        with self._lock:
            if self._adapter is adapter:
                return self
            if self._adapter is not None:
                raise FozoError("this monitor watches another adapter already; call unwatch() first, or make another")
            if adapter.observer is not None:
                raise FozoError(f"{adapter.info.name} has a monitor already; call its unwatch() first")
            adapter.attach(self)
            self._adapter, self.quality = adapter, QualityStatistics(adapter.engine.spec)
            self.reset()
        return self

    def unwatch(self) -> None:
        """Stop observing; what was reported stays readable."""
        with self._lock:
            if self._adapter is not None:
                self._adapter.detach(self)
            self._adapter = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unwatch()

    @property
    def adapter(self) -> Method[Any]:
        """What is watched."""
        if self._adapter is None:
            raise FozoError("this monitor watches no adapter; call monitor.watch(adapter) first")
        return self._adapter

    def clone(self) -> Self:
        """Make a monitor with the same reference and options, which watches nothing yet."""
        return type(self)(
            self.reference, false_alarms=self.false_alarms, content=self.content, shadow=self.shadow,
            thumbnails=self.thumbnails, on_event=self.on_event, clock=self.clock,
        )  # fmt: skip

    def reset(self) -> None:
        """Forget the stream: the next image is the first. ``adapter.reset()`` does it too."""
        with self._lock:
            self._stream = self._new_stream()
            self.status = Status()
            self.plain, self.passes_per_image = None, 0.0

    def _new_stream(self) -> StreamState:
        adapts = self._adapter is None or self._adapter.info.name != "noadapt"
        shadow = self.shadow if adapts else 0.0
        return StreamState(self.reference.clean, self.false_alarms, self.content, shadow)

    def state(self) -> MonitorState:
        """Return a copy of what is remembered of the stream.

        It holds the last frame in gray, by which a frozen picture is noticed: keep it as you would keep images.
        """
        with self._lock:
            header, arrays = self._stream.state()
            whole = {"kind": KIND, "version": VERSION, "model": self.reference.model, **self._owner(), **header}
            return MonitorState(whole, {name: np.array(array) for name, array in arrays.items()})

    def load_state(self, state: MonitorState) -> None:
        """Continue from what :meth:`state` returned, as if never interrupted.

        A state that does not fit is refused, and nothing is changed. The options are this monitor's: a rate may differ
        from when the state was saved.
        """
        self._load_state(state, "the state")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`state` to an ``.npz``, atomically: beside the adapter's own state."""
        save_arrays(path, *self.state())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from what :meth:`save` wrote; see :meth:`load_state`."""
        name = os.fspath(path)
        self._load_state(MonitorState(*load_arrays(path, KIND, partial(self._check_state, name))), name)

    def _load_state(self, state: MonitorState, name: str) -> None:
        with self._lock:
            stream = self._new_stream()
            try:
                self._check_state(name, state.header, state.arrays)
                stream.load_state(state.header, state.arrays)
            except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise FozoError(
                    f"{name} is a damaged monitor state ({type(error).__name__}: {error}); go on without it"
                ) from error
            self._stream = stream
            self._update_status()

    def _owner(self) -> dict[str, object]:
        """What has to be the same for a state to be continued."""
        clean = self.reference.clean
        return {
            "fingerprint": self.reference.fingerprint, "method": self.reference.method,
            "clean": [clean.images, clean.length],
        }  # fmt: skip

    def _check_state(self, name: str, header: Mapping[str, object], specs: Mapping[str, HasShape]) -> None:
        """Refuse another version, owner, or shapes that do not fit together, before an array is read."""
        if header.get("version") != VERSION:
            raise FozoError(f"{name} is of version {header.get('version')!r}; this monitor reads version {VERSION}")
        for key, value in self._owner().items():
            if header.get(key) != value:
                raise FozoError(
                    f"{name} is of another monitor ({key} is {header.get(key)!r}, not {value!r}); restore it into one "
                    f"with the same model, method and reference"
                )
        check_shapes(specs, len(self.reference.clean.whitening.mean), self.adapter.engine.spec.image_size)

    @property
    def drift(self) -> Drift:
        """Whether there is drift, and how clearly."""
        return self.status.drift

    @property
    def accuracy(self) -> Estimate | None:
        """Expected accuracy of the most recent predictions, where the reference has labels."""
        return self.status.accuracy

    @property
    def relative_accuracy(self) -> Estimate | None:
        """Where it has none: the expected accuracy as a fraction of that on clean images."""
        return self.status.relative_accuracy

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        return self.status.sentence

    @property
    def events(self) -> deque[Event]:
        """The most recent events, oldest first."""
        return self._stream.events

    def metrics(self) -> dict[str, float]:
        """All of it as numbers, named for a metrics server."""
        return self.status.metrics()

    def observe(self, observation: Observation) -> None:
        """Update the status by a batch that was predicted."""
        with self._lock:
            self.plain, self.passes_per_image = None, 0.0
            stream, before = self._stream, self.status
            images, now = observation.batch.images, self.clock()
            features = self.quality(images, observation.descriptors)
            finite = np.isfinite(features).all(axis=1)
            stream.images += len(images)
            stream.update(features[finite], prediction_features(observation.logits[finite]), now)
            self._compare(observation)
            faults = stream.faults.update(self.quality.pixels(images))
            self._update_status()
            if self.thumbnails:
                seen = {"camera": images[-1], "equalised": observation.last_input}
                self._pictures = {k: self.quality.pixels(v[None])[0] for k, v in seen.items() if v is not None}
            self._raise_events(before, faults, now)

    def _compare(self, observation: Observation) -> None:
        """Let the plain model predict some of the images too; all of them while it predicts for a guard anyway."""
        stream, count = self._stream, len(observation.batch)
        chosen = np.arange(count) if stream.guarding else stream.shadow.choose(count)
        if not len(chosen):
            return
        some = observation.batch.with_images(observation.batch.images[chosen])
        logits: Floats = self.adapter.engine.run(some)[Tap.LOGITS][0]
        self.passes_per_image = len(chosen) / count
        stream.shadow.add(logits, observation.logits[chosen])
        if stream.guarding:
            self.plain = logits

    def _update_status(self) -> None:
        """Compute the status from what is remembered alone."""
        stream, reference = self._stream, self.reference
        any_recent, white = len(stream.features) > 0, reference.clean.whitening
        coordinates = None
        if reference.signatures is not None and any_recent:
            coordinates = reference.signatures.coordinates(stream.features)
        comparison = stream.shadow.compare(coordinates, reference.plain, reference.adapted)
        hurts = comparison is not None and (comparison.may_hurt if stream.guarding else comparison.hurts)
        guess = self._guess(stream.drift)
        estimate = self._estimate(coordinates, guess)
        stream.guarding = self.guarded and hurts
        self.status = Status(
            stream.images,
            stream.drift,
            changes(stream.features, white.mean) if any_recent else {},
            tuple(clear_changes(stream.features, white.mean, white.std)) if any_recent else (),
            guess,
            None if reference.unlabelled else estimate,
            estimate if reference.unlabelled else None,
            tuple(stream.faults.faults),
            comparison,
            stream.guarding,
        )

    def _guess(self, drift: Drift) -> Guess | None:
        """Diagnose the drift; where the latest images look like another corruption, name that one."""
        signatures, features = self.reference.signatures, self._stream.features
        if signatures is None or not drift.drift_detected:
            return None
        guess = signatures.guess(features)
        if len(features) < 2 * RECENT:
            return guess
        late = signatures.guess(features[-RECENT:])
        return late if late.known and late.kind not in guess.kinds else guess

    def _estimate(self, coordinates: Coordinates | None, guess: Guess | None) -> Estimate | None:
        regression = self.reference.adapted
        if regression is None or coordinates is None:
            return None
        outside = guess is not None and not guess.known
        relative = self.reference.unlabelled
        return regression.estimate(self._stream.predictions, coordinates, outside=outside, relative=relative)

    def _raise_events(self, before: Status, faults: list[FaultChange], now: float) -> None:
        for change in faults:
            name = change.name if change.began else f"{change.name} over"
            text = SENTENCES[change.name] if change.began else f"no longer: {SENTENCES[change.name]}"
            self._raise(Event(name, change.image, now, text))
        self._raise_drift(before, now)
        guarding = self.status.guarding
        if guarding != before.guarding:
            text = "adaptation hurts: the plain model predicts" if guarding else "adaptation no longer hurts"
            self._raise(Event("guard" if guarding else "guard over", self.status.images, now, text, self.metrics()))

    def _raise_drift(self, before: Status, now: float) -> None:
        """Raise an event where a drift begins, becomes clear, changes its kind, or ends."""
        stream, status = self._stream, self.status
        drift, guess = status.drift, status.guess
        if drift.since is not None:
            kinds = None if guess is None else guess.kinds
            if not before.drift.drift_detected:
                stream.reported = kinds
                self._raise(Event("drift", drift.since, now, status.sentence, status.metrics()))
            elif guess is not None and self._is_other(guess):
                stream.reported = kinds
                self._raise(Event("drift changed", status.images, now, status.sentence, status.metrics()))
        elif before.drift.drift_detected:
            stream.reported = None
            text = "the images look like clean ones"
            self._raise(Event("drift over", status.images, now, text, status.metrics()))

    def _is_other(self, guess: Guess) -> bool:
        """Whether the guess differs from what was reported, and the latest images agree with it.

        A window that is half fog and half clean may look like a third thing.
        """
        stream, signatures = self._stream, self.reference.signatures
        assert signatures is not None
        if len(stream.features) < RECENT or guess.kind == "clean":
            return False
        if stream.reported is not None and guess.kind in stream.reported:
            return False
        return guess.kind in signatures.guess(stream.features[-RECENT // 2 :]).kinds

    def _raise(self, event: Event) -> None:
        if self.thumbnails:
            event = replace(event, thumbnails={name: thumbnail(pixels) for name, pixels in self._pictures.items()})
        self.events.append(event)
        level = logging.INFO if event.name.endswith("over") else logging.WARNING
        LOG.log(level, "%s at image %s: %s", event.name, f"{event.image:,}", event.text)
        if self.on_event is not None:
            self.on_event(event)
