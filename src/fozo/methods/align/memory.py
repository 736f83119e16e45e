"""Memory: recent images, and which of them are of the same domain as these, by their descriptors alone.

A deployed model is not told when its domain changes, whether a batch mixes domains, or that last week's fog is back.
Each image gets an estimate of its domain's descriptor, with a variance. Earlier images are weighted by how well their
domain estimates agree. So a new domain starts without memories, an old one finds its memories again, and in a mixed
batch every image has neighbours of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.common.options import positive
from fozo.state import State, derived, ragged
from fozo.types import Array, Floats

if TYPE_CHECKING:
    from typing_extensions import Self

Single = npt.NDArray[np.float32]
LARGEST_CODE = 7
AT_ONCE = 1 << 18  # codes that are averaged at a time, to stay in the cache
SPARE = 32  # rows that a new buffer has behind the last
REPLAN = 16  # a cached correction rests on the images up to a multiple of it, so it follows from the memory alone
CHANCE = 2.0  # standard deviations of a mean square by which clean domains may be farther away than on average


@dataclass(frozen=True)
class DomainEstimate:
    """Descriptors of the domains of n images with their variances, and the images' own: ``[n, features]`` each.

    The estimate is empirical Bayes. Descriptors z are standardised by their deviation over clean images, so an image
    differs from its domain's centre by a variance of about 1 (its content), in every batch of every model. If a batch's
    descriptors vary by 1 + t, domains in it vary by t, and the posterior mean of image i's domain is

        batch mean + r (z_i - batch mean),    known to a variance of r + (1 - r) / n,    with r = t / (1 + t)

    A batch of one domain has t = 0: its images share one sharp estimate. In a batch of many, each has its own.
    """

    mean: Floats
    variance: Floats
    descriptor: Floats

    @classmethod
    def of(cls, descriptors: Array, before: Floats) -> DomainEstimate:
        """Estimate the domains of standardised descriptors ``[B, f]``, together with those of the images before."""
        joined = np.concatenate([before, descriptors]) if len(before) else descriptors
        count = len(joined)
        if count == 1:  # nothing is known of the domain but this image
            return cls(descriptors, np.ones_like(descriptors), descriptors)
        mean = np.add.reduce(joined, axis=0) / count
        # The variance of few images is itself uncertain: what lies within two standard errors of 1 counts as 1.
        variance = np.add.reduce(np.square(joined - mean), axis=0) / (count - 1)
        between = np.maximum(variance - (1 + 2 * math.sqrt(2 / (count - 1))), 0)  # t
        share = between / (1 + between)  # r
        variance = share + (1 - share) / count
        posterior = mean + share * (descriptors - mean)
        return cls(posterior, np.repeat(variance[None], len(descriptors), axis=0), descriptors)

    def part(self, images: slice | npt.NDArray[np.bool_]) -> Self:
        return type(self)(*(array[images] for array in vars(self).values()))

    def same_domain(self) -> DomainEstimate:
        """One row if all images are of one domain by their estimates, else all of them.

        Estimates of one domain differ by a normalised squared distance of 1 on average, see :func:`retrieve`.
        Such rows would retrieve the same memories; one is a fraction of the work.
        """
        if len(self.mean) == 1:
            return self
        mean = self.mean.mean(axis=0)
        variance = self.variance.mean(axis=0)
        distance = np.square(self.mean - mean) / (self.variance + variance)
        if distance.mean(axis=1).max() > 1:
            return self
        return DomainEstimate(mean[None], variance[None], self.descriptor.mean(axis=0)[None])


@dataclass(frozen=True)
class Rows(DomainEstimate):
    """What is remembered of n images: domain estimates, vectors ``[n, layers, d]`` in 4 bits, and contents in full.

    A vector is ``scales * (codes - 8)``: its largest number has the code 1 or 15. Rounding adds three hundredths to the
    variance over images that vectors are averaged over, for an eighth of the memory. A byte has the codes of two
    features, one of either half.
    """

    codes: npt.NDArray[np.uint8]  # [n, layers, d / 2]
    scales: Single  # [n, layers]
    contents: Single  # [n, k]

    @classmethod
    def pack(cls, domains: DomainEstimate, vectors: Single, contents: Floats) -> Rows:
        """Round vectors ``[n, layers, d]``, whose numbers should be of one size within a layer."""
        # A vector of zeros gets a scale too, a negligible one.
        scales = np.maximum.reduce(np.abs(vectors), axis=2, initial=LARGEST_CODE * 1e-30) / np.float32(LARGEST_CODE)
        codes = (np.rint(vectors / scales[:, :, None]) + 8).astype(np.uint8)
        half, rest = -(-codes.shape[2] // 2), codes.shape[2] // 2
        pairs = codes[:, :, :half].copy()
        pairs[:, :, :rest] |= codes[:, :, half:] << 4
        mean, variance, descriptor, content = (
            array.astype(np.float32) for array in (domains.mean, domains.variance, domains.descriptor, contents)
        )
        return cls(mean, variance, descriptor, pairs, scales, content)

    @classmethod
    def empty(cls, rows: int, features: int, shape: tuple[int, int, int]) -> Rows:
        """Zeros, for descriptors of ``features`` numbers; ``shape`` is layers, width and contents of a row."""
        layers, width, contents = shape
        mean, variance, descriptor, scales, content = (
            np.zeros((rows, size), dtype=np.float32) for size in (features, features, features, layers, contents)
        )
        return cls(mean, variance, descriptor, np.zeros((rows, layers, -(-width // 2)), np.uint8), scales, content)

    def average(self, shares: Floats) -> tuple[Single, Single]:
        """Average the n images by ``shares`` ``[m, n]``: vectors ``[m, layers, d]`` and contents ``[m, k]``.

        Vectors of an odd width have one feature too many, at the end.
        """
        (count, images), (_, layers, width) = shares.shape, self.codes.shape
        parts = shares.astype(np.float32)
        vectors = np.zeros((count, layers, 2 * width), dtype=np.float32)
        # einsum wakes no threads of BLAS. One row: some images at a time, in the order in which they lie in memory.
        if count == 1:
            for start in range(0, images, step := max(1, AT_ONCE // max(layers * width, 1))):
                some = slice(start, min(start + step, images))
                weights = parts[0, some, None] * self.scales[some]
                vectors += np.einsum("nl,nld->ld", weights, _numbers(self.codes[some]))
        else:
            for layer in range(layers):  # one after the other, to stay in the cache
                numbers = _numbers(self.codes[:, layer])
                np.einsum("mn,nd->md", parts * self.scales[:, layer], numbers, out=vectors[:, layer])
        return vectors, np.einsum("mn,nk->mk", parts, self.contents)


def _numbers(codes: npt.NDArray[np.uint8]) -> Single:
    """Of pairs of codes, ``[..., d / 2]``, the numbers that they stand for, but for their scale: ``[..., d]``."""
    numbers = np.empty((*codes.shape[:-1], 2 * codes.shape[-1]), dtype=np.float32)
    numbers[..., : codes.shape[-1]] = codes & 15
    numbers[..., codes.shape[-1] :] = codes >> 4
    numbers -= 8
    return numbers


@dataclass(frozen=True)
class Retrieved:
    """How much each remembered image counts for each of n domains."""

    rows: Rows  # the images remembered, the oldest first
    shares: Array  # [n, remembered]; rows add up to 1, unless nothing is of the domain
    samples: Array  # effective sample size of averages by these shares (Kish), [n]

    def posterior(self, domains: DomainEstimate) -> DomainEstimate:
        """Sharpen estimates by the descriptors of the images retrieved, each an observation of variance 1."""
        descriptor = np.einsum("mn,nf->mf", self.shares, self.rows.descriptor)
        samples = self.samples[:, None]
        variance = 1 / (1 / domains.variance + samples)
        mean = variance * (domains.mean / domains.variance + samples * descriptor)
        return DomainEstimate(mean, variance, domains.descriptor)


@dataclass(frozen=True)
class RetrievalConfig:
    """How much earlier images weigh."""

    context: int = 16
    """Smaller batches are judged together with the images before them, this many in all."""
    dimensions: float = 4.0
    """Independent directions among the features of a descriptor, which are many but correlated; with 0 every
    remembered image has the same weight."""
    half_life: float = 64.0
    """An image weighs half after this many newer ones of the same domain."""
    capacity: int = 512
    """Images remembered."""

    def __post_init__(self) -> None:
        positive("align", context=self.context, half_life=self.half_life, capacity=self.capacity)
        if not self.dimensions >= 0:
            raise FozoError(f"align: dimensions must not be negative, not {self.dimensions}")

    def drifted(self, domains: DomainEstimate, brightness: slice) -> Array:
        """Evidence that ``domains`` are not those of clean images: ``[n]``, 0 to 1.

        As for two domains in :func:`retrieve`, but narrow content may shift the descriptors of clean images by
        ``CONTENT_VARIANCE``, and squares of few independent numbers are often far above their average, 1: what lies
        within ``CHANCE`` standard deviations of it does not count as evidence. The features of ``brightness`` are
        judged by themselves too: a wrong exposure changes them and hardly anything else, so the average over all
        features does not show it.
        """
        squared = domains.mean**2 / (domains.variance + CONTENT_VARIANCE)
        chance = CHANCE * math.sqrt(2 / max(self.dimensions, 1))
        distance = self.dimensions * np.maximum(squared.mean(axis=1) - 1 - chance, 0)
        brightness_distance = np.maximum(squared[:, brightness].mean(axis=1) - 1 - CHANCE * math.sqrt(2), 0)
        evidence: Array = -np.expm1(-np.maximum(distance, brightness_distance) / 2)
        return evidence


class Buffer:
    """Rows that are written once: whoever first claims those behind a row may write them."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._claims: dict[int, object] = {}  # by first row

    def claim(self, start: int, count: int) -> bool:
        """Take ``count`` rows from ``start`` on, if there is room and nobody has; no lock, which a fork might copy."""
        token = object()
        has_room = start + count <= len(self.rows.mean)
        return has_room and self._claims.setdefault(start, token) is token


