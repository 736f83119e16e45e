"""Retrieval: which earlier images are of the same domain as this one, by their descriptors alone.

A deployed model is not told when its domain changes, whether a batch mixes domains, or that last week's fog is back.
Each image gets an estimate of its domain's descriptor, with a variance. Earlier images are weighted by how well their
domain estimates agree. So a new domain starts without memories, an old one finds its memories again, and in a mixed
batch every image has neighbours of its own.

The estimate is empirical Bayes. Descriptors z are standardised by their deviation over clean images, so an image
differs from its domain's centre by a variance of about 1 (its content), in every batch of every model. If a batch's
descriptors vary by 1 + t, domains in it vary by t, and the posterior mean of image i's domain is

    batch mean + r (z_i - batch mean),    known to a variance of r + (1 - r) / n,    with r = t / (1 + t)

A batch of one domain has t = 0: its images share one sharp estimate. In a batch of many, each has its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.common.options import positive
from fozo.types import Array, Floats, State

Codes = npt.NDArray[np.int8]
Single = npt.NDArray[np.float32]
LARGEST_CODE = 127
AVERAGED = 1 << 18
"""Codes that are averaged at a time, to stay in the cache."""


@dataclass(frozen=True)
class DomainEstimate:
    """Descriptors of the domains of n images with their variances, and the images' own: ``[n, features]`` each."""

    mean: Array
    variance: Array
    descriptor: Array

    def part(self, images: slice | npt.NDArray[np.bool_]) -> DomainEstimate:
        return DomainEstimate(self.mean[images], self.variance[images], self.descriptor[images])

    def distinct(self) -> DomainEstimate:
        """One row if all images share one estimate, else all of them."""
        return self.part(slice(0, 1)) if len(self.mean) > 1 and (self.mean == self.mean[0]).all() else self

    def same_domain(self) -> DomainEstimate:
        """One row if all images are of one domain by their estimates, else all of them.

        The criterion is that of :meth:`Memory.retrieve`: estimates of one domain differ by 1 on average. Such rows
        would retrieve the same memories; one is a fraction of the work.
        """
        if len(self.mean) == 1:
            return self
        if (self.mean == self.mean[0]).all():
            return self.part(slice(0, 1))
        mean, variance = self.mean.mean(axis=0), self.variance.mean(axis=0)
        distance = np.square(self.mean - mean) / (self.variance + variance)
        if distance.mean(axis=1).max() > 1:
            return self
        return DomainEstimate(mean[None], variance[None], self.descriptor.mean(axis=0)[None])


