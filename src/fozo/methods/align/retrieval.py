"""Retrieval: which earlier images are of the same domain as this one, by their descriptors alone.

Nobody tells a deployed model when its domain changes, whether a batch mixes domains, or that last week's fog is back.
Each image gets an estimate of its domain's descriptor, with a variance. Earlier images weigh according to how well
their domain estimates agree. A new domain thus starts with a clean slate, an old one finds its memories again, and in a
mixed batch every image has neighbours of its own.

The estimate is empirical Bayes. Descriptors z are standardised by their deviation over clean images, so an image
differs from its domain's centre by a variance of about 1 (its content), in every batch of every model. If a batch's
descriptors vary by 1 + t, domains in it vary by t, and the posterior mean of image i's domain is

    batch mean + r (z_i - batch mean),    known to a variance of r + (1 - r) / n,    with r = t / (1 + t)

A batch of one domain has t = 0: its images share one sharp estimate. In a batch of many, they go their own ways.
"""

from __future__ import annotations

import base64
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
NAMES = ("mean", "variance", "descriptor", "codes", "scales", "contents")
"""What a state calls the arrays of a memory."""


@dataclass(frozen=True)
class Stored:
    """What is remembered of n images: vectors ``[n, layers, d]`` in 8 bits, and vectors of content in full.

    A vector is ``scales * codes``: its largest number has the largest code. Vectors are averaged over many images that
    differ by far more than this rounds, so 8 bits are plenty, for a fourth of the memory and of the time to average.
    """

    codes: Codes
    """``[n, layers, d]``."""
    scales: Single
    """``[n, layers]``."""
    contents: Single
    """``[n, k]``."""

    @classmethod
    def of(cls, vectors: Single, contents: Floats) -> Stored:
        """Round vectors ``[n, layers, d]``, whose numbers should be of one size within a layer."""
        # Nothing at all has a scale too, which is as good as none.
        scales = np.maximum.reduce(np.abs(vectors), axis=2, initial=LARGEST_CODE * 1e-30) / np.float32(LARGEST_CODE)
        codes = vectors / scales[:, :, None]
        return cls(np.rint(codes, out=codes).astype(np.int8), scales, np.asarray(contents, dtype=np.float32))

    def __len__(self) -> int:
        """Count the images."""
        return len(self.codes)

    def average(self, shares: Floats) -> tuple[Single, Single]:
        """Average by ``shares`` ``[m, n]``: vectors ``[m, layers, d]`` and contents ``[m, k]``."""
        parts = shares.astype(np.float32)
        if len(parts) == 1:
            return self._mean(parts[0])
        vectors = np.empty((len(parts), *self.codes.shape[1:]), dtype=np.float32)
        numbers = np.empty((self.codes.shape[0], self.codes.shape[2]), dtype=np.float32)
        for layer in range(self.codes.shape[1]):  # one after the other, to stay in the cache; einsum wakes no threads
            numbers[...] = self.codes[:, layer]
            np.einsum("mn,nd->md", parts * self.scales[:, layer], numbers, out=vectors[:, layer])
        return vectors, np.einsum("mn,nk->mk", parts, self.contents)

    def _mean(self, parts: Single) -> tuple[Single, Single]:
        """Average by one row of shares ``[n]``, some images at a time in the order in which they lie in memory."""
        count, layers, width = self.codes.shape
        vectors = np.zeros((1, layers, width), dtype=np.float32)
        for start in range(0, count, step := max(1, AVERAGED // max(layers * width, 1))):
            some = slice(start, start + step)
            weights = parts[some, None] * self.scales[some]
            vectors += np.einsum("nl,nld->ld", weights, self.codes[some].astype(np.float32))
        return vectors, np.einsum("n,nk->k", parts, self.contents)[None]


@dataclass(frozen=True)
class DomainEstimate:
    """Descriptors of the domains of n images with their variances, and the images' own: ``[n, features]`` each."""

    mean: Array
    variance: Array
    descriptor: Array

    def part(self, images: slice | npt.NDArray[np.bool_]) -> DomainEstimate:
        """Estimates of some of the images."""
        return DomainEstimate(self.mean[images], self.variance[images], self.descriptor[images])

    def encode(self) -> str:
        """One domain's mean and variance as text."""
        return base64.b64encode(np.ascontiguousarray([self.mean[0], self.variance[0]], dtype="<f8").tobytes()).decode()

    @classmethod
    def decode(cls, text: str, features: int) -> DomainEstimate:
        """Read what :meth:`encode` made; the mean stands in for the image's own descriptor."""
        try:
            mean, variance = np.frombuffer(base64.b64decode(text, validate=True), "<f8").reshape(2, 1, features)
        except ValueError as error:
            raise FozoError(f"an estimate of the journal cannot be read ({error}); use a copy from before") from error
        if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance > 0).all()):
            raise FozoError("an estimate of the journal is not finite; use a copy from before")
        return cls(mean.astype(np.float64), variance.astype(np.float64), mean.astype(np.float64))

    def distinct(self) -> DomainEstimate:
        """One row if all images share one estimate, else all of them."""
        return self.part(slice(0, 1)) if len(self.mean) > 1 and (self.mean == self.mean[0]).all() else self

    def same_domain(self) -> DomainEstimate:
        """One row if all images are of one domain, as far as their estimates tell, else all of them.

        That is as :meth:`RetrievalConfig.weights` judges: estimates of one domain differ by 1 on average. Such rows
        would retrieve the same memories; one is a fraction of the work.
        """
        own = self.distinct()
        if len(own.mean) == 1:
            return own
        mean, variance = self.mean.mean(axis=0), self.variance.mean(axis=0)
        off = np.square(self.mean - mean) / (self.variance + variance)
        if off.mean(axis=1).max() > 1:
            return self
        return DomainEstimate(mean[None], variance[None], self.descriptor.mean(axis=0)[None])