@dataclass(frozen=True)
class Memory(State):
    """The most recent images, the oldest first: views of a buffer."""

    mean: Single = ragged("images")  # what each means is said by :class:`Rows`
    variance: Single = ragged("images")
    descriptor: Single = ragged("images")
    codes: npt.NDArray[np.uint8] = ragged("images")
    scales: Single = ragged("images")
    contents: Single = ragged("images")
    seen: int = 0  # images ever remembered
    buffer: Buffer | None = derived()
    end: int = derived(0)  # of this memory, in its buffer

    NAMES: ClassVar = ("mean", "variance", "descriptor", "codes", "scales", "contents")

    def __post_init__(self) -> None:
        """Refuse what no stream leads to."""
        if len(self.mean) > self.seen:
            raise ValueError(f"it remembers {len(self.mean)} of {self.seen} images")
        if self.buffer is None and not ((self.variance > 0).all() and (self.scales >= 0).all()):
            raise ValueError("it remembers variances that are not positive")

    @classmethod
    def empty(cls, features: int, shape: tuple[int, int, int] = (0, 0, 0)) -> Memory:
        """Nothing, for descriptors of ``features`` numbers; ``shape`` is layers, width and contents of a row."""
        return cls(**vars(Rows.empty(0, features, shape)))

    def __len__(self) -> int:
        return len(self.mean)

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        """Some of the images, the oldest first."""
        return Rows(*(getattr(self, name)[start:stop] for name in self.NAMES))

    def add(self, new: Rows, capacity: int) -> Memory:
        """Remember images, and forget the oldest beyond ``capacity``."""
        seen = self.seen + len(new.mean)
        new = new.part(slice(-capacity, None))
        count = len(new.mean)
        if not count:
            return self
        buffer = self.buffer
        start = self.end
        if buffer is None or not buffer.claim(start, count):
            kept = self.rows(max(0, len(self) + count - capacity))
            start = len(kept.mean)
            room = min(2 * (start + count), capacity) + SPARE  # a new camera needs little
            buffer = Buffer(_with_room(kept, room))
        stop = start + count
        first = max(0, stop - min(len(self) + count, capacity))
        views = {}
        for name in self.NAMES:
            array = getattr(buffer.rows, name)
            array[start:stop] = getattr(new, name)
            views[name] = array[first:stop]
        return Memory(**views, seen=seen, buffer=buffer, end=stop)


