"""``fozo quantise``: PTQ4ViT's scales of a model, found on a few clean images."""

from __future__ import annotations

from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fozo.cli.options import Clean, Model, load_model
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError


def quantise(
    model: Model,
    images: Clean,
    load: LoadOptions,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the scales.")] = Path("scales.npz"),
    bits: Annotated[int, typer.Option(help="8, 6 or 4, for weights and activations.")] = 8,
    metric: Annotated[str, typer.Option(help="hessian, l2 or cosine.")] = "hessian",
    count: Annotated[int, typer.Option(help="Images to search on, drawn at random (always the same).")] = 32,
) -> None:
    """Search PTQ4ViT's scales on a few clean images, for --scales of the other commands."""
    import numpy as np

    from fozo.cli.folder import open_unlabelled, read_batches
    from fozo.cli.progress import Progress
    from fozo.io import check_output, disk_errors
    from fozo.quant import ptq4vit

    check_output(out)  # said before the work, not after it
    if count < 1:
        raise FozoError(f"count is {count}; give a whole number from 1 up")
    found = open_unlabelled(images)
    engine = load_model(model, load)
    with closing(Progress()) as progress:
        few = read_batches(found.take(min(count, len(found))), engine, progress, "reading")
        pixels = np.concatenate([batch.images for batch in few])
        scales = ptq4vit(engine, pixels, bits, metric=metric, progress=partial(progress, "quantising")).scales
    with disk_errors(out):
        scales.save(out)
    print(f"{out}: {bits}-bit scales of {engine.spec.name} over {scales.images} images")