@dataclass(frozen=True)
class RetrievalConfig:
    """How much earlier images weigh."""

    context: int = 16
    """Smaller batches are judged together with the images before them, this many in all."""
    dimensions: float = 4.0
    """Independent directions among the features of a descriptor, which are many but go together; with 0 every
    remembered image weighs alike."""
    half_life: float = 64.0
    """An image weighs half after this many newer ones of the same domain."""
    capacity: int = 512
    """Images remembered."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
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
        spread = np.add.reduce(np.square(joined - mean), axis=0) / (count - 1)
        between = np.maximum(spread - (1 + 2 * math.sqrt(2 / (count - 1))), 0)
        share = between / (1 + between)
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

        As for two domains in :meth:`weights`, but narrow content may shift the descriptors of clean images a little.
        The features of ``brightness`` are judged by themselves too: an exposure that is off changes them and hardly
        anything else, so the average over all features does not tell.
        """
        squared = domains.mean**2 / (domains.variance + CONTENT_VARIANCE)
        all_off = self.dimensions * np.maximum(squared.mean(axis=1) - 1, 0)
        brightness_off = np.maximum(squared[:, brightness].mean(axis=1) - 1, 0)
        alike: Array = np.exp(-np.maximum(all_off, brightness_off) / 2)
        return alike

    def weights(self, domains: DomainEstimate, remembered: DomainEstimate, oldest: int = 0) -> Array:
        """Weigh each remembered image for each of ``domains``: ``[n, remembered]``, 1 at most.

        They are in the order in which they came, beginning with ``oldest`` and going on at 0 after the last.
        """
        distance = np.empty((len(domains.mean), len(remembered.mean)))
        for row, (mean, variance) in enumerate(zip(domains.mean, domains.variance, strict=True)):
            difference = remembered.mean - mean
            # Of one domain, this is 1 on average, whatever the sizes of the batches that the estimates were made from.
            np.square(difference, out=difference)
            difference /= remembered.variance + variance
            difference.mean(axis=1, out=distance[row])
        alike = np.exp(-self.dimensions / 2 * np.maximum(distance - 1, 0))
        newer = alike.sum(axis=1, keepdims=True) - np.cumsum(alike, axis=1)
        if oldest:  # so far as if the first were the oldest
            newest = newer[:, oldest - 1 : oldest].copy()
            newer[:, oldest:] += alike[:, :oldest].sum(axis=1, keepdims=True)
            newer[:, :oldest] -= newest
        weights: Array = alike * 0.5 ** (newer / self.half_life)
        return weights


@dataclass(frozen=True)
class Retrieved:
    """How much each remembered image counts for each domain estimate, or for one that all images share."""

    shares: Array
    """``[n or 1, remembered]``; rows add up to 1, unless nothing is of the domain."""
    descriptor: Array
    """Weighted average of the descriptors, ``[n or 1, features]``."""
    effective_sample_size: Array
    """How many images such averages rest on (Kish), ``[n or 1]``."""

    def part(self, images: slice) -> Retrieved:
        """Of some of the images; a row that all share stays."""
        if len(self.shares) == 1:
            return self
        return Retrieved(self.shares[images], self.descriptor[images], self.effective_sample_size[images])


