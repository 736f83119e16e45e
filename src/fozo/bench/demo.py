"""``fozo demo``: the bundled model on the bundled images while the camera goes bad; every forward-only method.

It is ``fozo bench`` on a recipe of its own, with the sample's statistics (of training images) instead of ones that are
measured on the spot. No PyTorch, no network, nothing to be given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fozo.bench.collect import Group, Run, collect
from fozo.bench.experiment import Experiment, StreamPlan, Value
from fozo.bench.folder import disk_errors, write_json
from fozo.bench.recipe import Recipe, Row
from fozo.bench.report import page
from fozo.bench.run import Progress, run_experiment
from fozo.bench.tables import table_of
from fozo.bench.workshop import Places, Workshop
from fozo.core.files import atomic_write
from fozo.data import sample
from fozo.data.sets.base import ImageSet
from fozo.engines.base import Engine
from fozo.engines.graph_engine import thread_count
from fozo.methods.base import Method
from fozo.methods.registry import create, methods, takes

METHODS: dict[str, tuple[str, dict[str, Value]]] = {
    "NoAdapt": ("noadapt", {}),
    "LAME": ("lame", {}),
    "T3A": ("t3a", {}),
    "FOA": ("foa", {"passes": 2}),
    "FOZO (paper)": ("fozo", {"passes": 2, "preset": "paper"}),
    "FOZO (official)": ("fozo", {"passes": 2, "preset": "official"}),
    "FOZO": ("fozo", {}),
}
"""The rows of the demo. All that adapt prompts have the same two passes; FOZO itself makes one."""
BASELINE = "NoAdapt"

STREAM = StreamPlan(
    data="imagenet",  # meaning: clean images, corrupted as they are read
    kinds=("clean", "gaussian_noise", "motion_blur", "brightness", "fog", "contrast"),
    severity=3,
)
"""Corruptions that NumPy and Pillow can do alone, chosen by what they do to the model when nothing adapts: from little
to a lot, and never down to chance."""
IMAGES = 500


def rows(images: int) -> tuple[Row, ...]:
    """List the rows at a size."""
    stream = replace(STREAM, images=images)
    return tuple(Row(label, method, options, stream) for label, (method, options) in METHODS.items())


def recipe(images: int) -> Recipe:
    """Make the demo's recipe at a size."""
    return Recipe("demo", "Demo: Fashion-MNIST while the camera goes bad", rows(images))


class SampleWorkshop(Workshop):
    """Opens the bundled files."""

    def __init__(self, shelf: Path) -> None:
        super().__init__(Places(imagenet=str(sample.IMAGES)), shelf)

    def method(self, experiment: Experiment, engine: Engine, test: ImageSet) -> tuple[Method, str | None]:
        """Make a method with the statistics that come with the model."""
        name = experiment.method
        options: dict[str, Any] = dict(experiment.options)
        if takes(name, "seed"):
            options.setdefault("seed", experiment.seed)
        if not methods()[name].needs_source:
            return create(name, engine, None, **options), None
        source = sample.source(Path(experiment.model))
        return create(name, engine, source, **options), f"{source.images} images of the training set"


Watch = Callable[[str, str, Progress], None]
"""Told of the engine, the row, and how far it is."""


def run_demo(
    out: Path, *, images: int = IMAGES, seed: int = 0, command: str = "", watch: Watch = lambda *_: None
) -> list[Group]:
    """Run every row on both engines and write the page to ``out``; the first group is float32's, the second INT8's."""
    plan = recipe(images)
    with tempfile.TemporaryDirectory(prefix="fozo-demo-") as name:
        root = Path(name)
        write_json(root / "recipe.json", plan.describe())
        for engine, model in sample.MODELS.items():
            workshop = SampleWorkshop(root)  # one for each engine, so that memory holds one model at a time
            for experiment in plan.experiments(str(model), seeds=(seed,)):
                run_experiment(
                    experiment,
                    workshop,
                    root / experiment.folder,
                    threads=thread_count(None),
                    command=command,
                    watch=partial(watch, engine, experiment.label),
                )
        groups = collect(root)
        notes = zip(sample.MODELS, groups, verdict(groups), strict=True)
        groups = [
            replace(group, recipe=replace(plan, title=f"{plan.title}, {engine}", note=note))
            for engine, group, note in notes
        ]
        text = page(groups, [table_of(group) for group in groups])
    with disk_errors(out), atomic_write(out) as file:
        file.write(text.encode())
    return groups


def average(run: Run) -> float:
    """Mean accuracy over the domains, in percent."""
    return float(run.measures["average"])


def speed(run: Run) -> float:
    """Images a second, adaptation included."""
    return float(run.measures["images"]) / max(float(run.conditions["seconds"]), 1e-9)


def verdict(groups: Sequence[Group]) -> list[str]:
    """Put in words who won on each engine, from the numbers alone."""
    said = []
    for engine, group in zip(sample.MODELS, groups, strict=True):
        plain = group.first(BASELINE)
        best, second = sorted(group.runs, key=average, reverse=True)[:2]
        within = best.measures["average_interval"]
        lead = average(best) - average(second)
        unsure = ", less than the margin of error" if lead < (within["high"] - within["low"]) / 2 else ""
        changes = [f"{run.row.label} {average(run) - average(plain):+.1f}" for run in group.runs if run is not plain]
        said.append(
            f"{engine}: best on average is {best.row.label} with {average(best):.1f} % (95 % interval "
            f"{within['low']:.1f} to {within['high']:.1f}), {lead:.1f} points ahead of {second.row.label}{unsure}. "
            f"Points against {BASELINE}: {', '.join(changes)}."
        )
    float32, int8 = (group.first(BASELINE) for group in groups)
    said[-1] += (
        f" Without adaptation INT8 is {average(int8) - average(float32):+.1f} points from float32 and "
        f"{speed(int8) / speed(float32):.2f}x as fast on this processor."
    )
    return said


def show(groups: Sequence[Group], console: Console) -> None:
    """Print both engines' rows as one aligned table, and the verdict."""
    domains = list(groups[0].runs[0].measures["domains"])
    table = Table(title="Top-1 accuracy (%) on one continual stream", title_justify="left")
    table.add_column("engine")
    table.add_column("method", no_wrap=True)
    headings = [domain.partition("/")[0].partition("_")[0] for domain in domains]
    for column in ("passes", *headings, "mean", "images/s", "MiB"):
        table.add_column(column, justify="right", no_wrap=True)
    if not console.is_terminal:  # one line a row, whatever width the pipe claims to have
        console, table.box = Console(width=200, file=console.file), None
    for engine, group in zip(sample.MODELS, groups, strict=True):
        for run in group.runs:
            accuracies = [f"{run.measures['domains'][domain]:.1f}" for domain in domains]
            memory = f"{run.conditions['memory'] / 2**20:.0f}"
            passes = str(run.result["passes"])
            cells = (passes, *accuracies, f"{average(run):.1f}", f"{speed(run):.0f}", memory)
            table.add_row(engine, run.row.label, *cells, end_section=run is group.runs[-1])
    console.print(table)
    console.print("MiB: peak of the whole process so far, with what the rows before have loaded.", highlight=False)
    for group in groups:
        console.print(group.recipe.note, highlight=False, soft_wrap=not console.is_terminal)
