"""Images as the commands read them, and the monitor's reference that is made from them.

Images of a folder; and frames of one, one that grows, a video file or a camera, for ``fozo watch`` and to calibrate on.
"""

import hashlib
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from fozo.cli.options import Progress
from fozo.core.descriptor import describe, spectra
from fozo.core.statistics import Statistics
from fozo.data import videos
from fozo.data.classes import match_classes
from fozo.data.images import Pixels, read_image
from fozo.data.inputs import open_clean, sized_pixels
from fozo.data.live import LiveFrames
from fozo.data.sets.base import ImageSet, Sample
from fozo.data.sets.folder import image_paths, imagenet_wnids, open_unlabelled
from fozo.data.streams import LabelledBatch, in_order
from fozo.errors import FozoError
from fozo.io import check_output, disk_errors, open_regular
from fozo.methods.registry import AnyMethod
from fozo.monitor import Change, Reference
from fozo.types import Array, Floats, Spec

VIDEO_HEAD = 1 << 20  # bytes of a video that its fingerprint is of, beside its length
POLL = 0.5  # seconds between two reads of a folder that grows
PATIENCE = 4  # tries of a file that cannot be read before it is left out: it may be half-written
NEAR = 0.5
FAR = 1.5
"""Deviations of clean images from which on others are far from these, and very far."""
NAMED = 0.1  # change of an amplitude's logarithm that is worth a word
CLEAN = 512  # images, at most, that a monitor's reference is made from: more take time and change little


@dataclass(frozen=True)
class Frame:
    """One picture of a camera."""

    name: str
    pixels: Pixels
    """``uint8 [height, width, 3]``."""
    time: float
    """When the file was written or the camera gave it, in seconds since 1970; of a video, seconds since it began."""


def compare(images: Floats, clean: Statistics, spec: Spec) -> str:
    """Say how far images are from clean ones, and what they look like."""
    of_images = spectra(*spec.image_shape)
    difference = describe(images).mean(axis=0, keepdims=True) - clean.descriptor.mean
    deviations = difference / np.maximum(clean.descriptor.std, 1e-6)
    distance = np.sqrt(max(0.0, float(np.square(deviations).mean()) - 1 / len(images)))
    seen = f"the last {len(images)} images are"
    if distance < NEAR:
        return f"{seen} like the clean ones"
    amplitudes = of_images.log_energies(difference)[0, of_images.brightness].mean(axis=0) / 2
    half = of_images.bands // 2  # the finest bands come first
    changes = (Change("contrast", amplitudes[half:].mean()), Change("fine detail", amplitudes[:half].mean()))
    words = [str(change) for change in changes if abs(change.amount) > NAMED]
    brightness = deviations[0, of_images.brightness].mean()
    if abs(brightness) > NEAR:
        words.append("brighter" if brightness > 0 else "darker")
    far = "far" if distance < FAR else "very far"
    return f"{seen} {far} from the clean ones ({distance:.1f} of their deviations): {', '.join(words) or 'in colour'}"


def frames(source: str, *, follow: bool = False) -> Iterator[Frame | None]:
    """Give frames of a folder, a video file or a camera in order; ``None`` where there is none yet.

    A camera is a number or an address. ``follow`` waits for more images in a folder, for ever.
    """
    path = Path(source)
    if path.is_dir():
        return _folder(path, follow)
    if follow:
        raise FozoError(f"{source} is not a folder; only a folder can be followed")
    if not videos.is_live(source) and not path.is_file():
        raise FozoError(f"there is no folder or video {source}; give one of these, or a camera's address or number")
    videos.opencv()  # said now if it is missing, and not after a model was loaded
    return _live(source) if videos.is_live(source) else _video(source)


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


def _live(source: str) -> Iterator[Frame | None]:
    with closing(LiveFrames(source)) as live:
        for number, frame in enumerate(live, start=1):
            yield None if frame is None else Frame(str(number), *frame)


