"""``fozo bench``: the paper's tables and figures, and users' own recipes; ``fozo report``: a page of what they gave."""

from __future__ import annotations

import logging
import sys
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fozo.cli.options import Progress, command_line, open_console
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError, check_counts
from fozo.io.system import usable_cpus

if TYPE_CHECKING:
    from fozo.bench.store import Run


def bench(
    name: Annotated[str, "list, a recipe's name, or a .toml file of your own."],
    load: LoadOptions,
    model: Annotated[
        str | None, "Weights file, .onnx file, folder of transformers' save_pretrained, or timm:NAME."
    ] = None,
    data: Annotated[
        list[str] | None,
        "NAME=DIR of a data set: imagenet (clean images), imagenet-c, ...; again for more.",
    ] = None,
    image_list: Annotated[str | None, "RobustBench's list of images to stream."] = None,
    pixels: Annotated[str | None, "Folder to keep corrupted images in, for all rows."] = None,
    images: Annotated[int | None, "Images of each domain, instead of the recipe's."] = None,
    severity: Annotated[int | None, "1 to 5, instead of the recipe's."] = None,
    calibration: Annotated[int | None, "Clean images for source statistics."] = None,
    seeds: Annotated[str, "Seeds joined by commas."] = "0",
    method: Annotated[
        list[str] | None, "Add a row of this method, or of those in a file of yours (mine.py); again for more."
    ] = None,
    methods: Annotated[str | None, "Only rows of these methods, joined by commas."] = None,
    only: Annotated[list[str] | None, "Only the row of this label; give it again for more."] = None,
    column: Annotated[list[str] | None, "Only the rows of this column; again for more."] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results; unfinished ones are continued.")] = Path("runs"),
    workers: Annotated[int, "Processes; --threads are of each."] = 1,
    ray: Annotated[bool, typer.Option("--ray", help="Run on the Ray cluster of RAY_ADDRESS.")] = False,
) -> None:
    """Run a table or figure of the paper by name; `fozo bench list` shows them."""
    logging.getLogger("fozo.models").setLevel(logging.WARNING)  # every row would say what was found in the model
    if name == "list":
        _list()
        return
    from fozo.bench.plan import Experiment, Setting, find_methods, load_recipe
    from fozo.bench.published import beside_paper, estimate
    from fozo.bench.resources import Paths, quiet, read_folders
    from fozo.bench.run import Setup, run_one
    from fozo.bench.store import Store
    from fozo.cluster import run
    from fozo.io import FolderInUse, locked

    added = find_methods(method or ())
    recipe = load_recipe(name).with_methods(added)
    if model is None:
        raise FozoError(f"which model? Give --model with a weights file or timm:NAME (see: fozo bench {name} --help)")
    check_counts(workers=workers)
    threads = load.threads
    if threads is None:
        threads = 1 if ray else max(1, usable_cpus() // workers)
    check_counts(threads=threads)
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in seeds.split(",")))
    except ValueError as error:
        raise FozoError(f"--seeds is {seeds!r}; give whole numbers joined by commas, such as 0,1,2") from error
    paths = Paths(read_folders(data or ()), image_list, pixels)
    setting = Setting(model, images, severity, calibration, stored=paths.folder("imagenet-c") is not None)
    experiments: dict[str, Experiment] = {}  # by hash: two rows may come to the same
    absent: dict[str, None] = {}
    for experiment in recipe.experiments(
        setting,
        seeds=numbers,
        methods=methods.split(",") if methods else (),
        labels=only or (),
        columns=column or (),
    ):
        experiment.configuration()  # a bad option is refused now, not when its turn comes
        images_of = experiment.stream.data
        if images_of not in ("clean", "imagenet-c") and paths.folder(images_of) is None:
            absent[images_of] = None
        else:
            experiments.setdefault(experiment.hash, experiment)
    for missing in absent:
        print(f"fozo: leaving out {missing}, because --data {missing}=DIR is not given", file=sys.stderr)
    if not experiments:
        raise FozoError(f"{recipe.name} has nothing to run without --data {next(iter(absent))}=DIR")
    folder = out / recipe.name
    files = tuple(str(Path(file).resolve()) for file in method or () if file.endswith(".py"))
    setup = Setup(str(folder), paths, replace(load, threads=threads), command_line(), files)
    if cost := estimate(experiments.values()):
        print(f"fozo: {cost}", file=sys.stderr)
    runs: list[Run] = []
    with locked(folder, wait=True):  # while the rows are listed: each of them has a lock of its own
        Store(folder).write(recipe)
    with closing(Progress()) as progress:
        in_this = workers == 1 and not ray
        work = partial(run_one, setup=setup, show=progress if in_this else quiet)
        processes = None if in_this else min(workers, len(experiments))
        try:
            for experiment, result in run(work, experiments.values(), workers=processes, ray=ray, cpus=threads):
                progress.close()
                if isinstance(result, FolderInUse):
                    what = f"{experiment.name} seed {experiment.seed}"
                    print(f"fozo: {what} is left to the process that is running it", file=sys.stderr)
                elif isinstance(result, Exception):
                    raise result
                else:
                    runs.append(result)
                    print(f"{recipe.name} {_sentence(result)}", flush=True)
        except KeyboardInterrupt:
            progress.close()
            print("fozo: the same command goes on where this one stops", file=sys.stderr)
            raise
    for line in beside_paper(runs):
        print(line)


def _sentence(run: Run) -> str:
    measures = run.measures
    interval = measures.average_interval
    accuracy = f"{measures.average:.2f} % ({interval.low:.2f}-{interval.high:.2f})"
    return f"{run.experiment.name} seed {run.experiment.seed}: {accuracy}, {measures.images} images"


def _list() -> None:
    from rich.table import Table

    from fozo.bench.plan import load_recipe, names

    table = Table("recipe", "what", "rows", "cost at full size")
    for name in names():
        recipe = load_recipe(name)
        table.add_row(name, recipe.title, str(len(recipe.rows)), recipe.passes)
    open_console().print(table)


def report(
    runs: Annotated[list[Path], "Folders of fozo bench, or one .jsonl of fozo watch --events."],
    out: Annotated[Path, "The page; tables are written beside it."] = Path("report.html"),
) -> None:
    """Write the results as one HTML page, and those of fozo bench as Markdown, CSV and LaTeX tables beside it."""
    from fozo.bench.report.page import write_report, write_timeline

    if not out.name or out.is_dir():
        raise FozoError(f"{out} is a folder; give the name of a page to write, such as report.html")
    first, *more = runs
    if first.is_file() and not more:
        print(write_timeline(first, out))
        return
    for folder in runs:
        if not folder.is_dir():
            raise FozoError(f"{folder} is not a folder; give fozo bench's --out, or what fozo watch --events wrote")
    written, stale = write_report(first, out, *more)
    for path in stale:
        print(f"fozo: {path} is left out: its recipe has no such row or options any more", file=sys.stderr)
    print(", ".join(map(str, written)))
