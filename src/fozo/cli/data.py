"""``fozo data check``: look an image set over."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer


def check(
    path: Annotated[Path, typer.Argument(help="A folder of images, or a WebDataset-like tar.", show_default=False)],
    layout: Annotated[str, typer.Option(help="What it is, where that cannot be seen from the folders.")] = "auto",
    labels: Annotated[Path | None, typer.Option(help="File of labels, for flat ImageNet validation files.")] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Decode every image: the only way to find every truncated file.")
    ] = False,
) -> None:
    """Say what an image set is, and which of its files are broken (then the exit code is 2)."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from fozo.cli.progress import Progress
    from fozo.data.check import check_image_set

    with closing(Progress()) as progress:
        report = check_image_set(path, layout, labels=labels, full=full, progress=partial(progress, "checking"))
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
