"""Streams: a set of images under a scenario, as an ordered, seeded, resumable sequence of batches.

Batch i is a function of the image list, the scenario and the seed alone, in every process.
A :class:`DomainSource` gives the pixels of any image under any domain, at the model's size: stored corrupted
(ImageNet-C), or stored clean and corrupted as they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import islice
from math import prod
from pathlib import Path, PurePosixPath
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from fozo.core.noise import check_seed
from fozo.data.classes import match_classes
from fozo.data.corruptions import ALL_KINDS, corrupt, frost_source
from fozo.data.images import Pixels, Size, covered, fit, luminance, resize_crop, sides
from fozo.data.scenarios import SCENARIOS, Continual, Positions, Scenario
from fozo.data.sets.base import CLEAN, Domain, ImageSet
from fozo.errors import FozoError, check_counts
from fozo.io import atomic_write, unreadable
from fozo.io.system import usable_cpus
from fozo.types import Spec

AHEAD = 2  # batches kept ready or in the making while the model works


@dataclass(frozen=True)
class LabelledBatch:
    """The input of a method, and the labels that it is scored on."""

    images: npt.NDArray[np.float32]
    """``[B, channels, height, width]``, normalised for the model."""
    labels: npt.NDArray[np.int64]
    """``[B]``: the right columns of the model's logits."""
    domain: str
    """``gaussian_noise/5``, ``clean``, or ``mixed``."""
    index: int
    """Position in the stream."""
    reset: bool
    """Whether the method is to be reset before this batch."""
    samples: npt.NDArray[np.int64]
    """``[B]``: which images of the set these are."""
    left_out: tuple[int, ...] = ()
    """Images of the set that would be in this batch if they could be read."""


