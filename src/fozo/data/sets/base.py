"""What an image set is: a list of labelled images, and a store that reads any of them.

A set never depends on where it lies: samples are named by their path inside the set, with ``/`` on every
system, so the same images give the same names, the same order and the same fingerprint everywhere.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from fozo.core.noise import check_seed
from fozo.data.corruptions import ALL_KINDS
from fozo.data.images import Pixels
from fozo.errors import FozoError

Names = Sequence[str] | None

PROBES = 32  # headers read at opening to learn whether the images are ready-made crops of one size


class Domain(NamedTuple):
    """One condition of the world: a kind of corruption at a severity from 1 to 5, or no corruption."""

    kind: str
    severity: int

    @property
    def name(self) -> str:
        return f"{self.kind}/{self.severity}" if self.severity else self.kind


CLEAN = Domain("clean", 0)


class Sample(NamedTuple):
    """One image of a set."""

    path: str  # path inside the set (``n01440764/ILSVRC2012_val_00000293.JPEG``): the image's name in every domain
    label: int  # index into the set's ``classes``


class Store(Protocol):
    """Where the pixels are. Its methods may be called from many threads at once."""

    def read(self, path: str, domain: Domain) -> Pixels:
        """Decode one image to ``uint8 [height, width, 3]``."""

    def measure(self, path: str, domain: Domain) -> tuple[int, int]:
        """Read height and width from the header, without decoding."""

    def stamps(self, paths: Sequence[str], domain: Domain) -> Sequence[int]:
        """For each image a number that changes with its pixels: a file's length, or a checksum of an array."""


@dataclass(frozen=True)
class ImageSet:
    """Labelled images in a fixed order.

    Examples:
        >>> images = fozo.open_images(photos).take(100)
        >>> images.read(0).shape, images.classes[images.labels[0]]
        ((28, 28, 3), 'Ankle boot')
    """

    name: str
    """The layout it was opened as, such as ``imagenet-c``."""
    samples: tuple[Sample, ...]
    classes: tuple[str, ...]
    """What the labels index: all classes of the task, also those without an image here."""
    store: Store
    domains: tuple[Domain, ...] = (CLEAN,)
    """The conditions every image is stored in."""
    mask: tuple[int, ...] | None = None
    """The model outputs that ``classes`` stand for, where they are not all of them (ImageNet-R): labels are scored
    on ``logits[:, mask]``, which is what ``load_engine(..., classes=mask)`` gives."""
    size: tuple[int, int] | None = None
    """Height and width that every image has, for ready-made crops; ``None`` for photographs as they came."""
    record: Mapping[str, object] | None = None
    """How the corrupted images were made, where ``fozo corrupt`` made them and wrote it down."""

    def __post_init__(self) -> None:
        if not self.samples:
            raise FozoError(f"the {self.name} set holds no images; check the path")

    def __len__(self) -> int:
        return len(self.samples)

    def __repr__(self) -> str:
        size = "" if self.size is None else f", {self.size[0]}x{self.size[1]} px"
        return f"<ImageSet {self.name}: {len(self):,} images, {len(self.classes):,} classes{size}>"

    @property
    def corrupted(self) -> bool:
        """Whether the images are stored under corruptions instead of clean."""
        return self.domains != (CLEAN,)

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        return np.array([sample.label for sample in self.samples], dtype=np.int64)

    @cached_property
    def fingerprint(self) -> str:
        """Hash of all that the set holds: domains, names, labels, their order, and a stamp of each image.

        The stamp is the length of the image's file, or a checksum of its pixels where the set is an array. So a file
        that was replaced or encoded again is noticed without reading it; one edited in place to the same length is not.
        """
        digest = hashlib.sha256()
        paths = [path for path, _ in self.samples]
        for domain in self.domains:
            name = domain.name
            for (path, label), stamp in zip(self.samples, self.store.stamps(paths, domain), strict=True):
                line = f"{name}\t{path}\t{label}\t{stamp}\n"
                digest.update(line.encode("utf-8", "surrogateescape"))  # names in another encoding have their own bytes
        return digest.hexdigest()[:16]

    def read(self, index: int, domain: Domain = CLEAN) -> Pixels:
        path = self.samples[index].path
        pixels = self.store.read(path, domain)
        self.check_size(path, domain, pixels.shape[:2])
        return pixels

    def check_size(self, path: str, domain: Domain, found: tuple[int, ...]) -> None:
        """Refuse an image of another size than the ready-made crops have."""
        if self.size is not None and found != self.size:
            (height, width) = self.size
            (own_height, own_width) = found
            or_else = "" if self.corrupted else ", or open the set with crops=False to resize and crop every image"
            raise FozoError(
                f"{path} ({domain.name}) is {own_width}x{own_height} px where the {self.name} set's other images are "
                f"{width}x{height}; replace it{or_else}"
            )

    def take(self, count: int, seed: int = 0) -> ImageSet:
        """Keep ``count`` images drawn at random without regard to class, in their old order."""
        if not 1 <= count <= len(self):
            raise FozoError(f"cannot take {count} of {len(self)} images; give a number from 1 to {len(self)}")
        chosen = np.sort(shuffled(len(self), seed)[:count]).tolist()
        return replace(self, samples=tuple(map(self.samples.__getitem__, chosen)))

    def select(self, paths: Sequence[str]) -> ImageSet:
        """Keep the named images, in the order given (RobustBench's list, say)."""
        named = {sample.path: sample for sample in self.samples}
        missing = [path for path in paths if path not in named]
        if missing:
            names = f"first {missing[0]!r} (the set has names like {self.samples[0].path!r})"
            listed = f"{len(missing)} of the {len(paths)} listed images are not in this {self.name} set"
            raise FozoError(f"{listed}, {names}; give the whole set")
        twice = [path for path, times in Counter(paths).items() if times > 1]
        if twice:
            raise FozoError(f"the list names {twice[0]!r} more than once; list every image once")
        return replace(self, samples=tuple(map(named.__getitem__, paths)))


