"""The monitor: watches a method and says what a person wants to know.

    monitor = fozo.Monitor(adapter, fozo.MonitorReference.load("monitor.npz"))
    adapter(images)
    if adapter.drift.drift_detected:
        print(monitor.sentence)  # contrast -41 %, fine detail -68 % since image 1,204: like fog; expected accuracy ...

It is shown every batch after it was predicted, inside the adapter's lock. What it says is kept in one frozen
:class:`Status`, which may be read from any thread. If it fails, predictions do not.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.io import save_arrays
from fozo.methods.base import Method
from fozo.methods.common.observer import Observation
from fozo.monitor.accuracy import Estimate, shown
from fozo.monitor.drift import RECENT, DriftDetector
from fozo.monitor.event import EVENTS, Event
from fozo.monitor.faults import SENTENCES, FaultDetector
from fozo.monitor.memory import memory_of, recall
from fozo.monitor.quality import Looker
from fozo.monitor.reference import MonitorReference
from fozo.monitor.sentences import changes, clear_changes, sentence
from fozo.monitor.shadow import Comparison, Shadow
from fozo.monitor.signatures import Guess, Place
from fozo.monitor.thumbnails import thumbnail
from fozo.monitor.types import Drift
from fozo.types import Array, Floats, Tap

LOG = logging.getLogger("fozo.monitor")
WINDOW = 64
"""Most recent images that looks, guesses and expected accuracies are of."""


@dataclass(frozen=True)
class Status:
    """All that the monitor says after a batch."""

    images: int = 0
    """Images seen."""
    drift: Drift = field(default_factory=Drift)
    looks: dict[str, float] = field(default_factory=dict)
    """Changes of the looks against clean images, on the scales of :data:`fozo.monitor.quality.LOOKS`."""
    words: tuple[str, ...] = ()
    """The clear ones of them."""
    guess: Guess | None = None
    accuracy: Estimate | None = None
    """Expected of what the method predicts, where labels were known at calibration."""
    kept: Estimate | None = None
    """Where they were not: which part it is of the accuracy on clean images."""
    faults: tuple[str, ...] = ()
    shadow: Comparison | None = None
    guarding: bool = False
    """Whether the plain model's predictions are returned for now."""

    @property
    def sentence(self) -> str:
        """Say it in one sentence."""
        said = [SENTENCES[name] for name in self.faults]
        said.append(sentence(self.drift, self.words, self.guess))
        said += [str(expected) for expected in (self.accuracy, self.kept) if expected is not None]
        if self.guarding:
            said.append("adaptation hurts, so the plain model predicts")
        return "; ".join(said)


