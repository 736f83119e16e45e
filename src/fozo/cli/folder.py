"""A folder of one's own images, without labels: what ``calibrate``, ``quantise`` and ``adapt`` read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fozo.cli.progress import Progress
from fozo.data.images import EXTENSIONS
from fozo.data.scenarios import Continual
from fozo.data.sets.base import CLEAN, FolderStore, ImageSet, Sample, ready_size
from fozo.data.streams import LabelledBatch, Stream
from fozo.errors import FozoError
from fozo.types import Engine


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