def shuffled(count: int, seed: int, stream: int = 0) -> npt.NDArray[np.int64]:
    """A random order of ``count`` things that depends on nothing but ``(count, seed, stream)``.

    Sorting raw Philox words, instead of ``Generator.permutation``: NumPy promises that a bit generator's
    words never change, but allows a Generator's methods to change between versions.
    """
    check_seed(seed)
    words = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64)).random_raw(count)
    return np.argsort(words, kind="stable")


def with_size(images: ImageSet) -> ImageSet:
    """Set ``size`` where a few headers, evenly spaced over the set, have one square size.

    Photographs come in many sizes; images that all have the same square size have been cropped already,
    and a second Resize + CenterCrop would zoom into them. Unreadable files are ignored here: reading reports them.
    """
    sizes = set(probe(images).values())
    height, width = sizes.pop() if len(sizes) == 1 else (0, 1)
    return replace(images, size=(height, width) if height == width else None)


def probe(images: ImageSet) -> dict[tuple[str, Domain], tuple[int, int]]:
    sizes = {}
    count = len(images.samples)
    for flat in np.unique(np.linspace(0, count * len(images.domains) - 1, PROBES).astype(int)).tolist():
        key = images.samples[flat % count].path, images.domains[flat // count]
        with suppress(FozoError):
            sizes[key] = images.store.measure(*key)
    return sizes


def in_paper_order(kinds: Collection[str]) -> list[str]:
    return [kind for kind in ALL_KINDS if kind in kinds] + sorted(set(kinds) - set(ALL_KINDS))


def choose(offered: Sequence[Domain], kinds: Names, severities: Sequence[int] | None) -> tuple[Domain, ...]:
    """Keep the wanted kinds and severities; an absent one is refused."""
    chosen = list(offered)
    for what, wanted in (("kind", kinds), ("severity", severities)):
        present = {getattr(domain, what) for domain in offered}
        for value in wanted or ():
            if value not in present:
                has = ", ".join(map(str, sorted(present)))
                raise FozoError(f"there is no {what} {value!r} in this set; it has {has}")
        chosen = [domain for domain in chosen if wanted is None or getattr(domain, what) in wanted]
    return tuple(chosen)