def _with_room(kept: Rows, size: int) -> Rows:
    arrays = []
    for array in vars(kept).values():
        larger = np.zeros((max(size, len(array)), *array.shape[1:]), dtype=array.dtype)
        larger[: len(array)] = array
        arrays.append(larger)
    return Rows(*arrays)


def retrieve(memory: Memory, domains: DomainEstimate, config: RetrievalConfig, newest: int = 0) -> Retrieved:
    """Weigh each remembered image for each of ``domains``; the ``newest`` ones are left out.

    With D the mean over features of (difference of means)^2 / (sum of variances), which is 1 on average for two
    estimates of one domain, whatever the sizes of their batches, an image weighs

        exp(-dimensions / 2 max(D - 1, 0)) 0.5^(newer / half_life),    newer: later images, weighted by the first
    """
    stop = len(memory) - newest
    remembered = memory.rows(max(stop - config.capacity, 0), max(stop, 0))
    distance = np.empty((len(domains.mean), len(remembered.mean)))
    for row, (mean, variance) in enumerate(zip(domains.mean, domains.variance, strict=True)):
        squared: Array = np.square(remembered.mean - mean) / (remembered.variance + variance)
        distance[row] = squared.mean(axis=1)
    agreement = np.exp(-config.dimensions / 2 * np.maximum(distance - 1, 0))
    newer = agreement.sum(axis=1, keepdims=True) - np.cumsum(agreement, axis=1)
    weights = agreement * 0.5 ** (newer / config.half_life)
    total = weights.sum(axis=1)
    # Kish's effective sample size; the total weight caps it, so that distant images do not count for many.
    kish = total**2 / np.maximum(np.square(weights).sum(axis=1), 1e-300)
    shares = weights / np.maximum(total, 1e-300)[:, None]
    return Retrieved(remembered, shares, np.minimum(kish, total))


def kept_images(config: RetrievalConfig) -> int:
    """Images that a memory holds: a cached correction leaves out the newest."""
    return config.capacity + REPLAN
