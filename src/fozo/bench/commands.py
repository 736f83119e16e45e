"""The commands ``fozo bench``, ``calibrate``, ``quantise``, ``adapt``, ``report``: options in, sentences out."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fozo.errors import FozoError

if TYPE_CHECKING:
    from fozo.bench.pool import Finished, Job
    from fozo.bench.recipe import Recipe
    from fozo.bench.run import Progress, Watcher
    from fozo.bench.workshop import Places

ModelArgument = Annotated[str, typer.Argument(help="Weights file, or timm:NAME with its full tag.")]
ModelOption = Annotated[str | None, typer.Option(help="Weights file, or timm:NAME with its full tag.")]
Folder = Annotated[str | None, typer.Option(show_default=False)]
Architecture = Annotated[
    str | None, typer.Option(help="The model's timm name, where its file is called otherwise.", show_default=False)
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...", show_default=False)]
ScalesOption = Annotated[
    Path | None, typer.Option("--scales", help="What fozo quantise wrote, to run the model quantised.")
]


def bench(
    name: Annotated[str, typer.Argument(help="list, a recipe's name, or a .toml file of your own.")],
    model: ModelOption = None,
    imagenet: Annotated[
        str | None, typer.Option(help="Clean images; corrupted on the fly without --imagenet-c.", show_default=False)
    ] = None,
    imagenet_c: Folder = None,
    imagenet_r: Folder = None,
    imagenet_sketch: Folder = None,
    imagenet_v2: Folder = None,
    image_list: Annotated[
        str | None, typer.Option(help="RobustBench's list of images to stream.", show_default=False)
    ] = None,
    images: Annotated[int | None, typer.Option(help="Images of each domain, instead of the recipe's.")] = None,
    severity: Annotated[int | None, typer.Option(help="1 to 5, instead of the recipe's.")] = None,
    passes: Annotated[int | None, typer.Option(help="Forward passes of rows that name them.")] = None,
    calibration: Annotated[int | None, typer.Option(help="Clean images for source statistics.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds joined by commas.")] = "0",
    methods: Annotated[str | None, typer.Option(help="Only these methods, joined by commas.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only the row of this label; give it again for more.", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results; unfinished ones are continued.")] = Path("runs"),
    workers: Annotated[int, typer.Option(help="Processes.")] = 1,
    threads: Annotated[int | None, typer.Option(help="Threads of each; by default all cores shared.")] = None,
    executor: Annotated[str, typer.Option(help="local, or ray for a cluster, whose nodes share --out.")] = "local",
    address: Annotated[str | None, typer.Option(help="Of the Ray cluster.", show_default=False)] = None,
    architecture: Architecture = None,
    device: Device = None,
) -> None:
    """Run a table or figure of the paper by name; `fozo bench list` shows them."""
    from fozo.bench.recipe import load_recipe

    if name == "list":
        _list()
        return
    recipe = load_recipe(name) if passes is None else load_recipe(name).at_passes(passes)
    if model is None:
        raise FozoError(f"which model? Give --model with a weights file or timm:NAME (see: fozo bench {name} --help)")
    from fozo.bench.pool import share_of_cores
    from fozo.bench.workshop import Places

    if executor not in ("local", "ray"):
        raise FozoError(f"--executor is {executor!r}; give local or ray")
    if executor == "ray" and workers != 1:
        raise FozoError(f"--workers is {workers}, but with Ray the cluster decides how many; give --threads for each")
    if executor == "local" and address is not None:
        raise FozoError("--address is of a Ray cluster; give --executor ray with it")
    if threads is None:
        threads = 1 if executor == "ray" else share_of_cores(max(1, workers))
    if threads < 1:
        raise FozoError(f"threads is {threads}; give a whole number from 1 up")
    places = Places(
        imagenet, imagenet_c, imagenet_r, imagenet_sketch, imagenet_v2, image_list, architecture, device, threads
    )  # fmt: skip
    changes: dict[str, Any] = {"images": images, "severity": severity}
    experiments = recipe.experiments(
        model,
        seeds=_numbers(seeds),
        methods=methods.split(",") if methods else None,
        labels=only or None,
        calibration=calibration,
        **{key: value for key, value in changes.items() if value is not None},
    )
    jobs = _jobs(recipe, list(experiments), places, out, threads)
    if executor == "ray":
        from fozo.bench.ray_executor import run_jobs as on_ray

        _run(recipe, out, lambda finished, _: on_ray(jobs, address=address, finished=finished))
    else:
        from fozo.bench.pool import run_jobs

        _run(recipe, out, lambda finished, watch: run_jobs(jobs, workers=workers, finished=finished, watch=watch))


def _list() -> None:
    from rich.console import Console
    from rich.table import Table

    from fozo.bench.recipe import AVERAGE, load_recipe, names

    table = Table("recipe", "what", "rows", "cost at full size", "the paper's FOZO")
    for name in names():
        recipe = load_recipe(name)
        ours = [row for row in recipe.rows if row.method == "fozo" and row.paper]
        numbers = [row.paper.get(row.column, row.paper.get(AVERAGE, max(row.paper.values()))) for row in ours]
        best = f"{max(numbers):.1f} %" if numbers else "-"
        table.add_row(name, recipe.title, str(len(recipe.rows)), recipe.cost, best)
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError as error:
        raise FozoError(f"--seeds is {text!r}; give whole numbers joined by commas, such as 0,1,2") from error


def _jobs(recipe: Recipe, experiments: list[Any], places: Places, out: Path, threads: int) -> list[Job]:
    """Decide where each experiment's images come from, and leave out those of sets that are not here."""
    from dataclasses import replace

    from fozo.bench.pool import Job

    command = shlex.join(["fozo", *sys.argv[1:]])
    jobs = []
    absent = []
    for experiment in experiments:
        plan = experiment.stream
        if plan.data == "imagenet-c" and places.imagenet_c is None:
            plan = replace(plan, data="imagenet")
        if plan.data not in ("imagenet", "imagenet-c") and getattr(places, plan.data.replace("-", "_")) is None:
            absent.append(plan.data)
            continue
        folder = str(out / recipe.name)
        jobs.append(Job(replace(experiment, stream=plan), places, folder, threads, command))
    for data in dict.fromkeys(absent):
        print(f"fozo: leaving out {data}, because --{data} is not given", file=sys.stderr)
    if not jobs:
        raise FozoError(f"{recipe.name} has nothing to run without --{absent[0]} DIR")
    return jobs


