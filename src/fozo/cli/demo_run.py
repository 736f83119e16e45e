"""``fozo demo``: a film of a camera that goes bad, then every forward-only method on the bundled images.

The second half is ``fozo bench`` on a recipe of its own, with the sample's statistics (of training images) instead of
ones that are measured on the spot. No PyTorch, no network, nothing to be given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fozo.bench.gains import BASE, over_base
from fozo.bench.plan import AVERAGE, Experiment, Methods, Recipe, Setting, StreamPlan, grid
from fozo.bench.recipes import rivals
from fozo.bench.report.colours import assign
from fozo.bench.report.conclusions import conclusions
from fozo.bench.report.page import Chapter, document, section
from fozo.bench.resources import Paths, Resources, Show, needs, quiet
from fozo.bench.run import run_experiment
from fozo.bench.store import Group, Run, Store
from fozo.cli.demo_camera import Film, shoot
from fozo.cli.demo_page import film_sections
from fozo.core.statistics import SourceStatistics
from fozo.data import sample
from fozo.data.sets import open_images
from fozo.data.sets.base import ImageSet
from fozo.engines.load import LoadOptions
from fozo.io import atomic_write, check_output, disk_errors, temporary_folder
from fozo.io.system import usable_cpus
from fozo.types import Engine

METHODS: Methods = {
    label: rivals.METHODS[label] for label in (BASE, "LAME", "T3A", "FOA", "FOZO (paper)", "FOZO", "Align")
}
"""The rows of the demo. All that adapt prompts have the same two passes; Align makes one."""
STREAM = StreamPlan(
    data="clean", kinds=("clean", "gaussian_noise", "motion_blur", "brightness", "fog", "contrast"), severity=3
)
"""Corruptions that NumPy and Pillow can do alone, chosen by what they do to the model when nothing adapts: from little
to a lot, and never down to chance."""
IMAGES = 300
WIDE = 105
"""Characters of a line that has room for the costs."""


def recipe(images: int) -> Recipe:
    """Make the demo's recipe at a size."""
    rows = grid(METHODS, {AVERAGE: replace(STREAM, images=images)})
    return Recipe("demo", "Demo: Fashion-MNIST while the camera goes bad", rows)


class SampleResources(Resources):
    """The bundled files, with the statistics that come with the models."""

    def inputs(self, experiment: Experiment, streamed: ImageSet) -> dict[str, str | None]:
        """Name the images behind the statistics."""
        images = sample.source(Path(experiment.model)).images
        return {"calibrated_on": f"{images} images of the training set" if needs(experiment.method, {}) else None}

    def source(self, experiment: Experiment, engine: Engine, streamed: ImageSet, show: Show) -> SourceStatistics:
        """Load the statistics."""
        return sample.source(Path(experiment.model))


def run_demo(
    out: Path,
    *,
    images: int = IMAGES,
    seed: int = 0,
    command: str = "",
    watch: Callable[[Film], None] = lambda film: None,
    ended: Callable[[Film], None] = lambda film: None,
    show: Show = quiet,
) -> tuple[Film, dict[str, Group]]:
    """Make the film, run every row on both engines, and write the page to ``out``.

    Args:
        out: the page.
        images: of each domain; the film has 256 at most.
        seed: of the order of the images and of the methods' draws.
        command: what the user typed, for the page.
        watch: shows the film, frame by frame.
        ended: is given the whole film, before the methods begin.
        show: told how far the methods are.

    Returns:
        The film, and the runs by engine.
    """
    plan = recipe(images)
    open_images(sample.IMAGES).take(images)  # refuses what is too many before anything is made
    groups: dict[str, Group] = {}
    check_output(out)
    film = shoot(images, seed, watch)
    ended(film)
    with temporary_folder(out) as folder:
        store = Store(folder)
        for engine, model in sample.MODELS.items():
            # One for each engine, so that memory holds one model at a time.
            resources = SampleResources(Paths(imagenet=str(sample.IMAGES)), LoadOptions(), folder)
            experiments = plan.experiments(Setting(str(model)), seeds=(seed,))
            runs = tuple(
                run_experiment(each, resources, store, threads=usable_cpus(), command=command, show=show)
                for each in experiments
            )
            titled = replace(plan, title=f"Every method on such a stream, {engine}")
            setting = f"{model.name}, severity {STREAM.severity}, {images} images a domain, corrupted on the fly"
            groups[engine] = Group(titled, setting, runs)
        text = demo_page(film, groups)
    with disk_errors(out), atomic_write(out) as file:
        file.write(text.encode())
    return film, groups


def demo_page(film: Film, groups: dict[str, Group]) -> str:
    """Make the page."""
    chapters = {engine: Chapter.of(group) for engine, group in groups.items()}
    places = assign(label for group in groups.values() for label in group.labels)
    sections = "".join(section(engine, chapter, places) for engine, chapter in chapters.items())
    return document(
        "fozo: demo",
        "<header><h1>fozo: a camera goes bad</h1><p>A small vision transformer knows garments (Fashion-MNIST). Then "
        "its camera sees fog, loses contrast, shakes and gets noisy. Nobody gives it a label.</p></header>"
        f"{film_sections(film)}{sections}<section><p>{escape(quantised(groups))}</p></section>",
    )


def speed(run: Run) -> float:
    """Images a second, adaptation included."""
    return run.measures.images / max(run.conditions.seconds, 1e-9)


def verdicts(groups: dict[str, Group]) -> list[str]:
    """Put in words who won on each engine, from the numbers alone."""
    said = [f"{engine}: {conclusions(group, over_base(group))[AVERAGE]}" for engine, group in groups.items()]
    return [*said, quantised(groups)]


def quantised(groups: dict[str, Group]) -> str:
    """Compare the plain model on both engines."""
    (_, float32), (_, int8) = groups.items()
    slow, fast = float32.first(BASE), int8.first(BASE)
    return (
        f"Without adaptation INT8 is {fast.measures.average - slow.measures.average:+.1f} points from float32 and "
        f"{speed(fast) / speed(slow):.2f}x as fast on this processor."
    )


def print_table(groups: dict[str, Group], console: Console) -> None:
    """Print both engines' rows as one aligned table."""
    domains = list(next(iter(groups.values())).runs[0].measures.domains)
    table = Table(title="Top-1 accuracy (%) on one continual stream", title_justify="left", box=None)
    if not console.is_terminal:  # one line a row, whatever width the pipe claims to have
        console = Console(width=200, file=console.file)
    wide = console.width >= WIDE
    table.add_column("engine", no_wrap=True)
    table.add_column("method", no_wrap=True)
    headings = [domain.partition("/")[0].rpartition("_")[2] for domain in domains]
    for column in (*headings, "mean", *(("passes", "images/s", "MiB") if wide else ())):
        table.add_column(column, justify="right", no_wrap=True)
    for engine, group in groups.items():
        for run in group.runs:
            found = run.measures
            cells = [f"{value:.1f}" for value in (*(found.domains[domain] for domain in domains), found.average)]
            costs = [found.passes_per_image, round(speed(run)), round(run.conditions.memory / 2**20)]
            table.add_row(engine, run.experiment.label, *cells, *(map(str, costs) if wide else ()))
    console.print(table)
    if wide:
        console.print("MiB: peak of the whole process so far, with what the rows before have loaded.", highlight=False)


def print_verdicts(groups: dict[str, Group], console: Console) -> None:
    """Print who won."""
    for text in verdicts(groups):
        console.print(text, highlight=False, soft_wrap=not console.is_terminal)
