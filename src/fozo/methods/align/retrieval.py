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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.methods.base import positive
from fozo.types import Array

CONTENT_VARIANCE = 0.25
"""How far, squared, the average descriptor of clean images of one kind of thing may be from that of all. The groups of
classes that Align was tuned on stay below it, and far above it under the extra corruptions at severity 3."""

Stored = npt.NDArray[np.float16]
"""What is remembered of images is averaged over many: half precision is plenty, and half the memory."""


@dataclass(frozen=True)
class DomainEstimate:
    """Descriptors of the domains of n images with their variances, and the images' own: ``[n, features]`` each."""

    mean: Array
    variance: Array
    descriptor: Array

    def part(self, images: slice | npt.NDArray[np.bool_]) -> DomainEstimate:
        """Estimates of some of the images."""
        return DomainEstimate(self.mean[images], self.variance[images], self.descriptor[images])

    def distinct(self) -> DomainEstimate:
        """One row if all images share one estimate, else all of them."""
        return self.part(slice(0, 1)) if np.ptp(self.mean, axis=0).max() == 0 else self


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
        mean = joined.mean(axis=0)
        # The variance of few images is itself uncertain: what lies within two standard errors of 1 counts as 1.
        excess = joined.var(axis=0, ddof=1) - 1 - 2 * np.sqrt(2 / (count - 1))
        between = np.maximum(excess, 0)
        share = between / (1 + between)
        posterior = mean + share * (descriptors - mean)
        variance = np.maximum(share + (1 - share) ** 2 * (1 + between) / count, 1 / count)
        return DomainEstimate(posterior, np.broadcast_to(variance, descriptors.shape), descriptors)

    def posterior(self, domains: DomainEstimate, retrieved: Retrieved) -> DomainEstimate:
        """Sharpen estimates by the descriptors of the images retrieved, each an observation of variance 1."""
        evidence = retrieved.effective_sample_size[:, None]
        variance = 1 / (1 / domains.variance + evidence)
        mean = variance * (domains.mean / domains.variance + evidence * retrieved.descriptor)
        return DomainEstimate(mean, variance, domains.descriptor)

    def looks_clean(self, domains: DomainEstimate, brightness: slice) -> Array:
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

    def weights(self, domains: DomainEstimate, remembered: DomainEstimate) -> Array:
        """Weigh each remembered image for each of ``domains``: ``[n, remembered]``, 1 at most."""
        difference = domains.mean[:, None] - remembered.mean[None]
        # Of one domain, this is 1 on average, whatever the sizes of the batches that the estimates were made from.
        distance = (difference**2 / (domains.variance[:, None] + remembered.variance[None])).mean(axis=2)
        alike = np.exp(-self.dimensions / 2 * np.maximum(distance - 1, 0))
        newer = alike.sum(axis=1, keepdims=True) - np.cumsum(alike, axis=1)
        weights: Array = alike * 0.5 ** (newer / self.half_life)
        return weights


@dataclass(frozen=True)
class Retrieved:
    """Weighted averages over earlier images, one row for each domain estimate or one for all."""

    values: Array
    """``[n or 1, width]``."""
    descriptor: Array
    """``[n or 1, features]``."""
    effective_sample_size: Array
    """How many images the averages rest on (Kish), ``[n or 1]``."""


class Memory:
    """The most recent images: their domain estimates, and one vector each to be averaged."""

    def __init__(self, features: int, width: int, config: RetrievalConfig) -> None:
        """Begin empty. ``features`` is the size of a descriptor, ``width`` that of a vector."""
        self.config = config
        empty = np.zeros((0, features))
        self.domains = DomainEstimate(empty, empty, empty)
        self.values: Stored = np.zeros((0, width), dtype=np.float16)

    def __len__(self) -> int:
        """Images remembered."""
        return len(self.values)

    def retrieve(self, domains: DomainEstimate) -> Retrieved:
        """Average over the images of the same domains.

        Images that share one estimate share one row: a batch of one domain is moved as one.
        """
        weights = self.config.weights(domains.distinct(), self.domains)
        total = weights.sum(axis=1)
        # Kish's effective sample size; the total weight caps it, so that distant images do not count for many.
        kish = total**2 / np.maximum((weights**2).sum(axis=1), 1e-300)
        shares = weights / np.maximum(total, 1e-300)[:, None]
        values = (shares.astype(np.float32) @ self.values.astype(np.float32)).astype(np.float64)
        return Retrieved(values, shares @ self.domains.descriptor, np.minimum(kish, total))

    def add(self, domains: DomainEstimate, values: Stored) -> None:
        """Remember images, forgetting the oldest. Arrays are replaced, never written into: a copy is a reference."""
        capacity, old = self.config.capacity, self.domains
        pairs = ((old.mean, domains.mean), (old.variance, domains.variance), (old.descriptor, domains.descriptor))
        self.domains = DomainEstimate(*(np.concatenate(pair)[-capacity:] for pair in pairs))
        self.values = np.concatenate([self.values, values])[-capacity:]