class Monitor:
    """Watches an adapter from now on.

    Args:
        adapter: any :class:`fozo.Method`.
        reference: of the same model and method, from :meth:`MonitorReference.collect`.
        false_alarms: part of clean batches that may raise an alarm.
        content: squared shift that is put down to content, in units of a clean image's: 0 for streams as mixed as the
            images calibrated on.
        shadow: part of the images that the plain model predicts too; 0 for none.
        guard: ``"on"`` returns the plain model's predictions while the evidence says that adaptation hurts.
        thumbnails: whether events keep a small picture of what the camera saw and of what the model read. They may show
            people: off, unless asked for.
        on_event: is called with every :class:`Event`; it should be quick.
        clock: gives the time, in seconds since 1970, to what is seen.
    """

    def __init__(
        self,
        adapter: Method[Any],
        reference: MonitorReference,
        *,
        false_alarms: float = 1e-4,
        content: float = CONTENT_VARIANCE,
        shadow: float = 0.02,
        guard: str = "off",
        thumbnails: bool = False,
        on_event: Callable[[Event], None] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if guard not in ("on", "off"):
            raise FozoError(f"guard is {guard!r}; give on or off")
        if not 0 <= shadow <= 1:
            raise FozoError(f"shadow is {shadow}; give a part of the images from 0 to 1")
        if guard == "on" and (shadow == 0 or reference.adapted is None):
            raise FozoError(
                "a guard compares with the plain model: it needs shadow above 0, and a reference collected with "
                "corruptions"
            )
        reference.check(adapter)
        self.adapter, self.reference, self.clock, self.on_event = adapter, reference, clock, on_event
        self.shadow_rate = 0.0 if adapter.info.name == "noadapt" else shadow
        self.guard, self.thumbnails = guard == "on", thumbnails
        self._pictures: dict[str, Floats] = {}
        self._lock = threading.RLock()
        self.looker = Looker(adapter.engine.spec)
        self.detector = DriftDetector(reference.clean, false_alarms, content)
        self.faults = FaultDetector()
        self.reset()
        adapter.attach(self)

    def reset(self) -> None:
        """Forget the stream: the next image is the first."""
        with self._lock:
            self.detector.reset()
            self.faults.reset()
            self.shadow = Shadow(self.shadow_rate)
            self._features = np.zeros((0, self.looker.width))
            self._shown = np.zeros((0, 3))
            self._told: tuple[str, ...] | None = None
            """Names that the drift was told under."""
            self.status = Status()
            self.events: deque[Event] = deque(maxlen=EVENTS)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what is remembered of the stream to an ``.npz``, atomically: beside the adapter's own state.

        It holds the last frame in gray, by which a frozen picture is noticed: keep it as you would keep images.
        """
        with self._lock:
            header, arrays = memory_of(self)
        save_arrays(path, header, arrays)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Go on from what :meth:`save` wrote, as if never interrupted.

        What does not fit is refused, and nothing is changed. The options are this monitor's own: a rate or a guard may
        be another one than when it was saved.
        """
        with self._lock:
            recall(self, path)

    @property
    def drift(self) -> Drift:
        """Whether there is drift, and how clearly."""
        return self.status.drift

    @property
    def accuracy(self) -> Estimate | None:
        """Expected accuracy of the most recent predictions, where the reference knew labels."""
        return self.status.accuracy

    @property
    def kept(self) -> Estimate | None:
        """Where it knew none: the part that is expected to be left of the accuracy on clean images."""
        return self.status.kept

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        return self.status.sentence

    def observe(self, observation: Observation) -> Floats | None:
        """Look at a batch; give the plain model's logits instead where adaptation hurts and ``guard`` is on."""
        with self._lock:
            return self._observe(observation)

    def _observe(self, observation: Observation) -> Floats | None:
        images, now = observation.batch.images, self.clock()
        features = self.looker(images, observation.descriptors)
        sound = np.isfinite(features).all(axis=1)
        before = self.status
        drift = self.detector.update(features[sound], now)
        self._remember(features[sound], observation.logits[sound], before.drift, drift)
        plain = self._shadow(observation, before.guarding)
        faults = self.faults.update(self.looker.pixels(images))
        self.status = self._say(before.images + len(images), before.guarding)
        guarding = self.status.guarding
        if self.thumbnails:
            seen = {"camera": images[-1], "equalised": observation.equalised}
            self._pictures = {k: self.looker.pixels(v[None])[0] for k, v in seen.items() if v is not None}
        for change in faults:
            name = change.name if change.began else f"{change.name} over"
            text = SENTENCES[change.name] if change.began else f"no longer: {SENTENCES[change.name]}"
            self._tell(Event(name, change.image, now, text))
        self._tell_drift(before, now)
        if guarding != before.guarding:
            text = "adaptation hurts: the plain model predicts" if guarding else "adaptation no longer hurts"
            self._tell(Event("guard" if guarding else "guard over", self.status.images, now, text, self.metrics()))
        if not guarding:
            return None
        if plain is None:
            self.adapter.passes_per_image += 1
            plain = self.adapter.engine.run(observation.batch)[Tap.LOGITS][0]
        return plain

    def _say(self, images: int, guarded: bool) -> Status:
        """Put together what is known now, from what is remembered alone."""
        drift, clean = self.detector.drift, self.reference.clean
        signatures, recent = self.reference.signatures, len(self._features) > 0
        place = signatures.place(self._features) if signatures is not None and recent else None
        comparison = self.shadow.compare(place, self.reference.plain, self.reference.adapted)
        hurts = comparison is not None and (comparison.may_hurt if guarded else comparison.hurts)
        guess, white = self._guess(drift), clean.whitening
        estimate = self._estimate(place, guess)
        accuracy, kept = (None, estimate) if self.reference.unlabelled else (estimate, None)
        return Status(
            images,
            drift,
            changes(self._features, white.mean) if recent else {},
            tuple(clear_changes(self._features, white.mean, white.std)) if recent else (),
            guess,
            accuracy,
            kept,
            tuple(self.faults.faults),
            comparison,
            self.guard and hurts,
        )

    def _remember(self, features: Array, logits: Floats, before: Drift, drift: Drift) -> None:
        """Keep the most recent images; where a drift has begun or ended, only those since."""
        self._features = np.concatenate([self._features, features])
        self._shown = np.concatenate([self._shown, shown(logits)])
        keep = max(WINDOW, len(features))
        if drift.since is not None and not before.drift_detected:
            keep = min(keep, self.detector.seen - drift.since + 1)
        elif before.drift_detected and not drift.drift_detected:
            keep = min(keep, max(RECENT, len(features)))
        if drift.drift_detected != before.drift_detected:
            self.shadow.forget()
        self._features, self._shown = self._features[-keep:], self._shown[-keep:]

    def _guess(self, drift: Drift) -> Guess | None:
        """Say what the drift looks like; where the latest images look like something else, what they do."""
        signatures = self.reference.signatures
        if signatures is None or not drift.drift_detected:
            return None
        guess = signatures.guess(self._features)
        if len(self._features) < 2 * RECENT:
            return guess
        late = signatures.guess(self._features[-RECENT:])
        return late if late.known and late.kind not in (guess.kind, *guess.alike) else guess

    def _estimate(self, place: Place | None, guess: Guess | None) -> Estimate | None:
        regression = self.reference.adapted
        if regression is None or place is None:
            return None
        outside = guess is not None and not guess.known
        return regression.estimate(self._shown, place, outside=outside, relative=self.reference.unlabelled)

    def _shadow(self, observation: Observation, guarding: bool) -> Floats | None:
        """Let the plain model predict some of the images too; while it predicts anyway, all: give its logits then."""
        count = len(observation.batch)
        chosen = np.arange(count) if guarding else self.shadow.choose(count)
        if not len(chosen):
            return None
        some = observation.batch.with_images(observation.batch.images[chosen])
        logits: Floats = self.adapter.engine.run(some)[Tap.LOGITS][0]
        self.adapter.passes_per_image += len(chosen) / count
        self.shadow.add(logits, observation.logits[chosen])
        return logits if guarding else None

    def _tell_drift(self, before: Status, now: float) -> None:
        """Raise an event where a drift begins, becomes clear, changes its kind, or ends."""
        drift, guess = self.status.drift, self.status.guess
        if drift.drift_detected and drift.since is not None:
            first, settled = not before.drift.drift_detected, len(self._features) >= RECENT
            names = None if guess is None else (guess.kind, *guess.alike)
            other = self._told is None or guess is None or guess.kind not in self._told
            if first:
                self._told = names
                self._tell(Event("drift", drift.since, now, self.sentence, self.metrics()))
            elif settled and guess is not None and guess.kind != "clean" and other and self._lasts(guess):
                self._told = names
                self._tell(Event("drift changed", self.status.images, now, self.sentence, self.metrics()))
        elif before.drift.drift_detected:
            self._told = None
            self._tell(Event("drift over", self.status.images, now, "the images look clean again", self.metrics()))

    def _lasts(self, guess: Guess) -> bool:
        """Say whether the latest images agree: half fog and half clean looks like something else altogether."""
        assert self.reference.signatures is not None
        last = self.reference.signatures.guess(self._features[-RECENT // 2 :])
        return guess.kind in (last.kind, *last.alike)

    def _tell(self, event: Event) -> None:
        if self.thumbnails:
            event = replace(event, thumbnails={name: thumbnail(pixels) for name, pixels in self._pictures.items()})
        self.events.append(event)
        level = logging.INFO if event.name.endswith("over") else logging.WARNING
        LOG.log(level, "%s at image %s: %s", event.name, f"{event.image:,}", event.text)
        if self.on_event is not None:
            self.on_event(event)

    def metrics(self) -> dict[str, float]:
        """Say it in numbers, by names that a metrics server can keep."""
        status, drift = self.status, self.status.drift
        numbers = {
            "drift": float(drift.drift_detected),
            "drift_warning": float(drift.warning_detected),
            "drift_distance": drift.distance,
            "drift_threshold": drift.threshold,
            "drift_p_value": drift.p_value,
            "camera_faults": float(len(status.faults)),
        }
        for name, expected in (("expected_accuracy", status.accuracy), ("accuracy_kept", status.kept)):
            if expected is not None:
                numbers |= {name: expected.value, f"{name}_low": expected.low, f"{name}_high": expected.high}
                numbers |= {"outside_calibration": float(expected.outside)}
        if status.shadow is not None:
            numbers |= {"shadow_pairs": float(status.shadow.pairs), "shadow_agreement": status.shadow.agreement}
            if status.shadow.gain is not None and math.isfinite(status.shadow.gain):
                numbers |= {"shadow_gain": status.shadow.gain, "guarding": float(status.guarding)}
        return numbers
