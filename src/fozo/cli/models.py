"""``fozo calibrate``, ``quantise`` and ``export``: what is made of a model once; and ``methods``, which lists them."""

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import BatchSize, Clean, Model, Progress, load_model, open_console
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError, check_counts

VIDEO = "Folder of clean images, with or without sub-folders; or a video."
SAMPLE = "Images that --reference degrades in each of 90 ways, to tell what a drift resembles: 24 by default."
CORRUPTIONS = "Whether --reference degrades images; without, it does not tell what a drift resembles."
BLEND = "Statistics of many mixed images: IMAGES are a few clean ones of your own camera."


def calibrate(
    model: Model,
    images: Annotated[Path, VIDEO],
    load: LoadOptions,
    out: Annotated[Path, "File for the statistics."] = Path("statistics.safetensors"),
    blend: Annotated[Path | None, typer.Option(help=BLEND, metavar="STATISTICS")] = None,
    reference: Annotated[
        Path | None, "Also make fozo watch's reference from IMAGES; with class folders, it expects accuracy."
    ] = None,
    sample: Annotated[int | None, SAMPLE] = None,
    corruptions: Annotated[bool, typer.Option("--corruptions/--no-corruptions", help=CORRUPTIONS)] = True,
    first: Annotated[str | None, "Of a video, the part that is clean: 60s, 5min; all by default."] = None,
    batch_size: BatchSize = 64,
) -> None:
    """Measure a model's source statistics on clean images: a few dozen of your own camera, or a few hundred mixed."""
    from fozo.cli.folder import clean_frames, make_reference, read_batches
    from fozo.core.statistics import Statistics
    from fozo.data.sets.folder import open_unlabelled
    from fozo.data.videos import opencv
    from fozo.io import check_output, disk_errors
    from fozo.public import adapter as make_adapter
    from fozo.public import calibrate as measure

    for path in filter(None, (out, reference)):
        check_output(path)  # said before the work, not after it
    if reference is not None and corruptions:
        opencv("a reference of corruptions needs OpenCV; pip install 'fozo[bench]', or give --no-corruptions")
    folder = None if images.is_file() else open_unlabelled(images)
    if folder is None:
        opencv()
    if first is not None and folder:
        raise FozoError(f"--first is for a video, and {images} is not one; leave it out")
    engine = load_model(model, load)
    frames = None if folder else clean_frames(images, first, engine.spec)
    mixed = None if blend is None else Statistics.load(blend)
    if mixed is not None:
        mixed.check(engine.spec.fingerprint, engine.spec.name)  # before the images are read, not after
    with closing(Progress()) as progress:
        batches = read_batches(folder, engine.spec, progress, "calibrating", batch_size=batch_size) if folder else ()
        statistics = measure(engine, (batch.images for batch in batches if len(batch.samples)) if folder else frames)
    images_seen = f"{statistics.images} images"
    if mixed is not None:
        statistics = mixed.blend(statistics)
        images_seen = f"{images_seen} of its own, blended into those of {mixed.images} mixed ones"
    with disk_errors(out):
        statistics.save(out)
    print(f"{out}: statistics of {engine.spec.name} over {images_seen}")
    if reference is not None:
        made_of = images if frames is None else frames
        make_reference(make_adapter(engine, statistics), made_of, reference, sample, corruptions)


def quantise(
    model: Model,
    images: Clean,
    load: LoadOptions,
    out: Annotated[Path, "File for the scales."] = Path("scales.safetensors"),
    bits: Annotated[int, "8, 6 or 4, for weights and activations."] = 8,
    metric: Annotated[str, "hessian, l2 or cosine."] = "hessian",
    count: Annotated[int, "Images to search on, drawn at random (always the same)."] = 32,
) -> None:
    """Search PTQ4ViT's scales on a few clean images, for --scales of the other commands."""
    import numpy as np

    from fozo.cli.folder import read_batches
    from fozo.data.sets.folder import open_unlabelled
    from fozo.io import check_output, disk_errors
    from fozo.quant import ptq4vit

    check_output(out)  # said before the work, not after it
    check_counts(count=count)
    clean = open_unlabelled(images)
    engine = load_model(model, load)
    with closing(Progress()) as progress:
        few = read_batches(clean.take(min(count, len(clean))), engine.spec, progress, "reading")
        pixels = np.concatenate([batch.images for batch in few])
        scales = ptq4vit(engine, pixels, bits, metric=metric, progress=partial(progress, "quantising")).scales
    with disk_errors(out):
        scales.save(out)
    print(f"{out}: {bits}-bit scales of {engine.spec.name} over {scales.images} images")


def export(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .onnx file to write.", show_default=False)],
    load: LoadOptions,
    int8: Annotated[str | None, "dynamic, or static (needs --calibration)."] = None,
    calibration: Annotated[Path | None, "Folder of clean images for static INT8."] = None,
) -> None:
    """Write a model as ONNX, to be adapted without PyTorch and never exported again."""
    from fozo.public import export as write

    spec = write(load_model(model, load), out, int8=int8, calibration=calibration)
    named = " by name" if spec.labels else ""
    print(f"{out}: {spec.name}, {spec.classes} classes{named}, {out.stat().st_size / 1e6:.1f} MB, {spec.fingerprint}")


def methods() -> None:
    """List the adaptation methods."""
    from rich.table import Table

    from fozo.methods.registry import list_methods

    console = open_console()
    table = Table("method", "passes", "adapts", "needs", "paper")
    if not console.is_terminal:
        table.box = None
    for info in list_methods().values():
        table.add_row(info.name, info.passes, info.adapts, ", ".join(sorted(info.needs)) or "-", info.paper)
    console.print(table)
