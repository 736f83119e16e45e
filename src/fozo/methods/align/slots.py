"""Slots: what a camera remembers of the few domains that it has seen, and which of them these images are of.

A deployed model is not told when its domain changes, or that last week's fog is back. Images are told apart by their
descriptors (:mod:`fozo.core.descriptor`): a group belongs to the slot whose domain estimate agrees best with its own,
and to a new one where none does. In a slot, an image weighs half after ``HALF_LIFE`` newer ones of the same domain.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fozo.core.descriptor import Single
from fozo.methods.align.memory import DomainEstimate
from fozo.methods.common.content_shift import ContentSums
from fozo.state import State
from fozo.types import Array

Half = npt.NDArray[np.float16]

HALF_LIFE = 64.0
SAME_DOMAIN = 1.6
"""Mean squared difference of two domain estimates, in units of their variances, below which they are of one domain:
two estimates of one domain differ by 1 on average."""
HEAVY_SLOTS = 4
"""Slots that remember covariances."""
IDLE_IMAGES = 64
"""A slot gives its covariances up to another one once so many images of the camera have been of other domains."""
STRAY_IMAGES = 16.0
"""Slots of fewer images are the first to make room for a new one."""


@dataclass(frozen=True)
class Covariances(State):
    """What is remembered of the patch tokens that enter the aligned blocks."""

    images: float
    """Effective images that it is known from."""
    mean: Single
    """Mean of every fourth patch token, ``[A, d]``."""
    second: Half
    """S: their covariance in units of clean deviations, upper triangle, ``[A, d (d + 1) / 2]``."""
    transport: Half
    """T: the maps to clean covariances when they were last computed, less the identity, upper triangle."""
    displacement: Array
    """D: how far these maps displace tokens, ``[A]``."""
    unmapped: float
    """Images since then."""

    def __post_init__(self) -> None:
        """Refuse what no stream leads to."""
        if min(self.images, self.unmapped) < 0:
            raise ValueError("covariances are of no images")


@dataclass(frozen=True)
class Slot(State):
    """What is remembered of one domain: averages over its images."""

    images: float
    """n: effective images."""
    domain_mean: Single
    """The domain's descriptor as its groups were estimated, ``[f]``: what new groups are compared with."""
    domain_variance: Single
    descriptor: Single
    """Average descriptor of the images, ``[f]``: what restoring them rests on."""
    noise: float
    """Their average noise."""
    content: Array
    """d: their average content vector less calibration's, ``[k]``."""
    mean_update: Single
    """a: what each block added to the mean of the patches, ``[L, d]``; in the first row, the mean that enters it."""
    cls_update: Single
    """The same of the CLS token, ``[L, d]``."""
    head: ContentSums
    """Sums that the re-centring of what the head reads rests on."""
    last: int
    """Images of the camera when it was last used."""
    covariances: Covariances | None
    """The largest part by far: few slots have it."""

    def __post_init__(self) -> None:
        """Refuse what no stream leads to."""
        if self.images < 0 or self.domain_variance.min(initial=1) <= 0:
            raise ValueError("a slot is of no images")

    def joined(self, mean: Array, variance: Array) -> Slot:
        """The slot whose domain estimate has taken in that of a group."""
        if not self.images:
            return replace(self, domain_mean=mean.astype(np.float32), domain_variance=variance.astype(np.float32))
        joined_variance = 1 / (1 / self.domain_variance + 1 / variance)
        joined_mean = joined_variance * (self.domain_mean / self.domain_variance + mean / variance)
        return replace(
            self,
            domain_mean=joined_mean.astype(np.float32),
            domain_variance=np.maximum(joined_variance, 1 / HALF_LIFE).astype(np.float32),
        )


def nearest(slots: tuple[Slot, ...], mean: Array, variance: Array) -> int | None:
    """The slot whose domain agrees best with an estimate, if any does."""
    distances = [
        float(np.mean(np.square(slot.domain_mean - mean) / (slot.domain_variance + variance))) for slot in slots
    ]
    if not distances or min(distances) >= SAME_DOMAIN:
        return None
    return int(np.argmin(distances))


def with_room(slots: tuple[Slot, ...], most: int) -> tuple[Slot, ...]:
    """Drop the least recently used slots until there is room for another; strays first."""
    kept = slots
    while len(kept) >= most:
        strays = [index for index, slot in enumerate(kept) if slot.images < STRAY_IMAGES]
        dropped = strays[0] if strays else 0
        kept = kept[:dropped] + kept[dropped + 1 :]
    return kept


def with_heavy_room(slots: tuple[Slot, ...], seen: int) -> tuple[Slot, ...] | None:
    """Make room for one more slot with covariances; nothing where all that have them are in use."""
    heavy = [index for index, slot in enumerate(slots) if slot.covariances is not None]
    if len(heavy) < HEAVY_SLOTS:
        return slots
    oldest = min(heavy, key=lambda index: slots[index].last)
    if seen - slots[oldest].last < IDLE_IMAGES:
        return None
    lightened = replace(slots[oldest], covariances=None)
    return (*slots[:oldest], lightened, *slots[oldest + 1 :])


def by_domain(slots: tuple[Slot, ...], domains: DomainEstimate) -> list[list[int]]:
    """Split a group that mixes domains: the images of each slot together, and each image that has none by itself."""
    if len(domains.same_domain().mean) == 1:
        return [list(range(len(domains.mean)))]
    sets: dict[tuple[str, int], list[int]] = {}
    for image, (mean, variance) in enumerate(zip(domains.mean, domains.variance, strict=True)):
        slot = nearest(slots, mean, variance)
        key = ("image", image) if slot is None else ("slot", slot)
        sets.setdefault(key, []).append(image)
    return list(sets.values())
