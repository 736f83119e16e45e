"""``fozo demo``: watch the bundled model being adapted."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page with tables and curves.")] = Path("fozo-demo.html"),
    images: Annotated[int, typer.Option(help="Images of each domain, up to 2000.")] = 500,
    seed: Annotated[int, typer.Option(help="Of the order of the images and of the methods' draws.")] = 0,
) -> None:
    """Watch the bundled model being adapted to the bundled images: all forward-only methods, float32 and INT8."""
    from rich.console import Console

    from fozo.bench.demo import print_table, run_demo
    from fozo.cli.progress import Progress

    command = shlex.join(["fozo", *sys.argv[1:]]).encode(errors="backslashreplace").decode()  # names need not be UTF-8
    with closing(Progress()) as progress:
        groups = run_demo(out, images=images, seed=seed, command=command, show=progress)
    print_table(groups, Console())
    print(f"Curves and conditions: {out}")