TimedBatch: TypeAlias = tuple[LabelledBatch, Array]
"""A batch, and the times of its images in seconds: since 1970, or of a video since it began."""


class Recording(Protocol):
    """A stream of images from its first to its last: a folder or a video."""

    columns: tuple[str, ...]
    """What is said of each image beside its classes."""
    labelled: bool
    """Whether the labels of the batches are true."""
    fingerprint: str

    def __len__(self) -> int:
        """The number of images; of a video, what its file says."""

    def cells(self, index: int, time: float) -> list[object]:
        """The columns of an image."""

    def batches(self, spec: Spec, progress: Progress, batch_size: int, start: int) -> Iterator[TimedBatch]:
        """Read batches from number ``start`` on."""


class FolderRecording:
    """The images of a folder in the order of their names; the time of one is when its file was written."""

    columns: tuple[str, ...] = ("image",)

    def __init__(self, folder: Path, spec: Spec) -> None:
        images = open_unlabelled(folder)
        labelled = label_by_folder(images, spec)
        self.folder = folder
        self.fingerprint = images.fingerprint
        self.labelled: bool = labelled is not None
        self.images = labelled or images

    def __len__(self) -> int:
        return len(self.images)

    def cells(self, index: int, time: float) -> list[object]:
        return [self.images.samples[index].path]

    def batches(self, spec: Spec, progress: Progress, batch_size: int, start: int) -> Iterator[TimedBatch]:
        for batch in read_batches(self.images, spec, progress, "adapting", batch_size=batch_size, start=start):
            files = (self.folder / self.images.samples[index].path for index in batch.samples)
            yield batch, np.array([file.stat().st_mtime for file in files])


class VideoRecording:
    """The frames of a video, called by their numbers."""

    columns: tuple[str, ...] = ("image", "time")
    labelled: bool = False

    def __init__(self, file: Path) -> None:
        self.file = file
        self.frames = videos.frame_count(file)
        with open_regular(file) as stream:
            head = stream.read(VIDEO_HEAD)
        self.fingerprint = f"{file.stat().st_size} {hashlib.sha256(head).hexdigest()[:16]}"

    def __len__(self) -> int:
        return self.frames

    def cells(self, index: int, time: float) -> list[object]:
        return [index + 1, round(time, 3)]

    def batches(self, spec: Spec, progress: Progress, batch_size: int, start: int) -> Iterator[TimedBatch]:
        frames = islice(videos.video_frames(str(self.file)), start * batch_size, None)
        for index in count(start):
            batch = list(islice(frames, batch_size))
            if not batch:
                return
            images = spec.normalise(sized_pixels([pixels for pixels, _ in batch], spec))
            samples = index * batch_size + np.arange(len(batch))
            labels = np.zeros(len(batch), np.int64)
            times = np.array([time for _, time in batch])
            yield LabelledBatch(images, labels, "clean", index, False, samples), times
            progress("adapting", int(samples[-1]) + 1, len(self))


def open_recording(source: Path, spec: Spec) -> Recording:
    return VideoRecording(source) if source.is_file() else FolderRecording(source, spec)


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
    images: ImageSet, spec: Spec, progress: Progress, doing: str, *, batch_size: int = 64, start: int = 0
) -> Iterator[LabelledBatch]:
    """Read images in order, as the model takes them, from batch number ``start`` on.

    What cannot be read is left out, with a sentence: a batch may be empty.
    """
    show = partial(progress, doing)
    leave_out = partial(_leave_out, progress=progress)
    return in_order(images, spec, batch_size=batch_size, start=start, show=show, leave_out=leave_out)


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
        reference = Reference.collect(adapter, images, progress=progress, **options)
    with disk_errors(path):
        reference.save(path)
    print(f"fozo: {path} was made from {reference.clean.images} clean images", file=sys.stderr)


def _leave_out(error: FozoError, progress: Progress) -> None:
    progress.close()
    print(f"fozo: {error}; it is left out", file=sys.stderr)
