"""Adapting to a folder of one's own images, without labels: what ``fozo calibrate`` and ``fozo adapt`` do."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from fozo.bench.folder import disk_errors
from fozo.core.files import atomic_write
from fozo.core.statistics import SourceStatistics
from fozo.data.images import EXTENSIONS
from fozo.data.scenarios import Continual
from fozo.data.sets.base import CLEAN, FolderStore, ImageSet, Sample, ready_size
from fozo.data.streams import Batch, Stream
from fozo.engines.base import Engine, Floats
from fozo.errors import FozoError
from fozo.methods.base import Method

TOP = 5
Watch = Callable[[int, int], None]


def open_unlabelled(root: Path) -> ImageSet:
    """List every image below a folder, in the order of their names; folders mean nothing."""
    if not root.is_dir():
        raise FozoError(f"{root} is no folder; give a folder of images")
    paths = sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.suffix.lower() in EXTENSIONS and not path.name.startswith(".") and path.is_file()
    )
    if not paths:
        raise FozoError(f"{root} holds no images ({', '.join(EXTENSIONS)}); check the path")
    images = ImageSet("unlabelled", tuple(Sample(path, 0) for path in paths), ("",), FolderStore({CLEAN: root}))
    return replace(images, size=ready_size(images))


def _batches(images: ImageSet, engine: Engine, batch_size: int, watch: Watch) -> Iterator[Batch]:
    # The stream checks labels against the head; without labels there is nothing to check.
    spec = replace(engine.spec, classes=1, subset=None)
    stream = Stream(images, spec, Continual(kinds=(CLEAN.kind,), shuffle=False), batch_size=batch_size)
    done = 0
    for batch in stream.batches():
        yield batch
        done += len(batch.samples)
        watch(done, len(images))


def load_images(engine: Engine, images: ImageSet) -> Floats:
    """Load and normalise all images at once."""
    return np.concatenate([batch.images for batch in _batches(images, engine, 64, lambda done, total: None)])


def calibrate(
    engine: Engine, images: ImageSet, *, batch_size: int = 64, watch: Watch = lambda done, total: None
) -> SourceStatistics:
    """Measure the source statistics of a model on clean images."""
    return SourceStatistics.collect(engine, (batch.images for batch in _batches(images, engine, batch_size, watch)))


def adapt(
    method: Method, images: ImageSet, out: Path, *, batch_size: int = 64, watch: Watch = lambda done, total: None
) -> None:
    """Adapt to a folder's images in order, and write the predictions as CSV: image, then class and probability x 5."""
    top = min(TOP, method.engine.spec.classes)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", *(f"{what}{place}" for place in range(1, top + 1) for what in ("class", "probability"))])
    for batch in _batches(images, method.engine, batch_size, watch):
        logits = method(batch.images).astype(np.float64)
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = odds / odds.sum(axis=1, keepdims=True)
        best = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        for index, classes, row in zip(batch.samples, best, probabilities, strict=True):
            pairs = [value for label in classes for value in (int(label), f"{row[label]:.6f}")]
            writer.writerow([images.samples[int(index)].path, *pairs])
    with disk_errors(out), atomic_write(out) as stream:
        stream.write(text.getvalue().encode())
