"""The ``fozo`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from fozo.errors import FozoError

app = typer.Typer(
    help="Keep a deployed Vision Transformer accurate while its data drifts, with forward passes only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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

    table = Table("method", "passes", "adapts", "gradients", "source statistics", "paper")
    for info in registered().values():
        table.add_row(
            info.name,
            info.passes,
            info.adapts,
            "yes" if info.needs_gradient else "no",
            "yes" if info.needs_source else "no",
            info.paper,
        )
    Console().print(table)


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
    from rich.console import Console
    from rich.progress import Progress

    from fozo.data.corrupt_tree import corrupt_tree, parse_kinds, parse_severities

    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("corrupting", total=None)
        outcome = corrupt_tree(
            images,
            out,
            kinds=parse_kinds(kinds),
            severities=parse_severities(severity),
            size=size,
            seed=seed,
            workers=workers,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    print(f"{out}: {outcome.written} files written, {outcome.skipped} were there already")
    for sentence in outcome.unreadable:
        print(f"fozo: {sentence}", file=sys.stderr)
    if outcome.unreadable:
        print(f"fozo: {len(outcome.unreadable)} images could not be read; the rest is done", file=sys.stderr)
        raise typer.Exit(2)


def main() -> None:
    """Run the command line; a :class:`FozoError` becomes one line on stderr and exit code 2."""
    try:
        app()
    except FozoError as error:
        print(f"fozo: {error}", file=sys.stderr)
        sys.exit(2)
