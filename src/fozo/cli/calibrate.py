"""``fozo calibrate``: source statistics of a model on clean images."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import BatchSize, Clean, Model, load_model
from fozo.engines.load import LoadOptions


def calibrate(
    model: Model,
    images: Clean,
    load: LoadOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the statistics.")] = Path("stats.npz"),
    blend: Annotated[
        Path | None,
        typer.Option(
            help="Statistics of many mixed images: IMAGES are a few clean ones of your own camera.", metavar="STATS"
        ),
    ] = None,
    monitor: Annotated[
        Path | None,
        typer.Option(help="Also make fozo watch's reference from IMAGES; with class folders, it expects accuracy."),
    ] = None,
    batch_size: BatchSize = 64,
) -> None:
    """Measure a model's source statistics on clean images: a few hundred mixed ones, or --blend 50 of your own."""
    from fozo.cli.folder import open_unlabelled, read_batches
    from fozo.cli.progress import Progress
    from fozo.cli.reference import make_reference
    from fozo.core.statistics import SourceStatistics
    from fozo.io import check_output, disk_errors
    from fozo.public import adapter as make_adapter
    from fozo.public import calibrate as measure

    check_output(out)  # said before the work, not after it
    if monitor is not None:
        check_output(monitor)
    found = open_unlabelled(images)
    engine = load_model(model, load)
    mixed = None if blend is None else SourceStatistics.load(blend)
    if mixed is not None:
        mixed.check(engine.spec.fingerprint, engine.spec.name)  # before the images are read, not after
    with closing(Progress()) as progress:
        batches = read_batches(found, engine, progress, "calibrating", batch_size=batch_size)
        statistics = measure(engine, (batch.images for batch in batches))
    images_seen = f"{statistics.images} images"
    if mixed is not None:
        statistics = mixed.blend(statistics)
        images_seen = f"{images_seen} of its own, blended into those of {mixed.images} mixed ones"
    with disk_errors(out):
        statistics.save(out)
    print(f"{out}: statistics of {engine.spec.name} over {images_seen}")
    if monitor is not None:
        make_reference(make_adapter(engine, statistics), images, monitor)
