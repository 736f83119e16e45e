"""Folders of images as the commands read them, and the monitor's reference that is made from one."""

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from fozo.cli.progress import Progress
from fozo.data.classes import match_classes
from fozo.data.images import Pixels
from fozo.data.sets import open_images
from fozo.data.sets.base import ImageSet, Sample
from fozo.data.sets.folder import open_unlabelled
from fozo.data.sets.imagenet import imagenet_wnids
from fozo.data.streams import LabelledBatch, in_order
from fozo.errors import FozoError
from fozo.io import check_output, disk_errors
from fozo.methods.registry import AnyMethod
from fozo.monitor import MonitorReference
from fozo.types import Engine, Spec

CLEAN = 512  # images, at most, that a monitor's reference is made from: more take time and change little


def label_by_folder(images: ImageSet, spec: Spec) -> ImageSet | None:
    """Label the images by the folders that they lie in, where all of these are classes of the model; else ``None``.

    Folders may be days or cameras: only if each is called like a class are they classes, and bare numbers are not.
    Folders that are all named by WordNet ids of ImageNet are classes of any model of 1000, in ImageNet's order.
    """
    folders = [sample.path.partition("/")[0] if "/" in sample.path else "" for sample in images.samples]
    names = tuple(sorted(set(folders)))
    ids = imagenet_wnids()
    by_id = spec.classes == len(ids) and set(names) <= set(ids)
    known = ids if by_id else spec.labels or ()
    if "" in names or not known or (all(map(str.isdecimal, names)) and not set(names) <= set(known)):
        return None
    classes = ids if by_id else names
    labels = {name: label for label, name in enumerate(classes)}
    samples = tuple(Sample(s.path, labels[name]) for s, name in zip(images.samples, folders, strict=True))
    named = replace(images, name="folder", samples=samples, classes=classes)
    try:
        return match_classes(named, spec)
    except FozoError:
        return None


def read_batches(
    images: ImageSet, engine: Engine, progress: Progress, doing: str, *, batch_size: int = 64, start: int = 0
) -> Iterator[LabelledBatch]:
    """Read images in order, as the model takes them, from batch number ``start`` on.

    What cannot be read is left out, with a sentence: a batch may be empty.
    """
    leave_out, show = partial(_leave_out, progress=progress), partial(progress, doing)
    return in_order(images, engine.spec, batch_size=batch_size, start=start, show=show, leave_out=leave_out)


def make_reference(adapter: AnyMethod, clean: Path | Pixels, path: Path, sample: int | None = None) -> None:
    """Make the monitor's reference from clean images; the classes of a folder are used if it has them."""
    check_output(path)
    try:
        images = clean if isinstance(clean, np.ndarray) else open_images(clean)
    except FozoError:  # no set of classes: then a folder of images
        images = open_unlabelled(cast("Path", clean))
    if isinstance(images, ImageSet) and len(images) > CLEAN:
        images = images.take(CLEAN)
    given: dict[str, Any] = {} if sample is None else {"sample": sample}
    with closing(Progress()) as progress:
        made = MonitorReference.collect(adapter, images, progress=progress, **given)
    with disk_errors(path):
        made.save(path)
    print(f"fozo: {path} was made from {made.clean.images} clean images", file=sys.stderr)


def _leave_out(error: FozoError, progress: Progress) -> None:
    progress.close()
    print(f"fozo: {error}; it is left out", file=sys.stderr)
