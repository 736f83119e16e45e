"""Domains: what the descriptors of a batch say of those that its images are of, and whether these have drifted.

A deployed model is not told when its domain changes, whether a batch mixes domains, or that last week's fog is back.
Each image gets an estimate of its domain's descriptor, with a variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.methods.common.options import positive
from fozo.types import Array, Floats

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

    def part(self, images: slice | npt.NDArray[np.intp]) -> DomainEstimate:
        return DomainEstimate(self.mean[images], self.variance[images], self.descriptor[images])

    def average(self) -> DomainEstimate:
        """The average of all rows, one row."""
        return DomainEstimate(*(values.mean(axis=0, keepdims=True) for values in vars(self).values()))

    def sharpened(self, descriptor: Floats, samples: float | Array) -> DomainEstimate:
        """Take in the average ``descriptor`` of so many other images, each an observation of variance 1."""
        variance = 1 / (1 / self.variance + samples)
        mean = variance * (self.mean / self.variance + samples * descriptor)
        return DomainEstimate(mean, variance, self.descriptor)

    def same_domain(self) -> DomainEstimate:
        """One row if all images are of one domain by their estimates, else all of them.

        Estimates of one domain differ by a normalised squared distance of 1 on average, see
        :func:`~fozo.methods.equalise.retrieve`. Such rows would retrieve the same memories.
        """
        if len(self.mean) == 1:
            return self
        average = self.average()
        distance = np.square(self.mean - average.mean) / (self.variance + average.variance)
        return self if distance.mean(axis=1).max() > 1 else average


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

        As for two domains in :func:`~fozo.methods.equalise.retrieve`, but narrow content may shift the descriptors of
        clean images by ``CONTENT_VARIANCE``, and squares of few independent numbers are often far above their average,
        1: what lies within ``CHANCE`` standard deviations of it does not count as evidence. The features of
        ``brightness`` are judged by themselves too: a wrong exposure changes them and hardly anything else, so the
        average over all features does not show it.
        """
        squared = domains.mean**2 / (domains.variance + CONTENT_VARIANCE)
        chance = CHANCE * math.sqrt(2 / max(self.dimensions, 1))
        distance = self.dimensions * np.maximum(squared.mean(axis=1) - 1 - chance, 0)
        brightness_distance = np.maximum(squared[:, brightness].mean(axis=1) - 1 - CHANCE * math.sqrt(2), 0)
        evidence: Array = -np.expm1(-np.maximum(distance, brightness_distance) / 2)
        return evidence
