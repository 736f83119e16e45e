"""Second part of ``fozo demo``: every forward-only method on the bundled images, float32 and INT8.

It is ``fozo bench`` on a recipe of its own, with the statistics that come with the sample. No PyTorch, no network.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fozo.bench.gains import BASE, over_base
from fozo.bench.plan import AVERAGE, Experiment, Methods, Recipe, Setting, StreamPlan, grid
from fozo.bench.recipes.comparison import METHODS as RIVALS
from fozo.bench.report.figures import conclusions
from fozo.bench.resources import Paths, Resources, Show, needs, quiet
from fozo.bench.run import run_experiment
from fozo.bench.store import Group, Store
from fozo.cli.progress import print_sentence
from fozo.core.statistics import SourceStatistics
from fozo.data import sample
from fozo.data.sets.base import ImageSet
from fozo.engines.load import LoadOptions
from fozo.io.system import usable_cpus
from fozo.types import Engine

METHODS: Methods = {label: RIVALS[label] for label in (BASE, "LAME", "T3A", "FOA", "FOZO (paper)", "FOZO", "Align")}
"""The rows of the demo. All that adapt prompts have the same two passes; Align makes one."""
STREAM = StreamPlan(
    data="clean", kinds=("clean", "gaussian_noise", "motion_blur", "brightness", "fog", "contrast"), severity=3
)
"""Corruptions that NumPy and Pillow can do alone. Unadapted, they cost from little to a lot, but not all."""


def recipe(images: int) -> Recipe:
    rows = grid(METHODS, {AVERAGE: replace(STREAM, images=images)})
    return Recipe("demo", "Demo: Fashion-MNIST while the camera goes bad", rows)


class SampleResources(Resources):
    """The bundled files, with the statistics that come with the models."""

    def inputs(self, experiment: Experiment, streamed: ImageSet) -> dict[str, str | None]:
        images = sample.source(Path(experiment.model)).images
        return {"calibrated_on": f"{images} images of the training set" if needs(experiment.method, {}) else None}

    def source(self, experiment: Experiment, engine: Engine, streamed: ImageSet, show: Show) -> SourceStatistics:
        return sample.source(Path(experiment.model))


def run_methods(folder: Path, *, images: int, seed: int = 0, command: str = "", show: Show = quiet) -> dict[str, Group]:
    plan, store, groups = recipe(images), Store(folder), dict[str, Group]()
    for engine, model in sample.MODELS.items():
        # One for each engine, so that memory holds one model at a time.
        resources = SampleResources(Paths(imagenet=str(sample.IMAGES)), LoadOptions(), folder)
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
            table.add_row(engine, run.experiment.label, *cells, str(found.passes_per_image))
    return table


def print_methods(groups: Mapping[str, Group], console: Console) -> None:
    console.print(methods_table(groups))
    for engine, group in groups.items():
        print_sentence(console, f"{engine}: {conclusions(group, over_base(group))[AVERAGE]}")
