"""Both parts of ``fozo demo``, without PyTorch or a network.

First a camera goes bad and recovers, and a monitor reports it without labels. The plain model and Align see the same
images; the monitor watches Align. Labels are used for the accuracies alone.

Then every forward-only method on the bundled images, float32 and INT8: ``fozo bench`` on a recipe of its own, with the
statistics that come with the sample.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path

from markupsafe import Markup
from rich.console import Console
from rich.table import Table

from fozo.bench.gains import Gain, by_image, over_base, signed
from fozo.bench.measures import BatchRecord, score
from fozo.bench.plan import AVERAGE, Experiment, Methods, Recipe, Setting, StreamPlan, grid, usual
from fozo.bench.report.page import chapters, conclusions, domain_spans
from fozo.bench.report.render import Series, assign_colours, line_chart, render
from fozo.bench.report.tables import full_name
from fozo.bench.resources import Paths, Resources, Show, needs, quiet
from fozo.bench.run import run_experiment
from fozo.bench.store import Group, Store
from fozo.cli.options import print_sentence
from fozo.core.statistics import Statistics
from fozo.data import sample
from fozo.data.scenarios import Continual
from fozo.data.sets import open_images
from fozo.data.sets.base import ImageSet
from fozo.data.streams import Stream
from fozo.engines.load import LoadOptions, load_engine
from fozo.io.system import usable_cpus
from fozo.methods.align import Align
from fozo.methods.noadapt import NoAdapt
from fozo.monitor import Event, Monitor, Reference, Status
from fozo.monitor.monitor import clock
from fozo.types import Engine

SCRIPT = ("clean", "fog", "contrast", "motion_blur", "gaussian_noise", "clean")  # what happens to the camera
SEVERITY = 3
IMAGES = 256  # of each scene, at most
BATCH = 16
LATEST = 64  # images of a running accuracy: as many as of the monitor's estimate
HEADINGS = ("plain", "adapted", "expected", "noticed after", "images")
METHODS: Methods = {
    **usual(["noadapt", "lame", "t3a", "foa"]),
    "FOZO (paper)": ("fozo", {"passes": 2, "preset": "paper"}),
    **usual(["fozo", "align"]),
}
"""The rows of the demo. All that adapt prompts have the same two passes; Align makes one."""
STREAM = StreamPlan(
    data="clean", kinds=("clean", "gaussian_noise", "motion_blur", "brightness", "fog", "contrast"), severity=3
)
"""Corruptions that NumPy and Pillow can do alone. Unadapted, they cost from little to a lot, but not all."""


@dataclass(frozen=True)
class Step:
    """What is known after a batch."""

    images: int
    """How many were seen so far."""
    plain: BatchRecord
    adapted: BatchRecord
    status: Status
    events: tuple[Event, ...]
    """What the monitor reported at this batch."""


@dataclass(frozen=True)
class Scene:
    """The batches of one scene."""

    domain: str
    steps: Sequence[Step]

    @property
    def images(self) -> int:
        return sum(step.plain.images for step in self.steps)

    def correct(self, model: str) -> int:
        return sum(getattr(step, model).correct for step in self.steps)

    @property
    def delay(self) -> int | None:
        """Images of the scene after which the monitor reported drift; ``None`` if it did not."""
        before = self.steps[-1].images - self.images
        for step in self.steps:
            if any(event.name.startswith("drift") for event in step.events):
                return step.images - before
        return None

    @property
    def expected(self) -> float | None:
        """Mean of the accuracies that the monitor expects, each of 64 images, the rest at the end."""
        count = LATEST // BATCH
        last = [self.steps[start : start + count][-1] for start in range(0, len(self.steps), count)]
        values = [step.status.accuracy.value for step in last if step.status.accuracy is not None]
        return sum(values) / len(values) if values else None

    @property
    def cells(self) -> tuple[str, ...]:
        plain = self.correct("plain") / self.images
        adapted = self.correct("adapted") / self.images
        percent = ("-" if share is None else f"{100 * share:.1f}" for share in (plain, adapted, self.expected))
        return (*percent, "-" if self.delay is None else str(self.delay), str(self.images))


@dataclass(frozen=True)
class CameraRun:
    """All batches of the script."""

    steps: Sequence[Step]

    @cached_property
    def scenes(self) -> list[Scene]:
        by_domain = groupby(self.steps, key=lambda step: step.plain.domain.partition("/")[0])
        return [Scene(domain, list(steps)) for domain, steps in by_domain]

    @property
    def events(self) -> list[tuple[int, Event]]:
        return [(step.images, event) for step in self.steps for event in step.events]

    def running_accuracy(self, model: str) -> list[float]:
        """Accuracy of ``plain`` or ``adapted`` over the latest batches, after each batch, in percent."""
        records: list[BatchRecord] = [getattr(step, model) for step in self.steps]
        parts = [records[max(0, end - LATEST // BATCH) : end] for end in range(1, len(records) + 1)]
        return [100 * sum(r.correct for r in part) / sum(r.images for r in part) for part in parts]

    @property
    def gain(self) -> Gain:
        bad = [step for step in self.steps if step.plain.domain != "clean"]
        return by_image([[step.adapted for step in bad]], [[step.plain for step in bad]]).mean

    @property
    def summary(self) -> str:
        bad = [scene for scene in self.scenes if scene.domain != "clean"]
        images = sum(scene.images for scene in bad)
        plain, adapted = (100 * sum(scene.correct(model) for scene in bad) / images for model in ("plain", "adapted"))
        gain = self.gain
        ends = "" if gain.within is None else f", {signed(gain.within.low)} to {signed(gain.within.high)} at 95 %"
        delays = [scene.delay for scene in bad if scene.delay is not None]
        late = f", after {max(delays)} images at most" if delays else ""
        return (
            f"While the camera was bad ({images:,} images) the plain model got {plain:.1f} % right and the adapted one "
            f"{adapted:.1f} % ({signed(gain.value)} points{ends}). The monitor reported {len(delays)} of {len(bad)} "
            f"changes for the worse{late}."
        )


def run_camera(images: int, seed: int) -> Iterator[Step]:
    """Go through the script with ``images`` of each scene, 256 at most."""
    engine = load_engine(sample.MODELS["float32"], threads=usable_cpus())
    adapter = Align(engine, sample.statistics(sample.MODELS["float32"]))
    plain = NoAdapt(engine)
    events: list[Event] = []
    reference = Reference.load(sample.MONITOR)
    monitor = Monitor(reference, shadow=0, on_event=events.append, clock=lambda: 0.0).watch(adapter)
    chosen = open_images(sample.IMAGES).take(min(images, IMAGES))
    stream = Stream(chosen, engine.spec, Continual(kinds=SCRIPT, severity=SEVERITY), batch_size=BATCH, seed=seed)

    seen = 0
    for batch in stream.batches():
        adapted_logits = adapter(batch.images)
        plain_logits = plain(batch.images)
        seen += len(batch.labels)
        # A demo has no time of day.
        reported = tuple(replace(event, text=event.text.replace(f" ({clock(0.0)})", "")) for event in events)
        events.clear()
        scored = partial(score, labels=batch.labels, index=batch.index, domain=batch.domain, samples=batch.samples)
        yield Step(seen, scored(plain_logits), scored(adapted_logits), monitor.status, reported)


def print_scenes(camera: CameraRun, console: Console) -> None:
    title = f"Scene by scene, accuracy (%), corruptions of severity {SEVERITY}"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("scene", no_wrap=True)
    for column in HEADINGS:
        table.add_column(column, justify="right", no_wrap=True)
    for scene in camera.scenes:
        table.add_row(full_name(scene.domain), *scene.cells)
    console.print(table)
    print_sentence(console, camera.summary)


def demo_page(camera: CameraRun, groups: Mapping[str, Group]) -> str:
    return render(
        "demo.html",
        title="fozo: a camera goes bad",
        camera=camera,
        timeline=_timeline(camera),
        headings=HEADINGS,
        severity=SEVERITY,
        chapters=chapters(groups),
    )


def _timeline(camera: CameraRun) -> Markup:
    """Draw the accuracies, true and expected, with the scenes' names below and the events' numbers above."""
    x = [step.images for step in camera.steps]
    expected = [(step.images, e) for step in camera.steps if (e := step.status.accuracy) is not None]
    at = [images for images, _ in expected]
    value, low, high = ([100 * getattr(e, name) for _, e in expected] for name in ("value", "low", "high"))
    colours = assign_colours({"plain": "noadapt", "adapted": "align", "expected": ""})
    expectation = Series("expected by the monitor, with its 95 % interval", at, value, colours["expected"], dashed=True)
    series = [
        replace(expectation, low=low, high=high),
        Series("plain model", x, camera.running_accuracy("plain"), colours["plain"]),
        Series("adapted (Align)", x, camera.running_accuracy("adapted"), colours["adapted"]),
    ]
    spans = domain_spans([step.plain for step in camera.steps], SEVERITY)
    events = [(event.image, str(number)) for number, (_, event) in enumerate(camera.events, 1)]
    title = f"Accuracy of the latest {LATEST} images, and what the monitor expects without labels"
    return line_chart(title, series, "", "accuracy (%)", spans=spans, events=events)


def recipe(images: int) -> Recipe:
    rows = grid(METHODS, {AVERAGE: replace(STREAM, images=images)})
    return Recipe("demo", "Demo: Fashion-MNIST while the camera goes bad", rows)


class SampleResources(Resources):
    """The bundled files, with the statistics that come with the models."""

    def inputs(self, experiment: Experiment, streamed: ImageSet) -> dict[str, str | None]:
        images = sample.statistics(Path(experiment.model)).images
        return {"calibrated_on": f"{images} images of the training set" if needs(experiment.method, {}) else None}

    def statistics(self, experiment: Experiment, engine: Engine, streamed: ImageSet, show: Show) -> Statistics:
        return sample.statistics(Path(experiment.model))


def run_methods(folder: Path, *, images: int, seed: int = 0, command: str = "", show: Show = quiet) -> dict[str, Group]:
    plan = recipe(images)
    store = Store(folder)
    groups = dict[str, Group]()
    for engine, model in sample.MODELS.items():
        # One for each engine, so that memory holds one model at a time.
        resources = SampleResources(Paths({"imagenet": str(sample.IMAGES)}), LoadOptions(), folder)
        runs = tuple(
            run_experiment(each, resources, store, threads=usable_cpus(), command=command, show=show)
            for each in plan.experiments(Setting(str(model)), seeds=(seed,))
        )
        titled = replace(plan, title=f"Every method on such a stream, {engine}")
        setting = f"{model.name}, severity {STREAM.severity}, {images} images a domain, corrupted on the fly"
        groups[engine] = Group(titled, setting, runs)
    return groups


def methods_table(groups: Mapping[str, Group]) -> Table:
    """Both engines' rows as one aligned table; the page has their times and memory."""
    domains = list(next(iter(groups.values())).runs[0].measures.domains)
    table = Table(title="Top-1 accuracy (%) on one continual stream", title_justify="left", box=None)
    table.add_column("engine", no_wrap=True)
    table.add_column("method", no_wrap=True)
    headings = [domain.partition("/")[0].rpartition("_")[2] for domain in domains]
    for column in (*headings, "mean", "passes"):
        table.add_column(column, justify="right", no_wrap=True)
    for engine, group in groups.items():
        for run in group.runs:
            found = run.measures
            cells = [f"{value:.1f}" for value in (*(found.domains[domain] for domain in domains), found.average)]
            table.add_row(engine, run.experiment.title, *cells, str(found.passes_per_image))
    return table


def print_methods(groups: Mapping[str, Group], console: Console) -> None:
    console.print(methods_table(groups))
    for engine, group in groups.items():
        print_sentence(console, f"{engine}: {conclusions(group, over_base(group))[AVERAGE]}")
