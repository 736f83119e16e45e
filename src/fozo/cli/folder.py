"""A folder of one's own images, without labels: what ``calibrate``, ``quantise`` and ``adapt`` read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from fozo.cli.progress import Progress
from fozo.data.classes import match_classes
from fozo.data.images import EXTENSIONS
from fozo.data.scenarios import Continual
from fozo.data.sets.base import CLEAN, FolderStore, ImageSet, Sample, ready_size
from fozo.data.sets.imagenet import imagenet_wnids
from fozo.data.streams import LabelledBatch, Stream
from fozo.errors import FozoError
from fozo.types import Engine, Spec


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


def label_by_folder(images: ImageSet, spec: Spec) -> ImageSet | None:
    """Label the images by the folders that they lie in, where all of these are classes of the model; else ``None``.

    Folders may mean anything, days or cameras say; only if each is called like a class are they taken for classes, and
    bare numbers are not. A model of ImageNet's 1000 classes whose file names none has the usual order.
    """
    folders = [sample.path.partition("/")[0] if "/" in sample.path else "" for sample in images.samples]
    names = tuple(sorted(set(folders)))
    ids = imagenet_wnids()
    known = spec.labels or (ids if spec.classes == len(ids) else ())
    if "" in names or not known or (all(map(str.isdecimal, names)) and not set(names) <= set(known)):
        return None
    if spec.labels is None and not set(names) <= set(known):
        return None
    classes = names if spec.labels else ids
    places = {name: place for place, name in enumerate(classes)}
    samples = tuple(Sample(s.path, places[name]) for s, name in zip(images.samples, folders, strict=True))
    named = replace(images, name="folder", samples=samples, classes=classes)
    try:
        return match_classes(named, spec)
    except FozoError:
        return None


def read_batches(
    images: ImageSet, engine: Engine, progress: Progress, doing: str, *, batch_size: int = 64, start: int = 0
) -> Iterator[LabelledBatch]:
    """Read images in order, as the model takes them, from batch number ``start`` on."""
    # The stream checks labels against the head; without labels there is nothing to check.
    spec = replace(engine.spec, classes=len(images.classes), subset=images.mask, labels=None)
    order = Continual(kinds=(CLEAN.kind,), shuffle=False)
    done = start * batch_size
    for batch in Stream(images, spec, order, batch_size=batch_size).batches(start):
        yield batch
        done += len(batch.samples)
        progress(doing, done, len(images))