class Stream:
    """Ordered, seeded batches.

    Examples:
        >>> stream = fozo.Stream(images, engine.spec, "continual", batch_size=32)
        >>> first = next(stream.batches())
        >>> len(stream), first.domain, first.images.shape, first.labels.shape
        (15, 'gaussian_noise/5', (32, 1, 28, 28), (32,))

    Args:
        source: an image set (stored corrupted, or clean and then corrupted on the fly with seed 0), or any
            :class:`DomainSource`.
        spec: the model's image size, mean and std.
        scenario: a :class:`~fozo.data.scenarios.Scenario`, or the name of one with its default values.
        batch_size: images in a batch; the last one of a segment may have fewer.
        seed: decides the order of the images.
        workers: threads that decode; by default as many as the processors that this process may use.
        leave_out: called with the reason for each image that cannot be read, which its batch, then smaller or even
            empty, goes without; by default such an image is an error.
    """

    def __init__(
        self,
        source: ImageSet | DomainSource,
        spec: Spec,
        scenario: Scenario | str = "continual",
        *,
        batch_size: int = 64,
        seed: int = 0,
        workers: int | None = None,
        leave_out: Callable[[FozoError], None] | None = None,
    ) -> None:
        if isinstance(scenario, str):
            if scenario not in SCENARIOS:
                raise FozoError(f"there is no scenario {scenario!r}; choose from {', '.join(SCENARIOS)}")
            scenario = SCENARIOS[scenario]()
        workers = usable_cpus() if workers is None else workers
        check_counts(batch_size=batch_size, workers=workers)
        check_seed(seed)
        if spec.channels not in (1, 3):
            raise FozoError(f"{spec.name} reads images of {spec.channels} channels; streams make gray or RGB images")
        if isinstance(source, ImageSet):
            kind = StoredImages if source.corrupted else Corrupting
            source = kind(source, spec.image_size, channels=spec.channels)
        if isinstance(source, (StoredImages, Corrupting)):
            source = replace(source, images=match_classes(source.images, spec))
        self.source = source
        self.spec = spec
        self.scenario = scenario
        self.batch_size = batch_size
        self.seed = seed
        self.workers = workers
        self.leave_out = leave_out
        # Each pixel's value normalised, [channels, 256]: looking pixels up gives the same bits, several times faster.
        ramp = np.repeat(np.arange(256, dtype=np.uint8).reshape(1, 1, 256, 1), spec.channels, axis=3)
        self._table = replace(spec, image_size=(1, 256)).normalise(ramp).reshape(spec.channels, 256)
        self.segments = scenario.segments()
        self._used = tuple(dict.fromkeys(domain for segment in self.segments for domain in segment.domains))
        self._check()
        # Batches before each segment: how a batch number is found without visiting those before it.
        counts = [-(-len(segment.domains) * len(source.images) // batch_size) for segment in self.segments]
        self._starts = [0, *np.cumsum(counts).tolist()]

    def _check(self) -> None:
        images = self.source.images
        spec = self.spec
        if images.mask is not None and images.mask != spec.subset:
            raise FozoError(
                f"the labels of {images.name} mean {len(images.mask)} of the model's outputs; restrict the head "
                f"to them with load_engine(..., classes=images.mask)"
            )
        if spec.classes and len(images.classes) != spec.classes:  # a black box may not know yet
            raise FozoError(
                f"the {images.name} set has {len(images.classes)} classes and {spec.name} has {spec.classes}; open the "
                f"set with classes= in the order of the outputs, or name the outputs with labels= when loading it"
            )
        offered = self.source.domains
        absent = [domain for domain in self._used if domain not in offered]
        if absent:
            kinds = ", ".join(dict.fromkeys(domain.kind for domain in offered))
            levels = ", ".join(str(level) for level in sorted({domain.severity for domain in offered}))
            needs = f"the {self.scenario.name} scenario needs {absent[0].name}"
            raise FozoError(f"{needs}, which this {images.name} set lacks; it has {kinds} at severities {levels}")

    def __len__(self) -> int:
        return int(self._starts[-1])

    def _order(self, number: int) -> Positions:
        """The order of segment ``number``: position p is image ``p % n`` of its domain ``p // n``."""
        labels = np.tile(self.source.images.labels, len(self.segments[number].domains))
        return self.scenario.order(labels, self.seed, number)

    @cached_property
    def _hashes(self) -> tuple[str, str]:
        images = self.source.images
        order = hashlib.sha256()
        for number in range(len(self.segments)):
            order.update(self._order(number).astype("<i8").tobytes())
        if images.corrupted:
            images = replace(images, domains=tuple(domain for domain in images.domains if domain in self._used))
        return images.fingerprint, order.hexdigest()[:16]

    def describe(self) -> dict[str, object]:
        """All that the batches depend on, as JSON values."""
        images = self.source.images
        height, width = self.spec.image_size
        content, order = self._hashes
        return {
            "images": {"layout": images.name, "count": len(images), "hash": content},
            "scenario": {"name": self.scenario.name, **asdict(self.scenario), "kinds": list(self.scenario.kinds)},
            "order": order,
            "seed": self.seed,
            "batch_size": self.batch_size,
            "batches": len(self),
            **self.source.describe(self._used),
            "size": height if height == width else [height, width],
            "mean": list(self.spec.mean or ()),
            "std": list(self.spec.std or ()),
        }

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of :meth:`describe`; equal fingerprints mean equal batches."""
        return hashlib.sha256(json.dumps(self.describe(), sort_keys=True).encode()).hexdigest()[:12]

    def batches(self, start: int = 0) -> Generator[LabelledBatch, None, None]:
        """Yield the batches from number ``start`` on; those before are skipped without reading an image.

        Decoding runs ahead in threads, which closing the iterator ends. An unreadable image raises at its own batch.
        """
        if not 0 <= start <= len(self):
            raise FozoError(f"the stream has {len(self)} batches; start={start} is not from 0 to {len(self)}")
        return self._prefetched(start)

    def _prefetched(self, start: int) -> Generator[LabelledBatch, None, None]:
        pool = ThreadPoolExecutor(self.workers, thread_name_prefix="fozo-stream")
        pending: deque[tuple[LabelledBatch, list[Future[FozoError | None]]]] = deque()
        plans = self._plans(start)
        try:
            while True:
                for batch, wanted in islice(plans, 1 + AHEAD - len(pending)):
                    jobs = [pool.submit(self._fill, batch.images, slot, *image) for slot, image in enumerate(wanted)]
                    pending.append((batch, jobs))
                if not pending:
                    return
                batch, jobs = pending.popleft()
                yield self._without(batch, [job.result() for job in jobs])
        finally:
            # What is queued is dropped; what is running ends within one image's time.
            pool.shutdown(wait=True, cancel_futures=True)

    def _without(self, batch: LabelledBatch, errors: list[FozoError | None]) -> LabelledBatch:
        """Leave out the images that could not be read, or raise the first error."""
        for error in filter(None, errors):
            if self.leave_out is None:
                raise error
            self.leave_out(error)
        readable = np.array([error is None for error in errors], dtype=bool)
        if readable.all():
            return batch
        return replace(
            batch,
            images=batch.images[readable],
            labels=batch.labels[readable],
            samples=batch.samples[readable],
            left_out=tuple(batch.samples[~readable].tolist()),
        )

    def _plans(self, start: int) -> Iterator[tuple[LabelledBatch, list[tuple[Domain, int]]]]:
        """Yield each batch with its images still to be filled in, and the domain and index of each of them."""
        labels = self.source.images.labels
        for number, segment in enumerate(self.segments):
            begin, end = self._starts[number : number + 2]
            if end <= start:
                continue
            order = self._order(number)
            for index in range(max(start, begin), end):
                first = (index - begin) * self.batch_size
                domains, samples = np.divmod(order[first : first + self.batch_size], len(labels))
                images = np.empty((len(samples), *self.spec.image_shape), np.float32)
                reset = segment.reset and first == 0
                batch = LabelledBatch(images, labels[samples], segment.name, index, reset, samples)
                yield batch, [(segment.domains[d], int(i)) for d, i in zip(domains, samples, strict=True)]

    def _fill(self, images: npt.NDArray[np.float32], slot: int, domain: Domain, index: int) -> FozoError | None:
        name = self.source.images.samples[index].path
        try:
            with unreadable(f"cannot load {name} under {domain.name}", "leave it out"):
                pixels = self.source.load(domain, index)
                for channel, table in enumerate(self._table):
                    np.take(table, pixels[..., channel], out=images[slot, channel], mode="clip")
        except FozoError as error:
            return error
        return None


def in_order(
    images: ImageSet, spec: Spec, *, batch_size: int = 64, start: int = 0, workers: int | None = None,
    show: Callable[[int, int], None] = lambda done, total: None, leave_out: Callable[[FozoError], None] | None = None,
) -> Iterator[LabelledBatch]:  # fmt: skip
    """Read clean images in the order of the set from batch ``start`` on; labels are ignored, so any classes will do."""
    spec = replace(spec, classes=len(images.classes), subset=images.mask, labels=None)
    order = Continual(kinds=("clean",), shuffle=False)
    stream = Stream(images, spec, order, batch_size=batch_size, workers=workers, leave_out=leave_out)
    for batch in stream.batches(start):
        yield batch
        show(min(len(images), (batch.index + 1) * batch_size), len(images))


class DomainSource(Protocol):
    """What a stream needs from its data."""

    @property
    def images(self) -> ImageSet:
        """The labelled images, the same in every domain."""

    @property
    def domains(self) -> tuple[Domain, ...]: ...

    def load(self, domain: Domain, index: int) -> Pixels:
        """Image ``index`` under ``domain`` as ``uint8 [height, width, channels]``; called from many threads."""

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        """All that the pixels of the used domains depend on, as JSON values."""


def prepare(images: ImageSet, pixels: Pixels, size: Size, channels: int = 3) -> Pixels:
    """Bring an image to the model's size and channels; streams and corrupted trees share this rule.

    Photographs of many sizes get ImageNet's Resize and CenterCrop, also one that happens to have the model's size: so
    published accuracies were measured. Ready-made crops of the model's size stay as they are. Stored corrupted images
    of another size are resized whole: they were cropped when they were made. Models of one channel see the luminance.
    """
    if images.size is None:
        pixels = resize_crop(pixels, size)
    else:
        pixels = fit(pixels, size, resize=size if images.corrupted else None)
    return luminance(pixels) if channels == 1 else pixels


def describe_preparation(images: ImageSet, size: Size, channels: int = 3) -> str:
    high, wide = sides(size)
    final = f"{high}" if high == wide else f"{high}x{wide}"
    gray = " + luminance" if channels == 1 else ""
    if images.size == (high, wide):
        return f"{final} px crops as they are{gray}"
    if images.corrupted and images.size is not None:
        return f"Resize({final}, bilinear){gray}"
    before = f"{covered(high)}" if high == wide else f"{covered(high)}x{covered(wide)}"
    return f"Resize({before}, bilinear) + CenterCrop({final}){gray}"


@dataclass(frozen=True)
class StoredImages:
    """Images as they are in the files, corrupted or clean."""

    images: ImageSet
    size: Size
    channels: int = 3

    @property
    def domains(self) -> tuple[Domain, ...]:
        return self.images.domains

    def load(self, domain: Domain, index: int) -> Pixels:
        return prepare(self.images, self.images.read(index, domain), self.size, self.channels)

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        record = self.images.record or {}
        named = {f"corruption_{key}": record[key] for key in ("seed", "quality") if key in record}
        if any(domain.kind == "frost" for domain in used) and "frost" in record:
            named["frost"] = record["frost"]
        preparation = describe_preparation(self.images, self.size, self.channels)
        return {"preparation": preparation, "corruption": "stored", **named}


@dataclass(frozen=True)
class Corrupting:
    """Clean images, corrupted as they are read: first cropped to the model's size, as ImageNet-C was.

    The noise depends on (image name, kind, severity, seed) and nothing else. ``fozo corrupt`` writes the same pixels,
    in colour and as JPEG. ``folder`` keeps the pixels, for a benchmark whose rows all see the same images: a file has
    the bytes of one image, and one of another length is made again. It is for one set of images at one size.
    """

    images: ImageSet
    size: Size
    seed: int = 0
    channels: int = 3
    folder: Path | None = None
    domains: ClassVar = (CLEAN, *(Domain(kind, level) for kind in ALL_KINDS for level in range(1, 6)))

    def load(self, domain: Domain, index: int) -> Pixels:
        if self.folder is None:
            return self._made(domain, index)
        kept = self.folder / domain.name / str(index)
        shape = (*sides(self.size), self.channels)
        if kept.is_file() and kept.stat().st_size == prod(shape):
            return np.fromfile(kept, np.uint8).reshape(shape)
        pixels = self._made(domain, index)
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(kept) as file:
            file.write(pixels.tobytes())
        return pixels

    def _made(self, domain: Domain, index: int) -> Pixels:
        clean = prepare(self.images, self.images.read(index), self.size, self.channels)
        return clean if domain == CLEAN else self.corrupt(clean, domain, index)

    def corrupt(self, clean: Pixels, domain: Domain, index: int) -> Pixels:
        name = corrupted_name(self.images.samples[index].path)
        return corrupt(clean, domain.kind, domain.severity, self.seed, image_id=name)

    def describe(self, used: Collection[Domain]) -> Mapping[str, object]:
        preparation = describe_preparation(self.images, self.size, self.channels)
        kinds = {domain.kind for domain in used if domain != CLEAN}
        if not kinds:
            return {"preparation": preparation, "corruption": "none"}
        frost = {"frost": frost_source()} if "frost" in kinds else {}
        return {"preparation": preparation, "corruption": "on the fly", "corruption_seed": self.seed, **frost}


def corrupted_name(path: str) -> str:
    """Name an image as it is called in a corrupted tree, whatever the format of the clean file."""
    return str(PurePosixPath(path).with_suffix(".JPEG"))