def _run(recipe: Recipe, out: Path, execute: Callable[[Finished, Callable[[Job], Watcher]], None]) -> None:
    """Run a recipe's jobs, however ``execute`` does that, and say each result in a line."""
    from fozo.bench.folder import locked, write_json

    line = Line()

    def finished(job: Job, result: dict[str, Any]) -> None:
        measures = result["measures"]
        within = measures["average_interval"]
        line.clear()
        print(
            f"{recipe.name} {job.experiment.label} seed {job.experiment.seed}: {measures['average']:.2f} % "
            f"({within['low']:.2f}-{within['high']:.2f}), {measures['images']} images",
            flush=True,
        )

    with locked(out / recipe.name):
        write_json(out / recipe.name / "recipe.json", recipe.describe())
        try:
            execute(finished, line.watch)
        except KeyboardInterrupt as interrupt:
            line.clear()
            print("fozo: interrupted; the same command goes on where it stopped", file=sys.stderr)
            raise typer.Exit(130) from interrupt
        finally:
            line.clear()


class Line:
    """One line on a terminal that is written over and over; nothing at all into a pipe."""

    def __init__(self) -> None:
        self.shown = False
        self.last = 0.0

    def watch(self, job: Job) -> Callable[[Progress], None]:
        """Make the watcher of a job."""

        def show(progress: Progress) -> None:
            now = time.monotonic()
            if not sys.stderr.isatty() or now - self.last < 0.1:
                return
            self.last, self.shown = now, True
            speed = progress.seen / max(progress.seconds, 1e-9)
            left = (progress.total - progress.images) / max(speed, 1e-9)
            print(
                f"\r\x1b[K{job.experiment.label} seed {job.experiment.seed}: "
                f"{100 * progress.correct / progress.images:.1f} % of {progress.images}/{progress.total} images, "
                f"{speed:.1f} images/s, {duration(left)} left",
                end="",
                file=sys.stderr,
                flush=True,
            )

        return show

    def clear(self) -> None:
        """Wipe the line."""
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self.shown = False


def duration(seconds: float) -> str:
    """Say a duration as people do: 40 s, 12 min, 3.4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page with tables and curves.")] = Path("fozo-demo.html"),
    images: Annotated[int, typer.Option(help="Images of each domain, up to 2000.")] = 500,
    seed: Annotated[int, typer.Option(help="Of the order of the images and of the methods' draws.")] = 0,
) -> None:
    """Watch the bundled model being adapted to the bundled images: all forward-only methods, float32 and INT8."""
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn
    from rich.progress import Progress as Bars

    from fozo.bench.demo import run_demo, show

    bars = Bars(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"),
        console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty(),
    )  # fmt: skip
    tasks: dict[tuple[str, str], TaskID] = {}

    def watch(engine: str, label: str, progress: Progress) -> None:
        key = (engine, label)
        if key not in tasks:
            tasks[key] = bars.add_task(f"{engine} {label}", total=progress.total, now="")
        now = f"{100 * progress.correct / progress.images:.1f} %"
        bars.update(tasks[key], completed=progress.images, now=now)

    command = shlex.join(["fozo", *sys.argv[1:]])
    with bars:
        groups = run_demo(out, images=images, seed=seed, command=command, watch=watch)
    show(groups, Console())
    print(f"Curves and conditions: {out}")


def calibrate(
    model: ModelArgument,
    images: Annotated[Path, typer.Argument(help="Folder of clean images, with or without sub-folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the statistics.")] = Path("stats.npz"),
    architecture: Architecture = None,
    device: Device = None,
    scales: ScalesOption = None,
    batch_size: int = 64,
) -> None:
    """Measure a model's source statistics on clean images; a few hundred are enough."""
    from fozo.bench.adapt import calibrate as measure
    from fozo.bench.adapt import open_unlabelled
    from fozo.bench.folder import disk_errors
    from fozo.bench.workshop import Places, load_model
    from fozo.cli import progress_bar

    found = open_unlabelled(images)
    engine = load_model(model, Places(architecture=architecture, device=device), scales=scales)
    with progress_bar("calibrating") as progress:
        statistics = measure(engine, found, batch_size=batch_size, watch=progress)
    with disk_errors(out):
        statistics.save(out)
    print(f"{out}: statistics of {engine.spec.name} over {statistics.images} images")


