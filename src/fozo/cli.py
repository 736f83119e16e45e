"""The ``fozo`` command."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fozo.bench import commands
from fozo.errors import FozoError

app = typer.Typer(
    help="Keep a deployed Vision Transformer accurate while its data drifts, with forward passes only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

data = typer.Typer(help="Look at image sets.", no_args_is_help=True)
app.add_typer(data, name="data")
for _command in (
    commands.demo,
    commands.bench,
    commands.report,
    commands.calibrate,
    commands.quantise,
    commands.adapt,
):
    app.command()(_command)


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    """Keep a deployed Vision Transformer accurate while its data drifts, with forward passes only."""
    if version:
        from fozo import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.command()
def methods() -> None:
    """List the adaptation methods."""
    from rich.console import Console
    from rich.table import Table

    from fozo.methods.registry import methods as registered

    console = Console()
    table = Table("method", "passes", "adapts", "gradients", "source statistics", "paper")
    if not console.is_terminal:  # one line a method, whatever width the pipe claims to have
        console, table.box = Console(width=200), None
    for info in registered().values():
        table.add_row(
            info.name,
            info.passes,
            info.adapts,
            "yes" if info.needs_gradient else "no",
            "yes" if info.needs_source else "no",
            info.paper,
        )
    console.print(table)


@app.command()
def corrupt(
    images: Annotated[Path, typer.Argument(help="Folder that holds a folder of images for each class.")],
    out: Annotated[Path, typer.Argument(help="Folder for the result; an unfinished one is continued.")],
    kinds: Annotated[str, typer.Option(help="all (15), all+extra (19), or names joined by commas.")] = "all",
    severity: Annotated[str, typer.Option(help="5, or 1-5, or 1,3,5.")] = "5",
    size: Annotated[int, typer.Option(help="Side of the images in pixels.")] = 224,
    seed: Annotated[int, typer.Option(help="Changes every random draw.")] = 0,
    workers: Annotated[int | None, typer.Option(help="Processes; by default one for each core.")] = None,
) -> None:
    """Make an ImageNet-C-shaped tree OUT/kind/severity/class/file.JPEG from clean images."""
    from fozo.data.corrupt_tree import corrupt_tree, parse_kinds, parse_severities

    with progress_bar("corrupting") as progress:
        outcome = corrupt_tree(
            images,
            out,
            kinds=parse_kinds(kinds),
            severities=parse_severities(severity),
            size=size,
            seed=seed,
            workers=workers,
            progress=progress,
        )
    print(f"{out}: {outcome.written} files written, {outcome.skipped} were there already")
    for sentence in outcome.unreadable:
        print(f"fozo: {sentence}", file=sys.stderr)
    if outcome.unreadable:
        print(f"fozo: {len(outcome.unreadable)} images could not be read; the rest is done", file=sys.stderr)
        raise typer.Exit(2)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="A file of weights with timm's names.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", help="The .onnx file to write.", show_default=False)],
    architecture: Annotated[
        str | None, typer.Option(help="The timm name with its tag; by default the file's own name.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads, where they are not width / 64.")] = None,
    image_size: Annotated[int | None, typer.Option(help="Run the model at another size.")] = None,
    mean: Annotated[float | None, typer.Option(help="Mean of the pixels, where the name does not tell.")] = None,
    std: Annotated[float | None, typer.Option(help="Standard deviation of the pixels, likewise.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Text file with a class name in each line.")] = None,
    int8: Annotated[str | None, typer.Option(help="dynamic, or static (needs --calibration).")] = None,
    calibration: Annotated[Path | None, typer.Option(help="Folder of clean images for static INT8.")] = None,
) -> None:
    """Write a model as ONNX, to be adapted without PyTorch and never exported again."""
    from fozo.engines import export as exporter
    from fozo.engines.load import load_engine

    if labels is not None and not labels.is_file():
        raise FozoError(f"there is no file {labels}; give a text file with a class name in each line")
    names = None if labels is None else labels.read_text(encoding="utf-8").splitlines()
    engine = load_engine(model, architecture=architecture, heads=heads, image_size=image_size, mean=mean, std=std)
    spec = exporter.export(engine, out, int8=int8, calibration=calibration, labels=names)
    print(f"{out}: {spec.name}, {spec.classes} classes, {out.stat().st_size / 1e6:.1f} MB, {spec.fingerprint}")


@data.command()
def check(
    path: Annotated[Path, typer.Argument(help="A folder of images, or a WebDataset-like tar.", show_default=False)],
    layout: Annotated[str, typer.Option(help="What it is, where that cannot be seen from the folders.")] = "auto",
    labels: Annotated[
        Path | None, typer.Option(help="File of labels, for flat ImageNet validation files.", show_default=False)
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Decode every image: the only way to find every truncated file.")
    ] = False,
) -> None:
    """Say what an image set is, and which of its files are broken (then the exit code is 2)."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fozo.data.check import check_images

    with progress_bar("checking") as progress:
        report = check_images(path, layout, labels=labels, full=full, progress=progress)
    console = Console()
    if console.is_terminal:
        table = Table(show_header=False)
        for name, value in report.rows():
            table.add_row(Text(name), Text(value))  # a file name may hold brackets, which are not markup
        console.print(table)
    else:
        for name, value in report.rows():
            print(f"{name}: {value}")
    if report.broken:
        raise typer.Exit(2)


@contextmanager
def progress_bar(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, but only once the work has lasted two seconds."""
    from rich.console import Console
    from rich.progress import Progress

    bar = Progress(console=Console(stderr=True), transient=True)
    task = bar.add_task(doing, total=None)
    began = time.monotonic()

    def update(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if bar.console.is_terminal and not bar.live.is_started and time.monotonic() - began > 2:
            bar.start()

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()


def main() -> None:
    """Run the command line; a :class:`FozoError` becomes one line on stderr and exit code 2."""
    try:
        app()
    except FozoError as error:
        print(f"fozo: {error}", file=sys.stderr)
        sys.exit(2)