@dataclass(frozen=True)
class Rows:
    """What is remembered of n images: domain estimates, vectors ``[n, layers, d]`` in 8 bits, and contents in full.

    A vector is ``scales * codes``: its largest number has the largest code. Vectors are averaged over many images that
    differ by far more than this rounds, so 8 bits are enough, for a fourth of the memory and of the time to average.
    """

    mean: Array
    variance: Array
    descriptor: Array
    codes: Codes
    """``[n, layers, d]``."""
    scales: Single
    """``[n, layers]``."""
    contents: Single
    """``[n, k]``."""

    @classmethod
    def of(cls, domains: DomainEstimate, vectors: Single, contents: Floats) -> Rows:
        """Round vectors ``[n, layers, d]``, whose numbers should be of one size within a layer."""
        # A vector of zeros gets a scale too, a negligible one.
        scales = np.maximum.reduce(np.abs(vectors), axis=2, initial=LARGEST_CODE * 1e-30) / np.float32(LARGEST_CODE)
        ratio = vectors / scales[:, :, None]
        codes = np.rint(ratio, out=ratio).astype(np.int8)
        contents = np.asarray(contents, dtype=np.float32)
        return cls(domains.mean, domains.variance, domains.descriptor, codes, scales, contents)

    @classmethod
    def empty(cls, rows: int, features: int, shape: tuple[int, int, int]) -> Rows:
        """Zeros, for descriptors of ``features`` numbers; ``shape`` is layers, width and contents of a row."""
        layers, width, contents = shape
        return cls(
            np.zeros((rows, features)),
            np.zeros((rows, features)),
            np.zeros((rows, features)),
            np.zeros((rows, layers, width), dtype=np.int8),
            np.zeros((rows, layers), dtype=np.float32),
            np.zeros((rows, contents), dtype=np.float32),
        )

    def average(self, shares: Floats) -> tuple[Single, Single]:
        """Average the first n images by ``shares`` ``[m, n]``: vectors ``[m, layers, d]`` and contents ``[m, k]``."""
        (count, images), (_, layers, width) = shares.shape, self.codes.shape
        parts = shares.astype(np.float32)
        vectors = np.zeros((count, layers, width), dtype=np.float32)
        # einsum wakes no threads of BLAS. One row: some images at a time, in the order in which they lie in memory.
        if count == 1:
            for start in range(0, images, step := max(1, AVERAGED // max(layers * width, 1))):
                some = slice(start, min(start + step, images))
                weights = parts[0, some, None] * self.scales[some]
                vectors += np.einsum("nl,nld->ld", weights, self.codes[some].astype(np.float32))
            return vectors, np.einsum("n,nk->k", parts[0], self.contents[:images])[None]
        numbers = np.empty((images, width), dtype=np.float32)
        for layer in range(layers):  # one after the other, to stay in the cache
            numbers[...] = self.codes[:images, layer]
            np.einsum("mn,nd->md", parts * self.scales[:images, layer], numbers, out=vectors[:, layer])
        return vectors, np.einsum("mn,nk->mk", parts, self.contents[:images])


@dataclass(frozen=True)
class Retrieved:
    """How much each remembered image counts for each of n domains."""

    shares: Array
    """``[n, remembered]``; rows add up to 1, unless nothing is of the domain."""
    descriptor: Array
    """Weighted average of the descriptors, ``[n, features]``."""
    effective_sample_size: Array
    """How many images such averages rest on (Kish), ``[n]``."""


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

    def estimate(self, descriptors: Array, before: Array) -> DomainEstimate:
        """Estimate the domains of standardised descriptors ``[B, f]``; ``before`` are those of earlier images."""
        missing = max(0, self.context - len(descriptors))
        joined = np.concatenate([before[max(0, len(before) - missing) :], descriptors]) if missing else descriptors
        count = len(joined)
        if count == 1:  # nothing is known of the domain but this image
            return DomainEstimate(descriptors, np.ones_like(descriptors), descriptors)
        mean = np.add.reduce(joined, axis=0) / count
        # The variance of few images is itself uncertain: what lies within two standard errors of 1 counts as 1.
        variance = np.add.reduce(np.square(joined - mean), axis=0) / (count - 1)
        between = np.maximum(variance - (1 + 2 * math.sqrt(2 / (count - 1))), 0)  # t
        share = between / (1 + between)  # r
        posterior = mean + share * (descriptors - mean)
        variance = share * (1 - 1 / count) + 1 / count
        return DomainEstimate(posterior, np.repeat(variance[None], len(descriptors), axis=0), descriptors)

    def posterior(self, domains: DomainEstimate, retrieved: Retrieved) -> DomainEstimate:
        """Sharpen estimates by the descriptors of the images retrieved, each an observation of variance 1."""
        evidence = retrieved.effective_sample_size[:, None]
        variance = 1 / (1 / domains.variance + evidence)
        mean = variance * (domains.mean / domains.variance + evidence * retrieved.descriptor)
        return DomainEstimate(mean, variance, domains.descriptor)

    def clean_weight(self, domains: DomainEstimate, brightness: slice) -> Array:
        """Weigh each of ``domains`` by how well it agrees with clean images: ``[n]``, 1 at most.

        As for two domains in :meth:`Memory.retrieve`, but narrow content may shift the descriptors of clean images by
        ``CONTENT_VARIANCE``. The features of ``brightness`` are judged by themselves too: a wrong exposure changes them
        and hardly anything else, so the average over all features does not show it.
        """
        squared = domains.mean**2 / (domains.variance + CONTENT_VARIANCE)
        distance = self.dimensions * np.maximum(squared.mean(axis=1) - 1, 0)
        brightness_distance = np.maximum(squared[:, brightness].mean(axis=1) - 1, 0)
        weight: Array = np.exp(-np.maximum(distance, brightness_distance) / 2)
        return weight


class Memory:
    """The most recent images in a ring.

    Rows are written in place. :meth:`rollback` undoes additions since :meth:`commit`, at the price of a copy of the
    rows that they overwrote.
    """

    def __init__(self, features: int, shape: tuple[int, int, int], config: RetrievalConfig) -> None:
        """Begin empty. ``features`` is the size of a descriptor, ``shape`` layers, width and contents of a row."""
        self.config = config
        self.rows = Rows.empty(config.capacity, features, shape)
        self._count, self._next = 0, 0
        self._undo: list[tuple[int, int, npt.NDArray[np.intp], list[npt.NDArray[np.generic]]]] = []

    def __len__(self) -> int:
        return self._count

    def state(self) -> State:
        """Copies by name, in the order of the ring: averages depend on it in their last digits.

        Rows without codes and contents, of a black box, have none here either.
        """
        rows: State = {name: array[: self._count].copy() for name, array in vars(self.rows).items() if array.size}
        return {**rows, "next": np.array(self._next)}

    def load(self, state: State) -> None:
        """Continue from a state."""
        count, after, capacity = len(state["mean"]), int(state["next"]), self.config.capacity
        if count > capacity or after != (count % capacity if count < capacity else after % capacity):
            raise FozoError(
                f"the state remembers {count} images, of {capacity} at most, and continues at row {after}; save the "
                f"state again"
            )
        for name, array in vars(self.rows).items():
            if array.size:
                array[:count] = state[name]
        self._count, self._next = count, after
        if not ((self.rows.variance[:count] > 0).all() and (self.rows.scales >= 0).all()):
            raise FozoError("the state remembers variances that are not positive; save the state again")

    def latest(self, images: int) -> Array:
        """Descriptors of at most ``images`` latest images, the oldest first."""
        count = min(images, self._count)
        found: Array = self.rows.descriptor.take(range(self._next - count, self._next), axis=0, mode="wrap")
        return found

    def retrieve(self, domains: DomainEstimate) -> Retrieved:
        """Weigh each remembered image for each of ``domains``.

        With D the mean over features of (difference of means)^2 / (sum of variances), which is 1 on average for two
        estimates of one domain, whatever the sizes of their batches, an image weighs

            exp(-dimensions / 2 max(D - 1, 0)) 0.5^(newer / half_life),    newer: later images, weighted by the first
        """
        mean, variance = self.rows.mean[: self._count], self.rows.variance[: self._count]
        distance = np.empty((len(domains.mean), self._count))
        for row, (own_mean, own_variance) in enumerate(zip(domains.mean, domains.variance, strict=True)):
            difference = mean - own_mean
            np.square(difference, out=difference)
            difference /= variance + own_variance
            difference.mean(axis=1, out=distance[row])
        agreement = np.exp(-self.config.dimensions / 2 * np.maximum(distance - 1, 0))
        newer = agreement.sum(axis=1, keepdims=True) - np.cumsum(agreement, axis=1)
        oldest = self._next if self._count == self.config.capacity else 0
        if oldest:  # the ring begins there: rows before it are newer than those behind it
            newest = newer[:, oldest - 1 : oldest].copy()
            newer[:, oldest:] += agreement[:, :oldest].sum(axis=1, keepdims=True)
            newer[:, :oldest] -= newest
        weights = agreement * 0.5 ** (newer / self.config.half_life)
        total = weights.sum(axis=1)
        # Kish's effective sample size; the total weight caps it, so that distant images do not count for many.
        kish = total**2 / np.maximum(np.square(weights).sum(axis=1), 1e-300)
        shares = weights / np.maximum(total, 1e-300)[:, None]
        descriptor = np.einsum("mn,nf->mf", shares, self.rows.descriptor[: self._count])
        return Retrieved(shares, descriptor, np.minimum(kish, total))

    def add(self, rows: Rows) -> None:
        """Remember images, forgetting the oldest."""
        capacity, total = self.config.capacity, len(rows.mean)
        count = min(total, capacity)
        places = np.arange(self._next, self._next + count) % capacity
        old = list[npt.NDArray[np.generic]]()
        for array, new in zip(vars(self.rows).values(), vars(rows).values(), strict=True):
            old.append(array[places])
            array[places] = new[total - count :]
        self._undo.append((self._count, self._next, places, old))
        self._count, self._next = min(self._count + count, capacity), (self._next + count) % capacity

    def rollback(self, additions: int | None = None) -> None:
        """Undo the last ``additions``, or all since :meth:`commit`."""
        for _ in range(len(self._undo) if additions is None else additions):
            self._count, self._next, places, old = self._undo.pop()
            for array, rows in zip(vars(self.rows).values(), old, strict=True):
                array[places] = rows

    def commit(self) -> None:
        """Additions so far can no longer be undone."""
        self._undo.clear()
