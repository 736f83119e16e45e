"""Slots: what a camera remembers of the few domains that it has seen, and which of them these images are of.

A deployed model is not told when its domain changes, or that last week's fog is back. Images are told apart by their
descriptors (:mod:`fozo.core.descriptor`): a group belongs to the slot whose domain estimate agrees best with its own,
and to a new one where none does. In a slot, an image weighs half after ``HALF_LIFE`` newer ones of the same domain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from fozo.core.descriptor import Single
from fozo.core.tokens import Indices
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

    def joined(self, domain: DomainEstimate) -> Slot:
        """The slot whose domain estimate has taken in that of a group, one row."""
        mean = domain.mean[0]
        variance = domain.variance[0]
        if not self.images:
            return replace(self, domain_mean=mean.astype(np.float32), domain_variance=variance.astype(np.float32))
        joined_variance = 1 / (1 / self.domain_variance + 1 / variance)
        joined_mean = joined_variance * (self.domain_mean / self.domain_variance + mean / variance)
        return replace(
            self,
            domain_mean=joined_mean.astype(np.float32),
            domain_variance=np.maximum(joined_variance, 1 / HALF_LIFE).astype(np.float32),
        )


def nearest(slots: Sequence[Slot], domain: DomainEstimate) -> int | None:
    """The slot whose domain agrees best with an estimate of one row, if any does."""
    distances = []
    for slot in slots:
        variance = slot.domain_variance + domain.variance[0]
        distances.append(float(np.mean(np.square(slot.domain_mean - domain.mean[0]) / variance)))
    if not distances or min(distances) >= SAME_DOMAIN:
        return None
    return int(np.argmin(distances))


def with_room(slots: tuple[Slot, ...], most: int) -> tuple[Slot, ...]:
    """Drop the least recently used slots beyond ``most``; strays first."""
    excess = max(0, len(slots) - most)
    by_use = sorted(range(len(slots)), key=lambda index: (slots[index].images >= STRAY_IMAGES, index))
    dropped = by_use[:excess]
    return tuple(slot for index, slot in enumerate(slots) if index not in dropped)


def with_heavy_room(slots: tuple[Slot, ...], in_use: Sequence[Slot], seen: int) -> tuple[Slot, ...] | None:
    """Make room for covariances of one more slot; nothing where all that have them are in use or not yet idle."""
    heavy = [index for index, slot in enumerate(slots) if slot.covariances is not None]
    if len(heavy) + sum(slot.covariances is not None for slot in in_use) < HEAVY_SLOTS:
        return slots
    oldest = min(heavy, key=lambda index: slots[index].last, default=None)
    if oldest is None or seen - slots[oldest].last < IDLE_IMAGES:
        return None
    lightened = replace(slots[oldest], covariances=None)
    return (*slots[:oldest], lightened, *slots[oldest + 1 :])


@dataclass(frozen=True)
class Visit:
    """Images of a group that are of one domain."""

    rows: Indices
    slot: Slot
    """Theirs as it was before the group; a new one has no images."""
    domain: DomainEstimate
    """Of the domain, one row."""


def visits(
    slots: tuple[Slot, ...], domains: DomainEstimate, new_slot: Callable[[DomainEstimate], Slot]
) -> tuple[list[Visit], tuple[Slot, ...]]:
    """Sort the images of a group by domain; the other slots are returned too.

    A group whose estimates agree goes together. Otherwise each image belongs to the slot that is nearest to it.
    """
    agreeing = len(domains.same_domain().mean) == 1
    sets = [np.arange(len(domains.mean))] if agreeing else np.arange(len(domains.mean))[:, None]
    known = list(slots)
    rows_of: dict[int, list[int]] = {}
    for rows in sets:
        domain = domains.part(rows).average()
        index = nearest(known, domain)
        if index is None:
            index = len(known)
            known.append(new_slot(domain))
        rows_of.setdefault(index, []).extend(rows)
    visited = []
    for index, rows in rows_of.items():
        visited.append(Visit(np.array(rows), known[index], domains.part(np.array(rows)).average()))
    return visited, tuple(slot for index, slot in enumerate(slots) if index not in rows_of)


def owners(visited: Sequence[Visit]) -> Indices:
    """Which visit each image of a group belongs to, ``[B]``; one number for all where there is one visit."""
    if len(visited) == 1:
        return np.zeros(1, np.intp)
    owner = np.empty(sum(len(visit.rows) for visit in visited), np.intp)
    for index, visit in enumerate(visited):
        owner[visit.rows] = index
    return owner
