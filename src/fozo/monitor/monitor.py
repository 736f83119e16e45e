"""The monitor: watches a method, and reports drift, its diagnosis and the expected accuracy.

It observes every batch after its prediction, inside the adapter's lock. Its report is one frozen :class:`Status`, which
may be read from any thread. If the monitor fails, the predictions stand.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.base import Method, Observation
from fozo.methods.common.stateful import AnyArray, check_arrays, check_finite, load_state, save_state
from fozo.monitor.drift import RECENT, Drift, DriftDetector
from fozo.monitor.quality import MIN_DEVIATIONS, QualityStatistics, advice, changes, direction
from fozo.monitor.reference import Guess, MonitorReference
from fozo.monitor.regression import MIN_PAIRS, PAIRS, Comparison, Estimate, paired, prediction_features
from fozo.monitor.state import SENTENCES, Event, FaultDetector, StreamState, thumbnail
from fozo.types import Array, Floats, State, Tap

if TYPE_CHECKING:
    from typing_extensions import Self

LOG = logging.getLogger("fozo.monitor")
WINDOW = 64  # most recent images that quality statistics, diagnosis and expected accuracy refer to
SUPPORT = 0.5  # p-value of a change below which features support that the drift resembles another corruption


@dataclass(frozen=True)
class Status:
    """All that the monitor reports after a batch."""

    images: int = 0  # images seen
    drift: Drift = field(default_factory=Drift)
    quality: dict[str, float] = field(default_factory=dict)  # change of each image-quality statistic
    changes: tuple[str, ...] = ()  # the clearest of these changes, in words
    guess: Guess | None = None
    accuracy: Estimate | None = None  # expected of the method's predictions, where labels were known at calibration
    relative_accuracy: Estimate | None = None  # without labels: as a fraction of the accuracy on clean images
    faults: tuple[str, ...] = ()
    shadow: Comparison | None = None
    guarding: bool = False  # whether `Guarded` returns the plain model's predictions for now
    entropy_rise: float = 0.0  # of the predictions' mean entropy, in standard deviations of a clean prediction's

    @property
    def sentence(self) -> str:
        """Faults; what drifted, since when, and which corruption it resembles; the expected accuracy; what to do."""
        parts, drift, guess = [SENTENCES[name] for name in self.faults], self.drift, self.guess
        if drift.since is None:
            parts.append("no drift")
        else:
            unnamed = "predictions are less certain" if self.entropy_rise >= MIN_DEVIATIONS else "images changed"
            words = ", ".join(self.changes) or f"the {unnamed}"
            date = f"since image {drift.since:,}{_clock(drift.since_time)}"
            turned = "" if drift.changed is None else f", changed at {drift.changed:,}{_clock(drift.changed_time)}: "
            kind = "" if guess is None or guess.kind == "clean" else f": {guess}"
            parts.append(f"drift {date}{turned}{words}{kind}" if turned else f"{words} {date}{kind}")
        parts += [str(expected) for expected in (self.accuracy, self.relative_accuracy) if expected is not None]
        if self.guarding:
            parts.append("adaptation hurts, so the plain model predicts")
        if drift.since is not None:
            parts += advice(self.changes, self.quality)
        return "; ".join(parts)

    def metrics(self) -> dict[str, float]:
        drift = self.drift
        numbers = {
            "drift": float(drift.drift_detected), "drift_warning": float(drift.warning_detected),
            "drift_ratio": drift.ratio, "drift_distance": drift.distance, "drift_threshold": drift.threshold,
            "drift_p_value": drift.p_value, "camera_faults": float(len(self.faults)),
            "entropy_rise": self.entropy_rise,
        }  # fmt: skip
        for name, expected in (("expected_accuracy", self.accuracy), ("relative_accuracy", self.relative_accuracy)):
            if expected is not None:
                numbers |= {name: expected.value, f"{name}_low": expected.low, f"{name}_high": expected.high}
                numbers |= {"outside_calibration": float(expected.outside)}
        if self.shadow is not None:
            numbers |= {"shadow_pairs": float(self.shadow.pairs), "shadow_agreement": self.shadow.agreement}
            if self.shadow.gain is not None and math.isfinite(self.shadow.gain):
                numbers |= {"shadow_gain": self.shadow.gain, "guarding": float(self.guarding)}
        return numbers


class Monitor:
    """Watches one adapter at a time, from :meth:`watch` to :meth:`unwatch` or to the end of a ``with`` block.

    Examples:
        >>> adapter = fozo.adapter(model, source)
        >>> monitor = fozo.Monitor(fozo.MonitorReference.load(reference)).watch(adapter)
        >>> logits = adapter(batch)
        >>> adapter.drift.drift_detected, monitor.sentence
        (False, 'no drift; expected accuracy ...')

    Args:
        reference: of the same model and method, from :meth:`MonitorReference.collect`.
        false_alarms: fraction of clean batches that may raise an alarm.
        content: squared shift that is attributed to content, in units of a clean image's: 0 for streams as mixed as the
            images calibrated on.
        shadow: fraction of the images that the plain model predicts too; 0 for none.
        thumbnails: whether events keep a small picture of what the camera saw and of what the model read. They may show
            people, so they are off by default.
        on_event: is called with every :class:`Event`; it should be quick.
        clock: returns the time of a batch, or of each of its images, in seconds since 1970.
    """

    passes_per_image: float = 0.0  # of the plain model for the latest batch, beside the adapter's own
    plain: Floats | None = None  # the plain model's logits of the latest batch, where it predicted all of its images
    guarded: bool = False  # whether it watches for `Guarded`: then all images are compared while adaptation hurts

    def __init__(
        self,
        reference: MonitorReference,
        *,
        false_alarms: float = 1e-4,
        content: float = CONTENT_VARIANCE,
        shadow: float = 0.02,
        thumbnails: bool = False,
        on_event: Callable[[Event], None] | None = None,
        clock: Callable[[], float | Array] = time.time,
    ) -> None:
        if not 0 <= shadow <= 1:
            raise FozoError(f"shadow is {shadow}; give a fraction of the images from 0 to 1")
        self.reference, self.shadow, self.clock, self.on_event = reference, shadow, clock, on_event
        self.false_alarms, self.content, self.thumbnails = false_alarms, content, thumbnails
        self._adapter: Method[Any] | None = None
        self._lock = threading.RLock()
        self.reset()

    def __repr__(self) -> str:
        return f"<Monitor of {self._adapter or 'no adapter'}, {self.status.images:,} images: {self.sentence}>"

    def clone(self) -> Self:
        """Make a monitor with the same reference and options, which watches nothing yet."""
        return type(self)(
            self.reference, false_alarms=self.false_alarms, content=self.content, shadow=self.shadow,
            thumbnails=self.thumbnails, on_event=self.on_event, clock=self.clock,
        )  # fmt: skip

    def watch(self, adapter: Method[Any], *, guard: bool = False) -> Self:
        """Observe an adapter's batches from now on. An adapter has one monitor, and a monitor one adapter.

        With ``guard``, ``status.guarding`` says whether adaptation hurts, as :class:`fozo.Guarded` needs it.
        """
        self.reference.check(adapter)
        with self._lock:
            if self._adapter not in (None, adapter):
                raise FozoError("this monitor watches another adapter already; call unwatch() first, or make another")
            if self._adapter is None:
                adapter.attach(self)
                self._adapter, self.quality = adapter, QualityStatistics(adapter.engine.spec)
                self.reset()
            self.guarded |= guard
        return self

    def unwatch(self) -> None:
        """Stop observing; what was reported stays readable."""
        with self._lock:
            if self._adapter is not None:
                self._adapter.detach(self)
            self._adapter, self.guarded = None, False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unwatch()

    @property
    def adapter(self) -> Method[Any]:
        if self._adapter is None:
            raise FozoError("this monitor watches no adapter; call monitor.watch(adapter) first")
        return self._adapter

    def reset(self) -> None:
        """Forget the stream: the next image is the first. ``adapter.reset()`` does it too."""
        with self._lock:
            self._stream = self._new_stream()
            self.status = Status()
            self.plain, self.passes_per_image = None, 0.0

    def _new_stream(self) -> StreamState:
        image_size = (0, 0) if self._adapter is None else self._adapter.engine.spec.image_size
        detector = DriftDetector(self.reference.clean, self.false_alarms, self.content)
        return StreamState(detector, FaultDetector(image_size))

    def state(self) -> State:
        """Return a copy of what is remembered of the stream.

        It holds the last frame in gray, by which a frozen picture is noticed: keep it as you would keep images.
        """
        with self._lock:
            return {name: np.array(array) for name, array in self._stream.state().items()}

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` returned, as if never interrupted, under this monitor's own options.

        A state that does not fit is refused, and nothing is changed.
        """
        with self._lock:
            stream = self._new_stream()
            self._check_arrays(state)
            check_finite(state)
            try:
                stream.load_state(state)
            except FozoError:
                raise
            except (ValueError, OverflowError) as error:
                raise FozoError(f"the state of the monitor is damaged ({error}); go on without it") from error
            self._stream = stream
            self._update_status()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`state` to an ``.npz``, atomically: beside the adapter's own state."""
        save_state(path, self.reference.model, self._owner(), self.state())

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue from what :meth:`save` wrote with the same model, method and reference; see :meth:`load_state`."""
        self.load_state(load_state(path, self._owner(), self._check_arrays))

    def _check_arrays(self, arrays: Mapping[str, AnyArray]) -> None:
        check_arrays("this monitor", self._stream.state(), StreamState.VARIABLE_LENGTH, arrays)

    def _owner(self) -> dict[str, object]:
        """What has to be the same for a state to be continued."""
        made, clean = self.reference, [self.reference.clean.images, self.reference.clean.length]
        return {"method": f"monitor of {made.method}", "fingerprint": made.fingerprint, "reference": clean}

    @property
    def drift(self) -> Drift:
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
        return self.status.sentence

    @property
    def events(self) -> deque[Event]:
        """The most recent events, oldest first."""
        return self._stream.events

    def metrics(self) -> dict[str, float]:
        return self.status.metrics()

    def checkpoint(self) -> Callable[[], None]:
        """Return a function that restores what is remembered and reported now."""
        names = ("status", "plain", "passes_per_image")
        return partial(vars(self).update, {name: getattr(self, name) for name in names}, _stream=self._stream.copy())

    def observe(self, observation: Observation) -> None:
        with self._lock:
            self.plain, self.passes_per_image = None, 0.0
            stream, before, images = self._stream, self.status, observation.batch.images
            times = np.broadcast_to(np.asarray(self.clock(), dtype=np.float64), len(images))
            now = float(times[-1])
            features = self.quality(images, observation.descriptors)
            finite = np.isfinite(features).all(axis=1) & np.isfinite(observation.logits).all(axis=1)
            features, predictions = features[finite], prediction_features(observation.logits[finite])
            detector, signatures = stream.detector, self.reference.signatures
            first, drift = detector.drift.first, detector.update(features, times[finite], predictions[:, 2])
            recent = max(WINDOW, len(features))
            stream.images += len(images)
            stream.features = np.concatenate([stream.features, features])[-recent:]
            stream.predictions = np.concatenate([stream.predictions, predictions])[-recent:]
            if drift.first == first is not None and signatures is not None and signatures.changed(stream.features):
                drift = detector.change(SUPPORT)
            if drift.first != first:  # images from before are of another domain
                recent = len(detector.rows) if drift.first is None else detector.seen - drift.first + 1
                stream.features, stream.predictions = stream.features[-recent:], stream.predictions[-recent:]
                stream.pairs = stream.pairs[:0] if drift.changed is None else stream.pairs
            self._compare(observation)
            faults = stream.faults.update(self.quality.pixels(images), now)
            self._update_status()
            for event in [*faults, *self._events(before, now)]:
                self._raise(event, observation)

    def _compare(self, observation: Observation) -> None:
        """Let the plain model predict some of the images too; all of them while it predicts for a guard anyway."""
        stream, count = self._stream, len(observation.logits)
        chosen = np.arange(count)
        if not stream.guarding:  # evenly spaced: where the sum of the rate passes a whole number
            rate = 0.0 if self.adapter.info.name == "noadapt" or not observation.logits.size else self.shadow
            chosen = np.flatnonzero(np.diff(np.floor(stream.due + rate * np.arange(count + 1))) > 0)
            stream.due = (stream.due + rate * count) % 1.0
        if not len(chosen):
            return
        some = observation.batch.with_images(observation.batch.images[chosen])
        logits: Floats = self.adapter.engine.run(some)[Tap.LOGITS][0]
        self.passes_per_image = len(chosen) / count
        stream.pairs = np.concatenate([stream.pairs, paired(logits, observation.logits[chosen])])[-PAIRS:]
        if stream.guarding:
            self.plain = logits

    def _update_status(self) -> None:
        stream, reference = self._stream, self.reference
        drift, white, signatures = stream.detector.drift, reference.clean.whitening, reference.signatures
        guess, where, expected, comparison = None, None, None, None
        quality, words, rise = dict[str, float](), tuple[str, ...](), 0.0
        if len(stream.features):
            quality, words = changes(stream.features, white.mean, white.std)
            if reference.clean.entropy is not None:
                mean, std = reference.clean.entropy
                rise = (float(stream.predictions[:, 2].mean()) - mean) / std
            if signatures is not None:
                where = signatures.coordinates(stream.features)
                guess = signatures.guess(stream.features) if drift.drift_detected else None
            outside = guess is not None and not guess.known
            expected = reference.expect(stream.predictions, stream.features, outside=outside)
        if len(stream.pairs) >= MIN_PAIRS:
            comparison = Comparison.of(stream.pairs, reference.plain, reference.adapted, where)
        hurts = comparison is not None and (comparison.may_hurt if stream.guarding else comparison.hurts)
        stream.guarding = self.guarded and hurts
        accuracy, relative_accuracy = (None, expected) if reference.unlabelled else (expected, None)
        self.status = Status(
            stream.images, drift, quality, words, guess, accuracy, relative_accuracy, stream.faults.faults, comparison,
            stream.guarding, rise,
        )  # fmt: skip

    def _events(self, before: Status, now: float) -> list[Event]:
        status, drift, found = self.status, self.status.drift, list[tuple[str, int, str]]()
        if drift.since is not None and not before.drift.drift_detected:
            found.append(("drift", drift.since, status.sentence))
        elif drift.drift_detected and self._is_other(turned := drift.changed != before.drift.changed):
            found.append(("drift changed", (turned and drift.changed) or status.images, status.sentence))
        elif before.drift.drift_detected and not drift.drift_detected:
            found.append(("drift over", status.images, "the images look like clean ones"))
        if found:
            self._stream.reported = (*(status.guess.names if status.guess else ()), *map(direction, status.changes))
        if status.guarding and not before.guarding:
            found.append(("guard", status.images, "adaptation hurts: the plain model predicts"))
        elif before.guarding and not status.guarding:
            found.append(("guard over", status.images, "adaptation no longer hurts"))
        return [Event(name, image, now, text, status.metrics()) for name, image, text in found]

    def _is_other(self, turned: bool) -> bool:
        """Whether the drift is named otherwise than reported; without a change only if the latest images agree."""
        guess, reported, signatures = self.status.guess, self._stream.reported or (), self.reference.signatures
        if turned and not {*map(direction, self.status.changes[:1])} <= {*reported}:
            return True
        if guess is None or signatures is None or guess.names[0] in ("clean", *reported):
            return False
        features = self._stream.features[-RECENT:]
        return turned or (len(features) == RECENT and guess.names[0] in signatures.guess(features[RECENT // 2 :]).names)

    def _raise(self, event: Event, observation: Observation) -> None:
        if self.thumbnails:
            seen = {"camera": observation.batch.images[-1], "equalised": observation.last_input}
            pixels = {name: self.quality.pixels(image[None])[0] for name, image in seen.items() if image is not None}
            event = replace(event, thumbnails={name: thumbnail(picture) for name, picture in pixels.items()})
        self.events.append(event)
        level = logging.INFO if event.name.endswith("over") else logging.WARNING
        LOG.log(level, "%s at image %s: %s", event.name, f"{event.image:,}", event.text)
        if self.on_event is not None:
            self.on_event(event)


def _clock(time: float | None) -> str:
    return "" if time is None else f" ({clock(time)})"


def clock(time: float) -> str:
    """A date and time of day, UTC; of a video, whose time begins at 0, how far into it."""
    if 0 <= time < 1e8:  # until 1973
        minutes, seconds = divmod(int(time), 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
