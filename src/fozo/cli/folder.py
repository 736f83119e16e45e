"""Images as the commands read them, and the monitor's reference that is made from them.

Images of a folder; and frames of one, one that grows, a video file or a camera, for ``fozo watch`` and to calibrate on.
"""

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fozo.cli.options import Progress
from fozo.data import videos
from fozo.data.classes import match_classes
from fozo.data.images import Pixels, read_image
from fozo.data.inputs import open_clean
from fozo.data.sets.base import ImageSet, Sample
from fozo.data.sets.folder import image_paths, imagenet_wnids
from fozo.data.streams import LabelledBatch, in_order
from fozo.errors import FozoError
from fozo.io import check_output, disk_errors
from fozo.methods.registry import AnyMethod
from fozo.monitor import MonitorReference
from fozo.types import Engine, Spec

POLL = 0.5  # seconds between two reads of a folder that grows
PATIENCE = 4  # tries of a file that cannot be read before it is left out: it may be half-written
CLEAN = 512  # images, at most, that a monitor's reference is made from: more take time and change little


@dataclass(frozen=True)
class Frame:
    """One picture of a camera."""

    name: str
    pixels: Pixels
    """``uint8 [height, width, 3]``."""
    time: float
    """When the file was written or the camera gave it, in seconds since 1970; of a video, seconds since it began."""


def frames(source: str, *, follow: bool = False) -> Iterator[Frame | None]:
    """Give frames of a folder, a video file or the number of a camera in order; ``None`` where there is none yet.

    ``follow`` waits for more images in a folder, for ever.
    """
    path = Path(source)
    if path.is_dir():
        return _folder(path, follow)
    if follow:
        raise FozoError(f"{source} is not a folder; only a folder can be followed")
    if not source.isdecimal() and not path.is_file():
        raise FozoError(f"there is no folder or video {source}; give one of these, or the number of a camera")
    return _video(source)


def clean_frames(video: Path, first: str | None, spec: Spec) -> Pixels:
    """Read clean frames of a video at the model's size, evenly spaced, of all of it or of its ``first`` 60s or 5min."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|)", first or "")
    if first is not None and (match is None or not float(match[1])):
        raise FozoError(f"--first is {first!r}; give how long the video is clean, such as 60s or 5min")
    until = float(match[1]) * {"min": 60, "h": 3600}.get(match[2], 1) if match else float("inf")
    return videos.clean_frames(video, spec, until)


def _folder(root: Path, follow: bool) -> Iterator[Frame | None]:
    done: set[str] = set()
    failed = Counter[str]()
    while True:
        for name in sorted(set(image_paths(root, empty=follow)) - done):
            try:
                yield Frame(name, read_image(root / name), (root / name).stat().st_mtime)
            except (FozoError, OSError) as error:
                failed[name] += 1
                if follow and failed[name] < PATIENCE:
                    continue
                print(f"fozo: {error}; it is left out", file=sys.stderr)
            done.add(name)
        if not follow:
            return
        yield None
        time.sleep(POLL)


def _video(source: str) -> Iterator[Frame]:
    for number, (pixels, at) in enumerate(videos.video_frames(source), start=1):
        yield Frame(str(number), pixels, at)


def label_by_folder(images: ImageSet, spec: Spec) -> ImageSet | None:
    """Label the images by the folders that they lie in, where all of these are classes of the model; else ``None``.

    Folders may be days or cameras: only if each is called like a class are they classes, and bare numbers are not.
    Folders that are all named by WordNet ids of ImageNet are classes of any model of 1000, in ImageNet's order.
    """
    folders = [sample.path.partition("/")[0] if "/" in sample.path else "" for sample in images.samples]
    classes = tuple(sorted(set(folders)))
    known = spec.labels or ()
    ids = imagenet_wnids()
    if spec.classes == len(ids) and set(classes) <= set(ids):
        classes = known = ids
    numbers = all(map(str.isdecimal, classes)) and not set(classes) <= set(known)
    if "" in classes or not known or numbers:
        return None
    labels = {name: label for label, name in enumerate(classes)}
    samples = tuple(Sample(s.path, labels[name]) for s, name in zip(images.samples, folders, strict=True))
    try:
        return match_classes(replace(images, name="folder", samples=samples, classes=classes), spec)
    except FozoError:
        return None


def read_batches(
    images: ImageSet, engine: Engine, progress: Progress, doing: str, *, batch_size: int = 64, start: int = 0
) -> Iterator[LabelledBatch]:
    """Read images in order, as the model takes them, from batch number ``start`` on.

    What cannot be read is left out, with a sentence: a batch may be empty.
    """
    show = partial(progress, doing)
    leave_out = partial(_leave_out, progress=progress)
    return in_order(images, engine.spec, batch_size=batch_size, start=start, show=show, leave_out=leave_out)


def make_reference(
    adapter: AnyMethod, clean: Path | Pixels, path: Path, sample: int | None = None, corruptions: bool = True
) -> None:
    """Make the monitor's reference from clean images; the classes of a folder are used if it has them."""
    check_output(path)
    images = clean if isinstance(clean, np.ndarray) else open_clean(clean, adapter.engine.spec, labelled=True)
    if isinstance(images, ImageSet) and len(images) > CLEAN:
        images = images.take(CLEAN)
    options: dict[str, Any] = {} if sample is None else {"sample": sample}
    options["corruptions"] = corruptions
    with closing(Progress()) as progress:
        reference = MonitorReference.collect(adapter, images, progress=progress, **options)
    with disk_errors(path):
        reference.save(path)
    print(f"fozo: {path} was made from {reference.clean.images} clean images", file=sys.stderr)


def _leave_out(error: FozoError, progress: Progress) -> None:
    progress.close()
    print(f"fozo: {error}; it is left out", file=sys.stderr)
