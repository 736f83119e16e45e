"""Memory: recent images, and which of them are of the same domain as these, by their descriptors alone.

A deployed model is not told when its domain changes, whether a batch mixes domains, or that last week's fog is back.
Each image gets an estimate of its domain's descriptor, with a variance. Earlier images are weighted by how well their
domain estimates agree. So a new domain starts without memories, an old one finds its memories again, and in a mixed
batch every image has neighbours of its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.common.options import positive
from fozo.types import Array, Floats, State

if TYPE_CHECKING:
    from typing_extensions import Self

Single = npt.NDArray[np.float32]
LARGEST_CODE = 7
AT_ONCE = 1 << 18  # codes that are averaged at a time, to stay in the cache
REPLAN = 16  # a cached correction rests on the images up to a multiple of it, so it follows from the memory alone
CHANCE = 2.0  # standard deviations of a mean square by which clean domains may be farther away than on average
SLACK = 32  # rows that are written before the oldest are dropped


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

        Estimates of one domain differ by a normalised squared distance of 1 on average, see :meth:`Memory.retrieve`.
        Such rows would retrieve the same memories; one is a fraction of the work.
        """
        if len(self.mean) == 1:
            return self
        mean, variance = self.mean.mean(axis=0), self.variance.mean(axis=0)
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

        As for two domains in :meth:`Memory.retrieve`, but narrow content may shift the descriptors of clean images by
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


class Memory:
    """The most recent images, the oldest first.

    Rows are only ever written behind the last one; when there is no room, the recent ones move to new arrays. So a
    shallow copy is a checkpoint: the memory as it was, whatever is added to the original.
    """

    def __init__(self, features: int, shape: tuple[int, int, int], config: RetrievalConfig) -> None:
        """Begin empty. ``features`` is the size of a descriptor, ``shape`` layers, width and contents of a row."""
        self.config, self._features, self._shape = config, features, shape
        self._kept = config.capacity + REPLAN  # as a cached correction leaves out the newest
        self._rows, self._end = self._empty(), 0
        self.seen = 0
        """Images ever remembered."""

    def __len__(self) -> int:
        return min(self._end, self._kept)

    def latest(self, images: int) -> Rows:
        """At most ``images`` latest images, the oldest first."""
        return self._rows.part(slice(max(self._end - images, 0), self._end))

    def add(self, rows: Rows) -> None:
        """Remember images, forgetting the oldest."""
        self.seen += len(rows.mean)
        rows = rows.part(slice(-self._kept, None))
        end = self._end + len(rows.mean)
        if end > len(self._rows.mean):
            old, self._rows, end = self.latest(self._kept - len(rows.mean)), self._empty(), self._kept
            for array, kept in zip(vars(self._rows).values(), vars(old).values(), strict=True):
                array[: len(kept)] = kept
        for array, new in zip(vars(self._rows).values(), vars(rows).values(), strict=True):
            array[end - len(new) : end] = new
        self._end = end

    def _empty(self) -> Rows:
        return Rows.empty(self._kept + SLACK, self._features, self._shape)

    def retrieve(self, domains: DomainEstimate, newest: int = 0) -> Retrieved:
        """Weigh each remembered image for each of ``domains``; the ``newest`` ones are left out.

        With D the mean over features of (difference of means)^2 / (sum of variances), which is 1 on average for two
        estimates of one domain, whatever the sizes of their batches, an image weighs

            exp(-dimensions / 2 max(D - 1, 0)) 0.5^(newer / half_life),    newer: later images, weighted by the first
        """
        end = self._end - newest
        rows = self._rows.part(slice(max(end - self.config.capacity, 0), end))
        distance = np.empty((len(domains.mean), len(rows.mean)))
        for row, (mean, variance) in enumerate(zip(domains.mean, domains.variance, strict=True)):
            distance[row] = (np.square(rows.mean - mean) / (rows.variance + variance)).mean(axis=1)
        agreement = np.exp(-self.config.dimensions / 2 * np.maximum(distance - 1, 0))
        newer = agreement.sum(axis=1, keepdims=True) - np.cumsum(agreement, axis=1)
        weights = agreement * 0.5 ** (newer / self.config.half_life)
        total = weights.sum(axis=1)
        # Kish's effective sample size; the total weight caps it, so that distant images do not count for many.
        kish = total**2 / np.maximum(np.square(weights).sum(axis=1), 1e-300)
        return Retrieved(rows, weights / np.maximum(total, 1e-300)[:, None], np.minimum(kish, total))

    def state(self) -> State:
        """Copies by name, each image at its number modulo the capacity, so that few rows change with a batch."""
        rows = {
            name: np.roll(array, self.seen % self._kept if len(self) == self._kept else 0, axis=0)
            for name, array in vars(self.latest(self._kept)).items()
            if 0 not in array.shape[1:]
        }
        return {**rows, "seen": np.array(self.seen)}

    def load_state(self, state: State) -> None:
        count, seen = len(state["mean"]), int(state["seen"])
        if count != min(seen, self._kept):
            raise FozoError(f"the state remembers {count} of {seen} images, of {self._kept} at most; save it again")
        absent = vars(Rows.empty(count, self._features, self._shape))  # a black box has no codes and contents
        shift = -(seen % self._kept) if count == self._kept else 0
        arrays: dict[str, Any] = {
            name: np.roll(state.get(name, array), shift, axis=0) for name, array in absent.items()
        }
        rows = Rows(**arrays)
        if not ((rows.variance > 0).all() and (rows.scales >= 0).all()):
            raise FozoError("the state remembers variances that are not positive; save the state again")
        self._rows, self._end = self._empty(), 0
        self.add(rows)
        self.seen = seen
