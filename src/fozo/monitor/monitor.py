"""The monitor: watches a method, and reports drift, its diagnosis and the expected accuracy.

It is shown every batch after its prediction, inside the adapter's lock. What it remembers of the stream is a value,
:class:`MonitorState`, which the adapter keeps beside its own state; what it reports is a frozen :class:`Status`, which
may be read from any thread. If the monitor fails, the predictions stand.
"""

from __future__ import annotations

import copy
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.method import Method
from fozo.methods.observer import Observation, Observer, Reading
from fozo.monitor import scene as scenes
from fozo.monitor.accuracy import MIN_PAIRS, PAIRS, Comparison, Estimate, paired, prediction_features
from fozo.monitor.drift import NO_DRIFT, RECENT, UNKNOWN_TIME, Drift, DriftDetector, DriftState
from fozo.monitor.events import Event, thumbnail
from fozo.monitor.faults import BLINDING, SENTENCES, FaultDetector, FaultState
from fozo.monitor.quality import MIN_DEVIATIONS, Change, QualityStatistics, advice, changes
from fozo.monitor.reference import Guess, Reference
from fozo.monitor.scene import Scene, SceneDetector, Views
from fozo.state import State, ragged
from fozo.types import Array, Floats, Tap

if TYPE_CHECKING:
    from typing_extensions import Self

Indices = npt.NDArray[np.integer]

LOG = logging.getLogger("fozo.monitor")
WINDOW = 64  # most recent images that quality statistics, diagnosis and expected accuracy refer to
SUPPORT = 0.5  # p-value of a change below which features support that the drift resembles another corruption
DARK = {"black", "covered"}  # faults that a dark picture of a known scene is not
MARKS = ("seen", "expected")
EVENTS = 200  # most recent events that are remembered
FIRST_DATE = 1e8  # seconds since 1970: an earlier time is one of a video, which begins at 0


@dataclass(frozen=True)
class MonitorState(State):
    """What a monitor remembers of a stream.

    It holds the last frame in gray, by which a frozen picture is noticed: keep it as you would keep images.
    """

    drift: DriftState
    faults: FaultState
    scene: Scene
    features: Array = ragged("recent")
    """Features of the most recent images."""
    predictions: Array = ragged("recent")
    """Features of their predictions."""
    pairs: Array = ragged("pairs")
    """Predictions of the plain model beside the adapted ones."""
    due: float = 0.0
    """Fraction of the next image that the plain model is due to predict too."""
    images: int = 0
    guarding: bool = False
    reported_kinds: tuple[str, ...] = ()
    """Corruptions that the present drift was reported as."""
    reported_changes: tuple[Change, ...] = ()
    """Changes that were reported of the present drift."""
    events: tuple[Event, ...] = ()
    """The most recent events, oldest first."""

    def __post_init__(self) -> None:
        if self.images < self.drift.seen or not 0 <= self.due < 1:
            raise ValueError("its monitor has seen fewer images than its detector")

    @property
    def now(self) -> Drift:
        """The present drift: of a camera that stands still against its own past, else against the reference."""
        return self.scene.drift if self.scene.fixed else self.drift.drift


