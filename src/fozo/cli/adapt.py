"""``fozo adapt``: adapt to a folder of images, and write what is on them."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fozo.cli.options import BatchSize, Model, read_options, read_value
from fozo.errors import FozoError
from fozo.loading import LoadOptions, load_engine

if TYPE_CHECKING:
    from fozo.cli.progress import Progress
    from fozo.data.sets.base import ImageSet
    from fozo.methods.registry import AnyMethod
    from fozo.types import Floats

TOP = 5


def adapt(
    model: Model,
    images: Annotated[Path, typer.Argument(help="Folder of images; they are seen in the order of their names.")],
    load: LoadOptions,
    stats: Annotated[Path | None, typer.Option(help="What fozo calibrate wrote.")] = None,
    clean: Annotated[
        Path | None, typer.Option(help="Folder of clean images to calibrate on now; EATA and PEA need it.")
    ] = None,
    method: Annotated[str, typer.Option(help="See fozo methods.")] = "align",
    preset: Annotated[str | None, typer.Option(help="Of the method: paper of fozo, say.")] = None,
    passes: Annotated[str | None, typer.Option(help="Forward passes; align also takes auto.")] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE of the method's config; give it again for more.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the method's draws.")] = 0,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the predictions.")] = Path("predictions.csv"),
    batch_size: BatchSize = 64,
) -> None:
    """Adapt to a folder of images and write their five likeliest classes with probabilities."""
    from fozo.bench.resources import needs
    from fozo.calibration import calibrate
    from fozo.cli.folder import open_unlabelled, read_batches
    from fozo.cli.progress import Progress
    from fozo.core.statistics import SourceStatistics
    from fozo.io import check_output
    from fozo.methods.base import NEEDS
    from fozo.methods.measured import MEASURED
    from fozo.methods.registry import create

    options: dict[str, Any] = {"seed": seed, "preset": preset, "batch_size": batch_size, **read_options(option or [])}
    if passes is not None:
        options["passes"] = read_value(passes)
    wanted = needs(method, options)
    for need in sorted(wanted & MEASURED.keys()):
        if clean is None:
            what = NEEDS[need].partition(";")[0]
            raise FozoError(f"{method} needs {what}; give a folder of them as --clean")
    if "source" in wanted and stats is None and clean is None:
        raise FozoError(f"{method} needs --stats (fozo calibrate makes them), or a folder of clean images as --clean")
    check_output(out)
    found = open_unlabelled(images)
    calm = None if clean is None else open_unlabelled(clean)
    engine = load_engine(model, load)
    with closing(Progress()) as progress:

        def batches() -> Iterator[Floats]:
            assert calm is not None
            for batch in read_batches(calm, engine, progress, "calibrating", batch_size=batch_size):
                yield batch.images

        if "source" in wanted:
            options["source"] = calibrate(engine, batches()) if stats is None else SourceStatistics.load(stats)
        options |= {need: MEASURED[need].measure(engine, batches()) for need in sorted(wanted & MEASURED.keys())}
        predict(create(method, engine, **options), found, out, progress, batch_size=batch_size)
    print(f"{out}: predictions of {len(found)} images by {method}")


def predict(method: AnyMethod, images: ImageSet, out: Path, progress: Progress, *, batch_size: int = 64) -> None:
    """Adapt to images in order, and write a line for each as soon as its batch is done: class and probability x 5.

    Whatever ends it early, the file holds whole lines. Classes are named where the model knows their names. The file is
    in UTF-8, but the name of an image that is not has there the bytes that it has on the disk.
    """
    import numpy as np

    from fozo.cli.folder import read_batches
    from fozo.io import open_output

    spec = method.engine.spec
    top = min(TOP, spec.classes)
    heads = ["image", *(f"{what}{place}" for place in range(1, top + 1) for what in ("class", "probability"))]
    done = 0
    with open_output(out) as file:
        _write(file, out, [heads])
        try:
            for batch in read_batches(images, method.engine, progress, "adapting", batch_size=batch_size):
                logits = method(batch.images).astype(np.float64)
                odds = np.exp(logits - logits.max(axis=1, keepdims=True))
                probabilities = odds / odds.sum(axis=1, keepdims=True)
                best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
                lines = []
                for index, classes, row in zip(batch.samples, best, probabilities, strict=True):
                    names = ((spec.labels[i] if spec.labels else int(i), f"{row[i]:.6f}") for i in classes)
                    lines.append([images.samples[int(index)].path, *chain.from_iterable(names)])
                _write(file, out, lines)
                done += len(lines)
        except KeyboardInterrupt:
            progress.close()
            print(f"fozo: {out} has the first {done} of {len(images)} predictions", file=sys.stderr)
            raise


def _write(file: io.FileIO, path: Path, rows: Sequence[Sequence[object]]) -> None:
    """Append lines, all or, where the disk is full, none."""
    from fozo.io import disk_errors

    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    data, end = text.getvalue().encode("utf-8", "surrogateescape"), file.tell()
    with disk_errors(path):
        try:
            if file.write(data) != len(data):
                raise OSError(0, "no space left on the disk")
        except BaseException:
            os.ftruncate(file.fileno(), end)
            raise