def adapt(
    model: ModelArgument,
    images: Annotated[Path, typer.Argument(help="Folder of images; they are seen in the order of their names.")],
    stats: Annotated[Path | None, typer.Option(help="What fozo calibrate wrote.", show_default=False)] = None,
    method: Annotated[str, typer.Option(help="See fozo methods.")] = "fozo",
    passes: Annotated[int | None, typer.Option(help="Forward passes, for fozo, foa and zoa.")] = None,
    seed: Annotated[int, typer.Option(help="Of the method's draws.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the predictions.")] = Path("predictions.csv"),
    architecture: Architecture = None,
    device: Device = None,
    scales: ScalesOption = None,
    batch_size: int = 64,
) -> None:
    """Adapt to a folder of images and write their five likeliest classes with probabilities."""
    from fozo.bench.adapt import adapt as predict
    from fozo.bench.adapt import open_unlabelled
    from fozo.bench.workshop import Places, load_model
    from fozo.cli import progress_bar
    from fozo.core.statistics import SourceStatistics
    from fozo.methods.registry import create, takes
    from fozo.methods.registry import methods as registered

    found = open_unlabelled(images)
    if method in registered() and registered()[method].needs_source and stats is None:
        raise FozoError(f"{method} needs --stats; make them on clean images with: fozo calibrate MODEL IMAGES")
    source = None if stats is None else SourceStatistics.load(stats)
    engine = load_model(model, Places(architecture=architecture, device=device), scales=scales)
    options: dict[str, Any] = {} if passes is None else {"passes": passes}
    if method in registered() and takes(method, "seed"):
        options["seed"] = seed
    made = create(method, engine, source, **options)
    with progress_bar("adapting") as progress:
        predict(made, found, out, batch_size=batch_size, watch=progress)
    print(f"{out}: predictions of {len(found)} images by {method}")


def quantise(
    model: ModelArgument,
    images: Annotated[Path, typer.Argument(help="Folder of clean images, with or without sub-folders.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the scales.")] = Path("scales.npz"),
    bits: Annotated[int, typer.Option(help="8, 6 or 4, for weights and activations.")] = 8,
    metric: Annotated[str, typer.Option(help="hessian, l2 or cosine.")] = "hessian",
    count: Annotated[int, typer.Option(help="Images to search on, drawn at random (always the same).")] = 32,
    architecture: Architecture = None,
    device: Device = None,
) -> None:
    """Search PTQ4ViT's scales on a few clean images, for --scales of calibrate and adapt."""
    from fozo.bench.adapt import load_images, open_unlabelled
    from fozo.bench.folder import disk_errors
    from fozo.bench.workshop import Places, load_model
    from fozo.cli import progress_bar
    from fozo.quant import ptq4vit

    if not out.parent.is_dir():  # said before the work, not after it
        raise FozoError(f"there is no folder {out.parent} to write {out.name} to; make it first")
    if count < 1:
        raise FozoError(f"count is {count}; give a whole number from 1 up")
    found = open_unlabelled(images)
    engine = load_model(model, Places(architecture=architecture, device=device))
    pixels = load_images(engine, found.take(min(count, len(found))))
    with progress_bar("quantising") as progress:
        scales = ptq4vit(engine, pixels, bits, metric=metric, progress=progress).scales
    with disk_errors(out):
        scales.save(out)
    print(f"{out}: {bits}-bit scales of {engine.spec.name} over {scales.images} images")


def report(
    runs: Annotated[Path, typer.Argument(help="Folder that fozo bench wrote.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page; tables are written beside it.")] = Path(
        "report.html"
    ),
) -> None:
    """Write the results as one HTML page, and as Markdown, CSV and LaTeX tables beside it."""
    from fozo.bench.report import write_report

    if not runs.is_dir():
        raise FozoError(f"{runs} is no folder; give the folder that was fozo bench's --out")
    print(", ".join(map(str, write_report(runs, out))))