@dataclass(frozen=True)
class Status:
    """All that the monitor reports after a batch; ``str`` of it is its sentence."""

    images: int = 0
    """Images seen."""
    drift: Drift = NO_DRIFT
    quality: Mapping[str, float] = field(default_factory=dict)
    """Change of each image-quality statistic."""
    changes: tuple[Change, ...] = ()
    """The clearest of these changes."""
    guess: Guess | None = None
    accuracy: Estimate | None = None
    """Expected accuracy of the method's predictions, where labels were known at calibration."""
    relative_accuracy: Estimate | None = None
    """Without labels: expected accuracy as a fraction of the accuracy on clean images."""
    accuracy_unknown: bool = False
    """Whether neither can be told: of fewer than 16 different pictures, or of broken ones."""
    faults: tuple[str, ...] = ()
    where: str = ""
    """Where the lens is dirty, if it is."""
    shadow: Comparison | None = None
    guarding: bool = False
    """Whether ``Guarded`` returns the plain model's predictions for now."""
    entropy_rise: float = 0.0
    """Rise of the predictions' mean entropy, in standard deviations of a clean prediction's."""
    events: tuple[Event, ...] = field(default=(), repr=False)
    """The most recent events, oldest first."""
    raised: tuple[Event, ...] = field(default=(), repr=False, compare=False)
    """Those of the latest batch."""
    passes_per_image: float = field(default=0.0, repr=False, compare=False)
    """Passes of the plain model for the latest batch, beside the adapter's own."""
    plain: Floats | None = field(default=None, repr=False, compare=False)
    """The plain model's logits of the latest batch, where it predicted all of its images."""

    @property
    def sentence(self) -> str:
        """Faults; what drifted, since when, and which corruption it resembles; the expected accuracy; what to do."""
        parts = [SENTENCES[name] + self.where * (name == "dirty") for name in self.faults]
        parts.append(self._drift_words if self.drift.drift_detected else "no drift")
        expected = self.expected
        if expected is not None:
            parts.append(str(expected))
        elif self.accuracy_unknown:
            parts.append("expected accuracy unknown")
        if self.guarding:
            parts.append("adaptation hurts, so the plain model predicts")
        if self.drift.drift_detected:
            parts.append(advice(self.changes, self.quality))
        return "; ".join(filter(None, parts))

    def __str__(self) -> str:
        return self.sentence

    @property
    def expected(self) -> Estimate | None:
        """The expected accuracy, of whichever unit."""
        return self.accuracy if self.relative_accuracy is None else self.relative_accuracy

    @property
    def _drift_words(self) -> str:
        drift = self.drift
        words = ", ".join(map(str, self.changes)) or "the images changed"
        if not self.changes and self.entropy_rise >= MIN_DEVIATIONS:
            words = "the predictions are less certain"
        kind = "" if self.guess is None or self.guess.kind == "clean" else f": {self.guess}"
        since = f"since image {drift.since:,}{_clock(drift.since_time)}"
        if drift.changed is None:
            return f"{words} {since}{kind}"
        return f"drift {since}, changed at {drift.changed:,}{_clock(drift.changed_time)}: {words}{kind}"

    def metrics(self) -> dict[str, float]:
        drift = self.drift
        numbers = {
            "drift": float(drift.drift_detected),
            "drift_warning": float(drift.warning_detected),
            "drift_ratio": drift.ratio,
            "drift_distance": drift.distance,
            "drift_threshold": drift.threshold,
            "drift_p_value": drift.p_value,
            "camera_faults": float(len(self.faults)),
            "entropy_rise": self.entropy_rise,
        }
        for name, expected in (("expected_accuracy", self.accuracy), ("relative_accuracy", self.relative_accuracy)):
            if expected is not None:
                numbers[name] = expected.value
                numbers[f"{name}_low"] = expected.low
                numbers[f"{name}_high"] = expected.high
        if self.shadow is not None:
            numbers["shadow_pairs"] = float(self.shadow.pairs)
            numbers["shadow_agreement"] = self.shadow.agreement
            if self.shadow.gain is not None and math.isfinite(self.shadow.gain):
                numbers["shadow_gain"] = self.shadow.gain
                numbers["guarding"] = float(self.guarding)
        return numbers


