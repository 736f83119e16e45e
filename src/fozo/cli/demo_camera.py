"""The film of ``fozo demo``: a camera goes bad and recovers, and a monitor says what happens while it happens.

The plain model and Align see the same images; the monitor watches Align and knows no label. All that the labels tell
(who is right) is for the spectators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from fozo.bench.gains import Gain, by_image, signed
from fozo.bench.measures import BatchRecord, score
from fozo.data import sample
from fozo.data.images import Pixels
from fozo.data.scenarios import Continual
from fozo.data.sets import open_images
from fozo.data.streams import LabelledBatch, Stream
from fozo.engines.load import load_engine
from fozo.io.system import usable_cpus
from fozo.methods.align import Align
from fozo.methods.noadapt import NoAdapt
from fozo.monitor import Estimate, Event, Monitor, MonitorReference, Status
from fozo.monitor.quality import Looker
from fozo.monitor.sentences import clock
from fozo.types import Floats

SCRIPT = ("clean", "fog", "contrast", "motion_blur", "gaussian_noise", "clean")
"""What happens to the camera; all of it can be done by NumPy, SciPy and Pillow."""
SEVERITY = 3
IMAGES = 256
"""Of each scene, at most."""
BATCH = 16
LATEST = 64
"""Images that a live accuracy is of: as many as the monitor's estimate."""


@dataclass(frozen=True)
class Picture:
    """One image: as it was, as the camera saw it, as the model read it; what it shows, and what it was taken for."""

    clean: Pixels
    camera: Pixels
    read: Pixels
    truth: str
    plain: str
    adapted: str


@dataclass(frozen=True)
class Frame:
    """What is known after a batch."""

    scene: int
    """Its place in :data:`SCRIPT`."""
    images: int
    """Seen so far."""
    plain: BatchRecord
    adapted: BatchRecord
    status: Status
    """What the monitor says."""
    events: tuple[Event, ...]
    """What it has just told."""
    picture: Picture
    """The last image of the batch."""


@dataclass(frozen=True)
class Scene:
    """What came of one scene."""

    domain: str
    first: int
    """Number of its first image, from 1."""
    frames: Sequence[Frame]

    @property
    def images(self) -> int:
        """How many it has."""
        return sum(frame.plain.images for frame in self.frames)

    def share(self, who: str) -> float:
        """Accuracy of ``plain`` or ``adapted``, in percent."""
        right: int = sum(getattr(frame, who).correct for frame in self.frames)
        return 100 * right / self.images

    @property
    def noticed(self) -> tuple[int, str] | None:
        """After how many of its images the monitor told of it, and in which words."""
        for frame in self.frames:
            for event in frame.events:
                if event.name.startswith("drift"):
                    return frame.images - self.first + 1, event.text
        return None

    @property
    def windows(self) -> list[tuple[Estimate, float]]:
        """Expected accuracies and the true ones of the same images: of 64 at a time, the rest at the end."""
        found, part = [], list[Frame]()
        for frame in self.frames:
            part.append(frame)
            count = sum(each.adapted.images for each in part)
            if count >= LATEST or frame is self.frames[-1]:
                right = sum(each.adapted.correct for each in part)
                if frame.status.accuracy is not None:
                    found.append((frame.status.accuracy, right / count))
                part = []
        return found


@dataclass
class Film:
    """All frames so far."""

    frames: list[Frame] = field(default_factory=list)

    @property
    def scenes(self) -> list[Scene]:
        """The frames by scene."""
        found, first = [], 1
        for number, frames in groupby(self.frames, key=lambda frame: frame.scene):
            scene = Scene(SCRIPT[number], first, list(frames))
            found.append(scene)
            first += scene.images
        return found

    def live(self, who: str, last: int | None = None) -> float:
        """Accuracy of ``plain`` or ``adapted`` over the latest images up to frame ``last``, in percent."""
        seen = right = 0
        for frame in reversed(self.frames[: len(self.frames) if last is None else last + 1]):
            record: BatchRecord = getattr(frame, who)
            seen, right = seen + record.images, right + record.correct
            if seen >= LATEST:
                break
        return 100 * right / seen

    @property
    def gain(self) -> Gain:
        """What adaptation gained while the camera was bad, in points."""
        bad = [frame for frame in self.frames if SCRIPT[frame.scene] != "clean"]
        return by_image([[frame.adapted for frame in bad]], [[frame.plain for frame in bad]]).mean

    @property
    def error(self) -> tuple[float, int, int]:
        """Mean error of the expected accuracy in points; how many windows lie within their intervals, of how many."""
        pairs = [pair for scene in self.scenes for pair in scene.windows]
        within = sum(expected.low <= truth <= expected.high for expected, truth in pairs)
        return 100 * float(np.mean([abs(e.value - truth) for e, truth in pairs])), within, len(pairs)


