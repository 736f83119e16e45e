"""First part of ``fozo demo``: a camera goes bad and recovers, and a monitor reports it without labels.

The plain model and Align see the same images; the monitor watches Align. Labels are used for the accuracies alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

import numpy as np
from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from fozo.bench.gains import Gain, by_image, signed
from fozo.bench.measures import BatchRecord, score
from fozo.bench.report.charts import Series, Span, line_chart
from fozo.bench.report.colours import COLOURS
from fozo.bench.report.page import chapters
from fozo.bench.report.pictures import picture
from fozo.bench.report.render import render
from fozo.bench.report.tables import full_name
from fozo.bench.store import Group
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
from fozo.monitor.monitor import clock
from fozo.types import Floats

SCRIPT = ("clean", "fog", "contrast", "motion_blur", "gaussian_noise", "clean")  # what happens to the camera
SEVERITY = 3
IMAGES = 256  # of each scene, at most
BATCH = 16
LATEST = 64  # images of a running accuracy: as many as of the monitor's estimate
PICTURES = 3  # images of each scene: the last of its last batches, whether recognised or not
PLAIN, ALIGN, EXPECTED = list(COLOURS).index("NoAdapt"), list(COLOURS).index("Align"), len(COLOURS)
HEADINGS = ("plain", "adapted", "expected", "noticed after", "images")


@dataclass(frozen=True)
class Picture:
    """One image, its true class, and what both models predicted."""

    clean: Pixels
    camera: Pixels
    read: Pixels  # after Align's equaliser
    truth: str
    plain: str
    adapted: str


@dataclass(frozen=True)
class Step:
    """What is known after a batch."""

    scene: int  # index into :data:`SCRIPT`
    images: int  # seen so far
    plain: BatchRecord
    adapted: BatchRecord
    status: Status
    events: tuple[Event, ...]  # what the monitor reported at this batch
    picture: Picture  # the last image of the batch


@dataclass(frozen=True)
class Scene:
    """The batches of one scene."""

    domain: str
    first: int  # number of its first image, from 1
    steps: Sequence[Step]

    @property
    def images(self) -> int:
        return sum(step.plain.images for step in self.steps)

    def accuracy(self, model: str) -> float:
        correct: int = sum(getattr(step, model).correct for step in self.steps)
        return 100 * correct / self.images

    @property
    def delay(self) -> int | None:
        """Images of the scene after which the monitor reported drift; ``None`` if it did not."""
        found = (step.images for step in self.steps for event in step.events if event.name.startswith("drift"))
        first = next(found, None)
        return None if first is None else first - self.first + 1

    @property
    def windows(self) -> list[tuple[Estimate, float]]:
        """Expected accuracies and the true ones of the same images: of 64 at a time, the rest at the end."""
        found, part = [], list[Step]()
        for step in self.steps:
            part.append(step)
            count = sum(each.adapted.images for each in part)
            if count >= LATEST or step is self.steps[-1]:
                if step.status.accuracy is not None:
                    found.append((step.status.accuracy, sum(each.adapted.correct for each in part) / count))
                part = []
        return found

    @property
    def cells(self) -> tuple[str, ...]:
        """A row of a table, under :data:`HEADINGS`."""
        values = [estimate.value for estimate, _ in self.windows]
        expected = f"{100 * sum(values) / len(values):.1f}" if values else "-"
        delay = "-" if self.delay is None else str(self.delay)
        return f"{self.accuracy('plain'):.1f}", f"{self.accuracy('adapted'):.1f}", expected, delay, str(self.images)


@dataclass(frozen=True)
class CameraRun:
    """All batches of the script."""

    steps: Sequence[Step]

    @cached_property
    def scenes(self) -> list[Scene]:
        found, first = [], 1
        for number, steps in groupby(self.steps, key=lambda step: step.scene):
            scene = Scene(SCRIPT[number], first, list(steps))
            found.append(scene)
            first += scene.images
        return found

    @property
    def events(self) -> list[tuple[int, Event]]:
        """All events, each with the number of images after which it was reported."""
        return [(step.images, event) for step in self.steps for event in step.events]

    def running_accuracy(self, model: str) -> list[float]:
        """Accuracy of ``plain`` or ``adapted`` over the latest images, after each batch, in percent."""
        found = []
        for last in range(len(self.steps)):
            seen = correct = 0
            for step in reversed(self.steps[: last + 1]):
                record: BatchRecord = getattr(step, model)
                seen, correct = seen + record.images, correct + record.correct
                if seen >= LATEST:
                    break
            found.append(100 * correct / seen)
        return found

    @property
    def gain(self) -> Gain:
        bad = [step for step in self.steps if SCRIPT[step.scene] != "clean"]
        return by_image([[step.adapted for step in bad]], [[step.plain for step in bad]]).mean

    @property
    def summary(self) -> str:
        bad = [scene for scene in self.scenes if scene.domain != "clean"]
        images, gain = sum(scene.images for scene in bad), self.gain
        plain, adapted = (
            sum(scene.accuracy(model) * scene.images for scene in bad) / images for model in ("plain", "adapted")
        )
        against, interval = "beside", ""
        if gain.within is not None:
            more = "more" if gain.side > 0 else "less"
            different = f"{abs(gain.value):.1f} points {more} than"
            against = different if gain.side else "not significantly different from"
            interval = f" (95 % interval of the difference: {signed(gain.within.low)} to {signed(gain.within.high)})"
        delays = [scene.delay for scene in bad if scene.delay is not None]
        late = f", after {max(delays)} images at most" if delays else ""
        pairs = [pair for scene in self.scenes for pair in scene.windows]
        error = 100 * float(np.mean([abs(expected.value - truth) for expected, truth in pairs]))
        within = sum(expected.low <= truth <= expected.high for expected, truth in pairs)
        return (
            f"While the camera was bad ({images:,} images) the adapted model got {adapted:.1f} % right, "
            f"{against} the plain one's {plain:.1f} %{interval}. "
            f"The monitor reported {len(delays)} of {len(bad)} changes for the worse{late}. Without labels it expected "
            f"the accuracy with a mean error of {error:.1f} points; the truth lay within its 95 % interval "
            f"{within} of {len(pairs)} times."
        )


def run_camera(images: int, seed: int) -> Iterator[Step]:
    """Go through the script with ``images`` of each scene, 256 at most."""
    engine = load_engine(sample.MODELS["float32"], threads=usable_cpus())
    adapter, plain = Align(engine, sample.source(sample.MODELS["float32"])), NoAdapt(engine)
    events: list[Event] = []
    reference = MonitorReference.load(sample.MONITOR)
    monitor = Monitor(reference, shadow=0, on_event=events.append, clock=lambda: 0.0).watch(adapter)
    chosen = open_images(sample.IMAGES).take(min(images, IMAGES))
    stream = Stream(chosen, engine.spec, Continual(kinds=SCRIPT, severity=SEVERITY), batch_size=BATCH, seed=seed)

    def pixels(image: Floats) -> Pixels:
        levels = 255 * np.clip(monitor.quality.pixels(image[None])[0], 0, 1) + 0.5
        return np.asarray(levels.astype(np.uint8).transpose(1, 2, 0))

    def record(logits: Floats, batch: LabelledBatch) -> BatchRecord:
        return score(logits, batch.labels, index=batch.index, domain=batch.domain, samples=batch.samples)

    seen = 0
    for batch in stream.batches():
        scene = seen // len(chosen)
        ours, theirs = adapter(batch.images), plain(batch.images)
        seen += len(batch.labels)
        camera = pixels(batch.images[-1])
        read = camera if adapter.last_input is None else pixels(adapter.last_input)
        names = [chosen.classes[int(index)] for index in (batch.labels[-1], theirs[-1].argmax(), ours[-1].argmax())]
        original = chosen.read(int(batch.samples[-1]))[..., :1]
        # A demo has no time of day.
        reported = tuple(replace(event, text=event.text.replace(f" ({clock(0.0)})", "")) for event in events)
        events.clear()
        picture = Picture(original, camera, read, *names)
        yield Step(scene, seen, record(theirs, batch), record(ours, batch), monitor.status, reported, picture)


def print_scenes(camera: CameraRun, console: Console) -> None:
    table = Table(title=f"Scene by scene, accuracy (%), corruptions of severity {SEVERITY}", title_justify="left")
    if not console.is_terminal:
        table.box = None
    table.add_column("scene", no_wrap=True)
    for column in HEADINGS:
        table.add_column(column, justify="right", no_wrap=True)
    for scene in camera.scenes:
        table.add_row(full_name(scene.domain), *scene.cells)
    console.print(table)
    console.print(camera.summary, highlight=False, soft_wrap=not console.is_terminal)


def demo_page(camera: CameraRun, groups: Mapping[str, Group], quantised: str) -> str:
    return render(
        "demo.html",
        title="fozo: a camera goes bad",
        camera=camera,
        timeline=_timeline(camera),
        headings=HEADINGS,
        severity=SEVERITY,
        picture=picture,
        pictures=PICTURES,
        chapters=chapters(groups),
        quantised=quantised,
    )


def _timeline(camera: CameraRun) -> Markup:
    """Draw the accuracies, true and expected, with the scenes' names below and the events' numbers above."""
    x = [step.images for step in camera.steps]
    expected = [(step.images, e) for step in camera.steps if (e := step.status.accuracy) is not None]
    series = [
        Series(
            "expected by the monitor, with its 95 % interval",
            [images for images, _ in expected],
            [100 * e.value for _, e in expected],
            EXPECTED,
            dashed=True,
            low=[100 * e.low for _, e in expected],
            high=[100 * e.high for _, e in expected],
        ),
        Series("plain model", x, camera.running_accuracy("plain"), PLAIN),
        Series("adapted (Align)", x, camera.running_accuracy("adapted"), ALIGN),
    ]
    spans = [Span(s.first - 1, s.first - 1 + s.images, full_name(s.domain)) for s in camera.scenes]
    events = [(event.image, str(number)) for number, (_, event) in enumerate(camera.events, 1)]
    title = f"Accuracy of the latest {LATEST} images, and what the monitor expects without labels"
    return line_chart(title, series, "", "accuracy (%)", spans=spans, events=events)
