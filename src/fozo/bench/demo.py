"""``fozo demo``: the bundled model on the bundled images while the camera goes bad; every forward-only method.

It is ``fozo bench`` on a recipe of its own, with the sample's statistics (of training images) instead of ones that are
measured on the spot. No PyTorch, no network, nothing to be given.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fozo.bench.plan import AVERAGE, Experiment, Methods, Recipe, Setting, StreamPlan, grid
from fozo.bench.recipes import rivals
from fozo.bench.report.page import page
from fozo.bench.report.tables import table_of
from fozo.bench.resources import Paths, Resources, Show, needs, quiet
from fozo.bench.run import run_experiment
from fozo.bench.store import Group, Run, Store, describe
from fozo.core.statistics import SourceStatistics
from fozo.data import sample
from fozo.data.sets.base import ImageSet
from fozo.io import atomic_write, check_output, disk_errors, temporary_folder
from fozo.loading import LoadOptions
from fozo.system import usable_cpus
from fozo.types import Engine

BASELINE = "NoAdapt"
METHODS: Methods = {
    label: rivals.METHODS[label] for label in (BASELINE, "LAME", "T3A", "FOA", "FOZO (paper)", "FOZO", "Align")
}
"""The rows of the demo. All that adapt prompts have the same two passes; Align makes one."""
STREAM = StreamPlan(
    data="clean", kinds=("clean", "gaussian_noise", "motion_blur", "brightness", "fog", "contrast"), severity=3
)
"""Corruptions that NumPy and Pillow can do alone, chosen by what they do to the model when nothing adapts: from little
to a lot, and never down to chance."""
IMAGES = 500


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
    out: Path, *, images: int = IMAGES, seed: int = 0, command: str = "", show: Show = quiet
) -> dict[str, Group]:
    """Run every row on both engines and write the page to ``out``; return the runs by engine."""
    plan = recipe(images)
    groups: dict[str, Group] = {}
    check_output(out)
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
            titled = replace(plan, title=f"{plan.title}, {engine}")
            groups[engine] = Group(titled, describe(experiments), runs)
        notes = verdict(groups)
        groups = {e: replace(group, recipe=replace(group.recipe, note=notes[e])) for e, group in groups.items()}
        text = page(list(groups.values()), [table_of(group) for group in groups.values()])
    with disk_errors(out), atomic_write(out) as file:
        file.write(text.encode())
    return groups


def speed(run: Run) -> float:
    """Images a second, adaptation included."""
    return run.measures.images / max(run.conditions.seconds, 1e-9)


def verdict(groups: dict[str, Group]) -> dict[str, str]:
    """Put in words who won on each engine, from the numbers alone."""
    said = {}
    plain: dict[str, Run] = {}
    for engine, group in groups.items():
        averages = {run.experiment.label: run.measures.average for run in group.runs}
        plain[engine] = group.first(BASELINE)
        best, second = sorted(averages, key=lambda label: averages[label], reverse=True)[:2]
        within = group.first(best).measures.average_interval
        lead = averages[best] - averages[second]
        unsure = ", less than the margin of error" if lead < (within.high - within.low) / 2 else ""
        base = averages.pop(BASELINE)
        changes = ", ".join(f"{label} {average - base:+.1f}" for label, average in averages.items())
        said[engine] = (
            f"{engine}: best on average is {best} with {group.first(best).measures.average:.1f} % (95 % interval "
            f"{within.low:.1f} to {within.high:.1f}), {lead:.1f} points ahead of {second}{unsure}. "
            f"Points against {BASELINE}: {changes}."
        )
    (_, float32), (last, int8) = plain.items()
    said[last] += (
        f" Without adaptation INT8 is {int8.measures.average - float32.measures.average:+.1f} points from float32 and "
        f"{speed(int8) / speed(float32):.2f}x as fast on this processor."
    )
    return said


def print_table(groups: dict[str, Group], console: Console) -> None:
    """Print both engines' rows as one aligned table, and the verdict."""
    domains = list(next(iter(groups.values())).runs[0].measures.domains)
    table = Table(title="Top-1 accuracy (%) on one continual stream", title_justify="left")
    table.add_column("engine")
    table.add_column("method", no_wrap=True)
    headings = [domain.partition("/")[0].partition("_")[0] for domain in domains]
    for column in ("passes", *headings, "mean", "images/s", "MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    if not console.is_terminal:  # one line a row, whatever width the pipe claims to have
        console, table.box = Console(width=200, file=console.file), None
    for engine, group in groups.items():
        for run in group.runs:
            found = run.measures
            shares = [f"{value:.1f}" for value in (*(found.domains[domain] for domain in domains), found.average)]
            cells = (str(found.passes_per_image), *shares, f"{speed(run):.0f}", f"{run.conditions.memory / 2**20:.0f}")
            table.add_row(engine, run.experiment.label, *cells, end_section=run is group.runs[-1])
    console.print(table)
    console.print("MiB: peak of the whole process so far, with what the rows before have loaded.", highlight=False)
    for group in groups.values():
        console.print(group.recipe.note, highlight=False, soft_wrap=not console.is_terminal)
