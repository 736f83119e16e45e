"""A folder of one's own images, without labels: what ``calibrate``, ``quantise`` and ``adapt`` read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fozo.cli.progress import Progress
from fozo.data.scenarios import Continual
from fozo.data.sets.base import CLEAN, ImageSet
from fozo.data.sets.folder import open_unlabelled
from fozo.data.streams import LabelledBatch, Stream
from fozo.types import Engine

__all__ = ["open_unlabelled", "read_batches"]


def read_batches(
    images: ImageSet, engine: Engine, progress: Progress, doing: str, *, batch_size: int = 64
) -> Iterator[LabelledBatch]:
    """Read images in order, as the model takes them."""
    # The stream checks labels against the head; without labels there is nothing to check.
    spec = replace(engine.spec, classes=1, subset=None, labels=None)
    order = Continual(kinds=(CLEAN.kind,), shuffle=False)
    done = 0
    for batch in Stream(images, spec, order, batch_size=batch_size).batches():
        yield batch
        done += len(batch.samples)
        progress(doing, done, len(images))
