"""``fozo corrupt``: an ImageNet-C of your images."""

from __future__ import annotations

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer


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
    from fozo.cli.progress import Progress
    from fozo.data.corrupt_tree import corrupt_tree, parse_kinds, parse_severities

    with closing(Progress()) as progress:
        outcome = corrupt_tree(
            images,
            out,
            kinds=parse_kinds(kinds),
            severities=parse_severities(severity),
            size=size,
            seed=seed,
            workers=workers,
            progress=partial(progress, "corrupting"),
        )
    print(f"{out}: {outcome.written} files written, {outcome.skipped} were there already")
    for sentence in outcome.unreadable:
        print(f"fozo: {sentence}", file=sys.stderr)
    if outcome.unreadable:
        print(f"fozo: {len(outcome.unreadable)} images could not be read; the rest is done", file=sys.stderr)
        raise typer.Exit(2)
