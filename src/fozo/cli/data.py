"""Commands on folders of images: ``fozo corrupt`` makes an ImageNet-C of them, ``fozo data check`` inspects a set."""

import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import Progress


def corrupt(
    images: Annotated[Path, "Folder that holds a folder of images for each class."],
    out: Annotated[Path, "Folder for the result; an unfinished one is continued."],
    kinds: Annotated[str, "all (15), all+extra (19), unseen (22 others), or names joined by commas."] = "all",
    severity: Annotated[str, "5, or 1-5, or 1,3,5."] = "5",
    size: Annotated[int, "Side of the images in pixels."] = 224,
    seed: Annotated[int, "Changes every random draw."] = 0,
    workers: Annotated[int | None, "Processes; by default one for each core."] = None,
) -> None:
    """Make an ImageNet-C-shaped tree OUT/kind/severity/class/file.JPEG from clean images."""
    from fozo.data.corrupt_tree import corrupt_tree, parse_kinds, parse_severities

    with closing(Progress()) as progress:
        outcome = corrupt_tree(
            images, out, kinds=parse_kinds(kinds), severities=parse_severities(severity), size=size, seed=seed,
            workers=workers, progress=partial(progress, "corrupting"),
        )  # fmt: skip
    print(f"{out}: {outcome.written} files written, {outcome.skipped} were there already")
    for sentence in outcome.unreadable:
        print(f"fozo: {sentence}", file=sys.stderr)
    if outcome.unreadable:
        print(f"fozo: {len(outcome.unreadable)} images could not be read; the rest is done", file=sys.stderr)
        raise typer.Exit(2)


def check(
    path: Annotated[Path, "A folder of images, or an .npz of them."],
    layout: Annotated[str, "What it is, where that cannot be seen from the folders."] = "auto",
    full: Annotated[
        bool, typer.Option("--full", help="Decode every image: the only way to find every truncated file.")
    ] = False,
) -> None:
    """Say what an image set is, and which of its files are broken (then the exit code is 2)."""
    from fozo.data.sets import check_image_set

    with closing(Progress()) as progress:
        report = check_image_set(path, layout, full=full, progress=partial(progress, "checking"))
    print("\n".join(report.lines))
    if report.broken:
        raise typer.Exit(2)