def shoot(images: int, seed: int, show: Callable[[Film], None]) -> Film:
    """Make the film; ``show`` is called after each frame."""
    engine = load_engine(sample.MODELS["float32"], threads=usable_cpus())
    adapter, plain = Align(engine, sample.source(sample.MODELS["float32"])), NoAdapt(engine)
    told: list[Event] = []
    reference = MonitorReference.load(sample.MONITOR)
    monitor = Monitor(adapter, reference, shadow=0, on_event=told.append, clock=lambda: 0.0)
    chosen = open_images(sample.IMAGES).take(min(images, IMAGES))
    stream = Stream(chosen, engine.spec, Continual(kinds=SCRIPT, severity=SEVERITY), batch_size=BATCH, seed=seed)
    looker = Looker(engine.spec)

    def pixels(image: Floats) -> Pixels:
        levels = 255 * np.clip(looker.pixels(image[None])[0], 0, 1) + 0.5
        return np.asarray(levels.astype(np.uint8).transpose(1, 2, 0))

    def record(logits: Floats, batch: LabelledBatch) -> BatchRecord:
        return score(logits, batch.labels, index=batch.index, domain=batch.domain, samples=batch.samples)

    film, seen = Film(), 0
    for batch in stream.batches():
        scene = seen // len(chosen)
        ours, theirs = adapter(batch.images), plain(batch.images)
        seen += len(batch.labels)
        camera = pixels(batch.images[-1])
        read = camera if adapter.equalised is None else pixels(adapter.equalised)
        names = [chosen.classes[int(place)] for place in (batch.labels[-1], theirs[-1].argmax(), ours[-1].argmax())]
        original = chosen.read(int(batch.samples[-1]))[..., :1]
        events = tuple(Event(e.name, e.image, e.time, untimed(e.text), e.facts) for e in told)
        told.clear()
        both = record(theirs, batch), record(ours, batch)
        film.frames.append(Frame(scene, seen, *both, monitor.status, events, Picture(original, camera, read, *names)))
        show(film)
    return film


def untimed(text: str) -> str:
    """Leave the time of day out of a sentence: a film has none."""
    return text.replace(f" ({clock(0.0)})", "")


def summary(film: Film) -> str:
    """Say what was seen, from the figures alone."""
    bad = [scene for scene in film.scenes if scene.domain != "clean"]
    images = sum(scene.images for scene in bad)
    plain, adapted = (sum(scene.share(who) * scene.images for scene in bad) / images for who in ("plain", "adapted"))
    gain, (error, held, windows) = film.gain, film.error
    words, sure = "beside", ""
    if gain.within is not None:
        more = "more" if gain.side > 0 else "less"
        words = f"{abs(gain.value):.1f} points {more} than" if gain.side else "level with"
        sure = f" (95 % interval of the difference: {signed(gain.within.low)} to {signed(gain.within.high)})"
    delays = [scene.noticed[0] for scene in bad if scene.noticed is not None]
    late = f", after {max(delays)} images at most" if delays else ""
    return (
        f"While the camera was bad ({images:,} images) the adapted model got {adapted:.1f} % right, "
        f"{words} the plain one's {plain:.1f} %{sure}. "
        f"The monitor told of {len(delays)} of {len(bad)} changes for the worse{late}. Without labels it expected the "
        f"accuracy with a mean error of {error:.1f} points; {held} of {windows} times the truth lay within its 95 % "
        f"interval."
    )