class Memory:
    """The most recent images in a ring: their domain estimates, and what is to be averaged.

    Rows are written in place. :meth:`mark` and :meth:`rollback` undo that, at the price of the rows overwritten since.
    """

    def __init__(self, features: int, form: tuple[int, int, int], config: RetrievalConfig) -> None:
        """Begin empty. ``features`` is the size of a descriptor, ``form`` layers, width and contents of a row."""
        self.config, self.form = config, form
        layers, width, contents = form
        capacity = config.capacity
        self._domains = DomainEstimate(*(np.zeros((capacity, features)) for _ in range(3)))
        self._stored = Stored(
            np.zeros((capacity, layers, width), dtype=np.int8),
            np.zeros((capacity, layers), dtype=np.float32),
            np.zeros((capacity, contents), dtype=np.float32),
        )
        self._count, self._next = 0, 0
        self._undo: list[tuple[int, int, slice | npt.NDArray[np.intp], list[npt.NDArray[np.generic]]]] = []

    def __len__(self) -> int:
        """Images remembered."""
        return self._count

    @property
    def domains(self) -> DomainEstimate:
        """Estimates of all images, in the order in which they are kept; to be read before more are added."""
        return self._domains.part(slice(0, self._count))

    def _arrays(self) -> list[npt.NDArray[np.generic]]:
        domains, stored = self._domains, self._stored
        return [domains.mean, domains.variance, domains.descriptor, stored.codes, stored.scales, stored.contents]

    def _named(self) -> dict[str, npt.NDArray[np.generic]]:
        """What a state holds: a black box has neither codes nor contents."""
        return {name: array for name, array in zip(NAMES, self._arrays(), strict=True) if array.size}

    def state(self) -> State:
        """Copies of all by name, in the order in which they are kept: averages depend on it in their last digits."""
        rows = {name: array[: self._count].copy() for name, array in self._named().items()}
        return {**rows, "next": np.array(self._next)}

    def load(self, state: State) -> None:
        """Go on from a state."""
        count, after, capacity = len(state["mean"]), int(state["next"]), self.config.capacity
        if count > capacity or after != (count % capacity if count < capacity else after % capacity):
            raise FozoError(
                f"the state remembers {count} images, of {capacity} at most, and goes on at place {after}; save the "
                f"state again"
            )
        for name, array in self._named().items():
            array[:count] = state[name]
        self._count, self._next = count, after
        if not ((self.domains.variance > 0).all() and (self._stored.scales >= 0).all()):
            raise FozoError("the state remembers variances that are not positive; save the state again")

    def latest(self, images: int) -> Array:
        """Descriptors of the latest images, so many at most, the oldest first."""
        found: Array = self._domains.descriptor[self._places(self._next - min(images, self._count), self._next)]
        return found

    def _places(self, start: int, stop: int) -> slice | npt.NDArray[np.intp]:
        """Rows of the ring from ``start`` on, which may be negative, to ``stop``, which may be beyond its end."""
        capacity = self.config.capacity
        return slice(start, stop) if start >= 0 and stop <= capacity else np.arange(start, stop) % capacity

    def retrieve(self, domains: DomainEstimate) -> Retrieved:
        """Say which images are of the same domains.

        Images that share one estimate share one row: a batch of one domain is moved as one.
        """
        own = self.domains
        oldest = self._next if self._count == self.config.capacity else 0
        weights = self.config.weights(domains.distinct(), own, oldest)
        total = weights.sum(axis=1)
        # Kish's effective sample size; the total weight caps it, so that distant images do not count for many.
        kish = total**2 / np.maximum(np.square(weights).sum(axis=1), 1e-300)
        shares = weights / np.maximum(total, 1e-300)[:, None]
        return Retrieved(shares, np.einsum("mn,nf->mf", shares, own.descriptor), np.minimum(kish, total))

    def average(self, retrieved: Retrieved) -> tuple[Single, Single]:
        """Average what is remembered: vectors ``[n or 1, layers, d]`` and contents ``[n or 1, k]``."""
        some, stored = slice(0, self._count), self._stored
        return Stored(stored.codes[some], stored.scales[some], stored.contents[some]).average(retrieved.shares)

    def add(self, domains: DomainEstimate, stored: Stored) -> None:
        """Remember images, forgetting the oldest."""
        capacity = self.config.capacity
        new: list[npt.NDArray[np.generic]]
        new = [domains.mean, domains.variance, domains.descriptor, stored.codes, stored.scales, stored.contents]
        count = min(len(stored), capacity)
        places = self._places(self._next, self._next + count)
        self._undo.append((self._count, self._next, places, [array[places].copy() for array in self._arrays()]))
        for array, rows in zip(self._arrays(), new, strict=True):
            array[places] = rows[len(rows) - count :]
        self._count, self._next = min(self._count + count, capacity), (self._next + count) % capacity

    def mark(self) -> int:
        """Say where :meth:`rollback` is to return to."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undo all that was added since a mark."""
        while len(self._undo) > mark:
            self._count, self._next, places, old = self._undo.pop()
            for array, rows in zip(self._arrays(), old, strict=True):
                array[places] = rows

    def commit(self) -> None:
        """What was added so far is not to be undone any more."""
        self._undo.clear()
