"""``fozo demo``: a camera goes bad, the bundled model is adapted, and every method is compared."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

from fozo.cli.options import Progress, command_line, open_console


def demo(
    out: Annotated[Path, "The page: timeline, tables, curves."] = Path("fozo-demo.html"),
    images: Annotated[int, "Images of each domain, up to 2000; the first part has 256."] = 300,
    seed: Annotated[int, "Of the order of the images and of the methods' draws."] = 0,
) -> None:
    """See a camera go bad and a monitor report it; then all forward-only methods, float32 and INT8."""
    from fozo.bench.report.render import write_page
    from fozo.cli.demo_run import SCRIPT, CameraRun, demo_page, print_methods, print_scenes, run_camera, run_methods
    from fozo.data import sample
    from fozo.data.sets import open_images
    from fozo.io import check_output, temporary_folder

    open_images(sample.IMAGES).take(images)  # refuses a bad number before the work begins
    check_output(out)
    console = open_console()
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
        groups = run_methods(folder, images=images, seed=seed, command=command_line(), show=progress)
        page = demo_page(camera, groups)
    write_page(out, page)
    print_methods(groups, console)
    print(f"Timeline, curves and conditions: {out}")
