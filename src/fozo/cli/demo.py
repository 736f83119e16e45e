"""``fozo demo``: a camera goes bad, the bundled model is adapted, and every method is compared."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from fozo.cli.demo_camera import CameraRun


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="The page: timeline, pictures, tables, curves.")] = Path(
        "fozo-demo.html"
    ),
    images: Annotated[int, typer.Option(help="Images of each domain, up to 2000; the first part has 256.")] = 300,
    seed: Annotated[int, typer.Option(help="Of the order of the images and of the methods' draws.")] = 0,
) -> None:
    """See a camera go bad and a monitor report it; then all forward-only methods, float32 and INT8."""
    from rich.console import Console

    from fozo.bench.report.render import write_page
    from fozo.cli.demo_camera import SCRIPT, CameraRun, run_camera
    from fozo.cli.demo_methods import compare_engines, print_methods, run_methods
    from fozo.cli.demo_page import demo_page
    from fozo.cli.progress import Progress
    from fozo.data import sample
    from fozo.data.sets import open_images
    from fozo.io import check_output, temporary_folder

    open_images(sample.IMAGES).take(images)  # refuses a bad number before the work begins
    check_output(out)
    command = shlex.join(["fozo", *sys.argv[1:]]).encode(errors="backslashreplace").decode()  # names need not be UTF-8
    console = Console()
    if not console.is_terminal:  # one line a row, whatever width the pipe claims to have
        console = Console(width=200)
    if not Progress.quiet:
        console.print(f"A camera goes bad, {' -> '.join(kind.replace('_', ' ') for kind in SCRIPT)}:", highlight=False)
    steps = []
    for step in run_camera(images, seed):
        steps.append(step)
        for event in step.events if not Progress.quiet else ():
            text = f"  image {step.images:,}, the monitor: {event.name}: {event.text}"
            console.print(text, highlight=False, markup=False, soft_wrap=True)
    camera = CameraRun(steps)
    print_scenes(camera, console)
    with closing(Progress()) as progress, temporary_folder(out) as folder:
        groups = run_methods(folder, images=images, seed=seed, command=command, show=progress)
        page = demo_page(camera, groups, compare_engines(groups))
    write_page(out, page)
    print_methods(groups, console)
    print(f"Timeline, pictures, curves and conditions: {out}")


def print_scenes(camera: CameraRun, console: Console) -> None:
    from rich.table import Table

    from fozo.bench.report.tables import full_name
    from fozo.cli.demo_camera import HEADINGS, SEVERITY

    table = Table(title=f"Scene by scene, accuracy (%), corruptions of severity {SEVERITY}", title_justify="left")
    if not console.is_terminal:
        table.box = None
    table.add_column("scene", no_wrap=True)
    for column in HEADINGS:
        table.add_column(column, justify="right", no_wrap=True)
    for scene in camera.scenes:
        table.add_row(full_name(scene.domain), *scene.cells)
    console.print(table)
    console.print(camera.summary, highlight=False, soft_wrap=not console.is_terminal)
