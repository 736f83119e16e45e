"""``fozo demo``: watch a camera go bad, and the bundled model being adapted to it."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page: timeline, pictures, tables, curves.")] = Path(
        "fozo-demo.html"
    ),
    images: Annotated[int, typer.Option(help="Images of each domain, up to 2000; the film has 256 at most.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the order of the images and of the methods' draws.")] = 0,
) -> None:
    """Watch a camera go bad and a monitor say so; then all forward-only methods side by side, float32 and INT8."""
    from rich.console import Console

    from fozo.cli.demo_run import print_table, print_verdicts, run_demo
    from fozo.cli.progress import Progress
    from fozo.cli.screen import Screen

    command = shlex.join(["fozo", *sys.argv[1:]]).encode(errors="backslashreplace").decode()  # names need not be UTF-8
    console = Console()
    with closing(Progress()) as progress, Screen(console, quiet=Progress.quiet) as screen:
        _, groups = run_demo(
            out, images=images, seed=seed, command=command, watch=screen, ended=screen.end, show=progress
        )
    print_table(groups, console)
    print_verdicts(groups, console)
    print(f"Timeline, pictures, curves and conditions: {out}")