class Monitor(Observer[MonitorState]):
    """Watches one adapter at a time, from :meth:`watch` to :meth:`unwatch` or to the end of a ``with`` block.

    The adapter keeps what the monitor remembers: ``adapter.save`` writes it, ``adapter.restore`` reads it, and a batch
    that raises leaves it as it was.

    Examples:
        >>> adapter = fozo.adapter(model, statistics)
        >>> monitor = fozo.Monitor(fozo.Reference.load(reference)).watch(adapter)
        >>> logits = adapter(batch)
        >>> adapter.drift.drift_detected, monitor.sentence
        (False, 'no drift; expected accuracy ...')

    Args:
        reference: of the same model and method, from :meth:`Reference.collect`.
        false_alarms: fraction of clean batches that may raise an alarm.
        content: squared shift that is attributed to content, in units of a clean image's: 0 for streams as mixed as the
            images calibrated on.
        shadow: fraction of the images that the plain model predicts too; 0 for none.
        thumbnails: whether events keep a small picture of what the camera saw and of what the model read. They may show
            people, so they are off by default.
        on_event: is called with every :class:`Event`; it should be quick.
        clock: returns the time of a batch, or of each of its images, in seconds since 1970.
        learn: seconds from the first image that are known to be clean: a camera that stands still learns what it shows
            in that time, and reports no drift. Without it, it learns from what looks clean.
        new_view: seconds after which the scene of a camera that was moved counts as clean by itself.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        false_alarms: float = 1e-4,
        content: float = CONTENT_VARIANCE,
        shadow: float = 0.02,
        thumbnails: bool = False,
        on_event: Callable[[Event], None] | None = None,
        clock: Callable[[], float | Array] = time.time,
        learn: float = 0.0,
        new_view: float = 3600.0,
    ) -> None:
        if not 0 <= shadow <= 1:
            raise FozoError(f"shadow is {shadow}; give a fraction of the images from 0 to 1")
        self.reference = reference
        self.shadow = shadow
        self.thumbnails = thumbnails
        self.on_event = on_event
        self.clock = clock
        self.learn = learn
        self.new_view = new_view
        self._drift = DriftDetector(reference.clean, false_alarms, content)
        self._leave(Status())

    def _leave(self, last: Status) -> None:
        """Watch nothing, and go on reporting ``last``."""
        self._adapter: Method[Any, Any] | None = None
        self._last = last
        self.guards = False

    def __repr__(self) -> str:
        return f"<Monitor of {self._adapter or 'no adapter'}, {self.status.images:,} images: {self.sentence}>"

    def clone(self) -> Self:
        """Make a monitor with the same reference and options, which watches nothing yet."""
        twin = copy.copy(self)
        twin._leave(Status())
        return twin

    # What it watches.

    def watch(self, adapter: Method[Any, Any]) -> Self:
        """Observe an adapter's batches from now on. An adapter has one monitor, and a monitor one adapter."""
        if adapter is not self._adapter:
            self._prepare(adapter)
            adapter.attach(self)
            self._adapter = adapter
        return self

    def guard(self, guarded: Method[Any, Any], inner: Method[Any, Any]) -> Self:
        """Serve a :class:`fozo.Guarded`, which shows it the batches of its inner method and keeps its memory."""
        self._prepare(inner)
        self._adapter = guarded
        self.guards = True
        return self

    def _prepare(self, adapter: Method[Any, Any]) -> None:
        """Derive what updates need from an adapter; refuse one of another model or method, and a second one."""
        self.reference.check(adapter)
        if self._adapter is not None:
            raise FozoError("this monitor watches another adapter already; call unwatch() first, or make another")
        self.engine = adapter.engine
        self.quality = QualityStatistics(adapter.engine.spec)
        spec = adapter.engine.spec
        self._faults = FaultDetector(spec.image_size)
        views = self.reference.views
        if views is None:
            views = Views.empty(spec.channels, *spec.image_size, self.reference.clean.width)
        self._scenes = SceneDetector(views, self._drift.rate, self.learn, self.new_view)

    def unwatch(self) -> None:
        """Stop observing; what was reported stays readable."""
        last = self.status
        if self._adapter is not None:
            self._adapter.detach(self)
        self._leave(last)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.unwatch()

    @property
    def adapter(self) -> Method[Any, Any]:
        if self._adapter is None:
            raise FozoError("this monitor watches no adapter; call monitor.watch(adapter) first")
        return self._adapter

    def reset(self) -> None:
        """Forget the stream: the next image is the first. ``adapter.reset()`` does it too."""
        self._amend(lambda state: self.init())

    def accept(self) -> None:
        """Take what the camera shows now for clean: it was moved, or the light has changed for good.

        Nothing else is forgotten. Faults and drift of the present scene end with the next image.
        """
        self._amend(lambda state: replace(state, scene=self._scenes.accept(state.scene)))

    def mark(self, word: str, image: int | None = None) -> None:
        """Mark events, all or those of an ``image``, as ``seen`` or ``expected``; what is expected is accepted too."""
        if word not in MARKS:
            raise FozoError(f"events are marked {' or '.join(MARKS)}, not {word!r:.40}; give one of these")

        def marked(state: MonitorState) -> MonitorState:
            events = [replace(event, mark=word) if image in (None, event.image) else event for event in state.events]
            return replace(state, events=tuple(events))

        self._amend(marked)
        if word == "expected":
            self.accept()

    def _amend(self, change: Callable[[MonitorState], MonitorState]) -> None:
        """Replace what the adapter remembers for this monitor."""
        adapter = self.adapter
        if self.guards:
            state = adapter.state()
            adapter.load_state(replace(state, monitor=change(state.monitor)))
        else:
            adapter.amend(change)

    # What it reports.

    @property
    def status(self) -> Status:
        """All that is reported after the adapter's latest batch."""
        reading = self._last if self._adapter is None else self._adapter.reading
        return reading if isinstance(reading, Status) else Status()

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
    def events(self) -> tuple[Event, ...]:
        """The most recent events, oldest first."""
        return self.status.events

    def metrics(self) -> dict[str, float]:
        return self.status.metrics()

    # The rule.

    def owner(self) -> dict[str, object]:
        reference = self.reference
        clean = [reference.clean.images, reference.clean.length]
        return {"monitor": reference.method, "fingerprint": reference.fingerprint, "reference": clean}

    def init(self) -> MonitorState:
        features = np.zeros((0, self.reference.clean.width))
        scene = self._scenes.init()
        return MonitorState(
            self._drift.init(), self._faults.init(), scene, features, np.zeros((0, 2)), np.zeros((0, 3))
        )

    def update(self, state: MonitorState, observation: Observation) -> tuple[MonitorState, Status]:
        images = observation.batch.images
        clock = np.asarray(self.clock(), dtype=np.float64)
        times = np.broadcast_to(np.where(np.isfinite(clock), clock, UNKNOWN_TIME), len(images))
        now = float(times[-1])
        features = self.quality(images, observation.descriptors)
        plausible = np.isfinite(np.column_stack([features, observation.logits]))
        is_finite = np.asarray(plausible.all(axis=1))
        predictions = prediction_features(observation.logits[is_finite])
        after, features, fault_events = self._look(state, self.quality.pixels(images), features, is_finite, times)
        after = self._with_images(after, state.now, features[is_finite], predictions, times[is_finite])
        if BLINDING.isdisjoint(after.faults.faults) and not BLINDING.isdisjoint(state.faults.faults):  # seen again
            after = replace(after, features=features[is_finite], predictions=predictions)
        after, chosen = self._chosen(after, observation)
        plain: Floats | None = None
        if len(chosen):
            plain = self.engine.run(observation.batch.with_images(images[chosen]))[Tap.LOGITS][0]
            pairs = np.concatenate([after.pairs, paired(plain, observation.logits[chosen])])
            after = replace(after, pairs=pairs[-PAIRS:])
        status = self.report(after)
        drift_events = self._drift_events(state, after, status, now)
        if drift_events:
            kinds = () if status.guess is None else status.guess.names
            after = replace(after, reported_kinds=kinds, reported_changes=status.changes)
        raised = (*fault_events, *drift_events, *_guard_events(state, status, now))
        if self.thumbnails and raised:
            pictures = self._thumbnails(observation)
            raised = tuple(replace(event, thumbnails=pictures) for event in raised)
        latest = state.events[-1].image if state.events else 0
        raised = tuple(replace(event, image=max(event.image, latest)) for event in raised)  # in order
        events = (*state.events, *raised)[-EVENTS:]
        return replace(after, guarding=status.guarding, events=events), replace(
            status,
            events=events,
            raised=raised,
            passes_per_image=len(chosen) / len(images),
            plain=plain if state.guarding else None,
        )

    def report(self, state: MonitorState) -> Status:
        """Say what a memory says, without what only its latest batch had."""
        reference = self.reference
        signatures = reference.signatures
        status = Status(state.images, state.now, faults=state.faults.faults, events=state.events)
        if state.scene.dirty:
            status = replace(status, where=f", {state.scene.where}")
        if len(state.features):
            quality, clearest = changes(state.features, reference.clean.whitening.mean, reference.clean.whitening.std)
            rise = float(reference.clean.entropy_rises(state.predictions[:, 1].mean(keepdims=True))[0])
            status = replace(status, quality=quality, changes=clearest, entropy_rise=rise)
            if signatures is not None and status.drift.drift_detected:
                status = replace(status, guess=signatures.guess(state.features))
        status = self._expecting(status, state)
        if len(state.pairs) < MIN_PAIRS:
            return status
        comparison = Comparison.of(state.pairs, reference.plain, reference.adapted)
        hurts = comparison.may_hurt if state.guarding else comparison.hurts
        return replace(status, shadow=comparison, guarding=self.guards and hurts)

    def _expecting(self, status: Status, state: MonitorState) -> Status:
        """Add what accuracy is expected of the images remembered."""
        reference = self.reference
        if reference.adapted is None or not state.images:
            return status
        expected = None
        if len(state.features) and BLINDING.isdisjoint(status.faults):
            expected = reference.expect(state.predictions, state.features)
        if expected is None:
            return replace(status, accuracy_unknown=True)
        if reference.unlabelled:
            return replace(status, relative_accuracy=expected)
        return replace(status, accuracy=expected)

    def notify(self, reading: Reading) -> None:
        """Log the events of a batch, and pass them on."""
        assert isinstance(reading, Status)
        for event in reading.raised:
            level = logging.INFO if event.name.endswith("over") else logging.WARNING
            LOG.log(level, "%s at image %s: %s", event.name, f"{event.image:,}", event.text)
            if self.on_event is not None:
                self.on_event(event)

    def _look(
        self, state: MonitorState, pixels: Floats, features: Array, is_finite: npt.NDArray[Any], times: Array
    ) -> tuple[MonitorState, Array, list[Event]]:
        """Look for faults, and at the scenes; return the features as they would be of the reference's content too."""
        faults = state.faults
        scene = state.scene
        features = features.copy()
        trusted = not state.drift.drift.warning_detected
        events: list[Event] = []
        frames = zip(pixels, features, is_finite, times.tolist(), strict=True)
        for number, (frame, row, is_plausible, when) in enumerate(frames, state.images + 1):
            faults, shown = self._faults.look(faults, frame)
            cells = scenes.measure(frame)
            if not shown.isdisjoint(DARK) and self._scenes.recognises(scene, cells):
                shown -= DARK  # it is night
            if is_plausible and not shown:
                scene = self._scenes.update(scene, cells, row, number, when, trusted=trusted)
                if scene.fixed:
                    row += self.reference.clean.whitening.mean - scene.past.features[scene.row]
            if scene.turned:
                shown.add("turned")
            if scene.dirty:
                shown.add("dirty")
            faults, new_events = self._faults.count(faults, shown, when)
            events += new_events
        return replace(state, faults=faults, scene=scene, images=state.images + len(pixels)), features, events

    def _with_images(
        self, state: MonitorState, before: Drift, features: Array, predictions: Array, times: Array
    ) -> MonitorState:
        """Test images for drift, and remember the most recent ones of the present domain."""
        is_fixed = state.scene.fixed
        drifts = self._drift.init() if is_fixed else state.drift
        if not is_fixed:
            drifts, _ = self._drift.update(drifts, features, times, predictions[:, 1])
        recent = max(WINDOW, len(features))
        features = np.concatenate([state.features, features])[-recent:]
        predictions = np.concatenate([state.predictions, predictions])[-recent:]
        signatures = self.reference.signatures
        same_drift = drifts.drift.first is not None and drifts.drift.first == before.first
        if same_drift and signatures is not None and signatures.changed(features):
            drifts = self._drift.change(drifts, SUPPORT)
        state = replace(state, drift=drifts)
        drift = state.now
        if drift.first == before.first:
            return replace(state, features=features, predictions=predictions)
        # The images from before are of another domain. So is evidence on adaptation, but for a drift that has changed:
        # a guard that has begun in it goes on.
        if is_fixed:
            recent = RECENT if drift.first is None else state.images - drift.first + 1
        else:
            recent = len(drifts.features) if drift.first is None else drifts.seen - drift.first + 1
        pairs = state.pairs if drift.changed is not None else state.pairs[:0]
        return replace(state, features=features[-recent:], predictions=predictions[-recent:], pairs=pairs)

    def _chosen(self, state: MonitorState, observation: Observation) -> tuple[MonitorState, Indices]:
        """Choose the images that the plain model predicts too: all of them while it predicts for a guard anyway."""
        count = len(observation.logits)
        if state.guarding:
            return state, np.arange(count)
        is_compared = self.reference.method != "noadapt" and observation.logits.size > 0
        rate = float(self.shadow) if is_compared else 0.0
        # Evenly spaced: where the sum of the rate passes a whole number.
        sums = state.due + rate * np.arange(count + 1)
        return replace(state, due=(state.due + rate * count) % 1.0), np.flatnonzero(np.diff(np.floor(sums)) > 0)

    def _drift_events(self, before: MonitorState, after: MonitorState, status: Status, now: float) -> list[Event]:
        drift = status.drift
        had_drift = before.now.drift_detected
        has_changed = drift.changed is not None and drift.changed != before.now.changed
        if drift.since is not None and not had_drift:
            return [Event("drift", drift.since, now, status.sentence, status.metrics())]
        if drift.drift_detected and not after.scene.fixed and self._is_renamed(after, status, has_changed):
            image = drift.changed if has_changed and drift.changed is not None else status.images
            return [Event("drift changed", image, now, status.sentence, status.metrics())]
        if had_drift and not drift.drift_detected:
            return [Event("drift over", status.images, now, "the images look like clean ones", status.metrics())]
        return []

    def _is_renamed(self, state: MonitorState, status: Status, has_changed: bool) -> bool:
        """Whether the drift is named otherwise than reported; without a change only if the latest images agree."""
        reported = {change.direction for change in state.reported_changes}
        if has_changed and any(change.direction not in reported for change in status.changes[:1]):
            return True
        guess = status.guess
        signatures = self.reference.signatures
        if guess is None or signatures is None or guess.names[0] in ("clean", *state.reported_kinds):
            return False
        latest = state.features[-RECENT:]
        if has_changed or len(latest) < RECENT:
            return has_changed
        return guess.names[0] in signatures.guess(latest[RECENT // 2 :]).names

    def _thumbnails(self, observation: Observation) -> dict[str, str]:
        """Draw the last image as the camera saw it, and as the model read it where that is another."""
        images = {"camera": observation.batch.images[-1], "equalised": observation.last_input}
        return {
            name: thumbnail(self.quality.pixels(image[None])[0]) for name, image in images.items() if image is not None
        }


def _guard_events(before: MonitorState, status: Status, now: float) -> list[Event]:
    if status.guarding and not before.guarding:
        return [Event("guard", status.images, now, "adaptation hurts: the plain model predicts", status.metrics())]
    if before.guarding and not status.guarding:
        return [Event("guard over", status.images, now, "adaptation no longer hurts", status.metrics())]
    return []


def _clock(time: float | None) -> str:
    return "" if time is None else f" ({clock(time)})"


def clock(time: float) -> str:
    """Write a date and time of day, UTC; of a video, whose time begins at 0, how far into it."""
    if 0 <= time < FIRST_DATE:
        minutes, seconds = divmod(int(time), 60)
        return f"{minutes // 60:02}:{minutes % 60:02}:{seconds:02}"
    return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
