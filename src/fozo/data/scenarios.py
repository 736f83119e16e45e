"""Scenarios: the order in which a deployed model sees domains and images.

A scenario is a sequence of *segments*, each a domain (or several mixed together) of which every image comes
once, and a rule for the order of the images inside a segment. It knows nothing of pixels or batches.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fozo.data.corruptions import KINDS
from fozo.data.sets.base import CLEAN, Domain, shuffled
from fozo.errors import FozoError

Positions = npt.NDArray[np.int64]


class Segment(NamedTuple):
    """A stretch of the stream in which every image of its domains comes exactly once."""

    domains: tuple[Domain, ...]
    reset: bool = False
    """Whether methods are reset here."""

    @property
    def name(self) -> str:
        return self.domains[0].name if len(self.domains) == 1 else "mixed"


@dataclass(frozen=True, kw_only=True)
class Scenario(ABC):
    """What all scenarios share."""

    name: ClassVar[str]
    kinds: tuple[str, ...] = KINDS
    """Corruptions in their order of appearance, the paper's by default; ``("clean",)`` for none."""

    def __post_init__(self) -> None:
        if not isinstance(self.kinds, tuple) or not self.kinds:  # a bare string would be read letter by letter
            raise FozoError(f"kinds is {self.kinds!r}; give a tuple of at least one name, such as ('fog',)")

    @abstractmethod
    def segments(self) -> tuple[Segment, ...]: ...

    def order(self, labels: Positions, seed: int, number: int) -> Positions:
        """Order the images of segment ``number``, given their labels: at random, unless overridden."""
        return shuffled(len(labels), seed, number)


@dataclass(frozen=True, kw_only=True)
class Level(Scenario):
    """Every kind at one severity, one after another; ``clean`` has none."""

    severity: int = 5

    def segments(self) -> tuple[Segment, ...]:
        domains = (CLEAN if kind == CLEAN.kind else Domain(kind, self.severity) for kind in self.kinds)
        return tuple(Segment((domain,)) for domain in domains)


@dataclass(frozen=True, kw_only=True)
class Continual(Level):
    """One domain after another, nothing reset: the paper's main setting."""

    name: ClassVar[str] = "continual"
    shuffle: bool = True
    """``False`` keeps the set's own order in every domain."""

    def order(self, labels: Positions, seed: int, number: int) -> Positions:
        return super().order(labels, seed, number) if self.shuffle else np.arange(len(labels))


@dataclass(frozen=True, kw_only=True)
class Sorted(Level):
    """As continual, but sorted by class: of ImageNet's classes, those that follow each other are alike."""

    name: ClassVar[str] = "sorted"

    def order(self, labels: Positions, seed: int, number: int) -> Positions:
        random = super().order(labels, seed, number)
        return random[np.argsort(labels[random], kind="stable")]


@dataclass(frozen=True, kw_only=True)
class Episodic(Continual):
    """As continual, but methods are reset at the beginning of each domain."""

    name: ClassVar[str] = "episodic"

    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment._replace(reset=True) for segment in super().segments())


@dataclass(frozen=True, kw_only=True)
class Recurring(Continual):
    """The whole sequence of domains comes back, ``rounds`` times in all; images in a new order each time."""

    name: ClassVar[str] = "recurring"
    rounds: int = 10

    def segments(self) -> tuple[Segment, ...]:
        if self.rounds < 1:
            raise FozoError(f"recurring has rounds={self.rounds}; give at least 1")
        return super().segments() * self.rounds


@dataclass(frozen=True, kw_only=True)
class Mixed(Level):
    """All domains shuffled together, so that a batch has images of many."""

    name: ClassVar[str] = "mixed"

    def segments(self) -> tuple[Segment, ...]:
        return (Segment(tuple(segment.domains[0] for segment in super().segments())),)


@dataclass(frozen=True, kw_only=True)
class Day(Level):
    """Stretches of clean images, and after each of them one of all kinds mixed, ``rounds`` times in all."""

    name: ClassVar[str] = "day"
    rounds: int = 8

    def segments(self) -> tuple[Segment, ...]:
        mixed = Segment(tuple(segment.domains[0] for segment in super().segments()))
        return (Segment((CLEAN,)), mixed) * self.rounds


@dataclass(frozen=True, kw_only=True)
class Gradual(Scenario):
    """Each kind swells and fades: severity 1-2-3-4-5-4-3-2-1."""

    name: ClassVar[str] = "gradual"

    def segments(self) -> tuple[Segment, ...]:
        if CLEAN.kind in self.kinds:
            raise FozoError("gradual goes through severities, which clean images do not have; leave out 'clean'")
        ramp = (1, 2, 3, 4, 5, 4, 3, 2, 1)
        return tuple(Segment((Domain(kind, severity),)) for kind in self.kinds for severity in ramp)


@dataclass(frozen=True, kw_only=True)
class Correlated(Level):
    """Labels are correlated in time, as a camera sees them: Dirichlet-sorted within each domain.

    As in NOTE and RoTTA: the images of each class are divided among time slots by shares drawn from a Dirichlet
    distribution, and inside a slot the images of a class follow each other.
    """

    name: ClassVar[str] = "correlated"
    delta: float = 0.1
    """The Dirichlet parameter: the smaller, the more a class is concentrated in one slot."""
    SLOTS: ClassVar[int] = 100

    def segments(self) -> tuple[Segment, ...]:
        if not self.delta > 0:
            raise FozoError(f"correlated has delta={self.delta}; give a number above 0 (0.1 is usual)")
        return super().segments()

    def order(self, labels: Positions, seed: int, number: int) -> Positions:
        random = super().order(labels, seed, number)
        by_class = random[np.argsort(labels[random], kind="stable")]
        _, begins, which, counts = np.unique(
            labels[by_class], return_index=True, return_inverse=True, return_counts=True
        )
        rank = np.arange(len(labels)) - begins[which]  # each image's place within its class
        slots = min(self.SLOTS, len(counts))
        # Its own Philox counter keeps these draws apart from those of the shuffle with the same key.
        key = np.array([seed, number], dtype=np.uint64)
        generator = np.random.Generator(np.random.Philox(counter=[0, 0, 0, 1], key=key))
        shares = generator.dirichlet(np.full(slots, self.delta), size=len(counts))
        ends = np.rint(np.cumsum(shares, axis=1)[:, :-1] * counts[:, None])
        slot = np.count_nonzero(ends[which] <= rank[:, None], axis=1)
        turn = generator.random((slots, len(counts)))  # classes take turns in another order in each slot
        return by_class[np.lexsort((rank, turn[slot, which], slot))]


SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name: scenario for scenario in (Continual, Episodic, Sorted, Mixed, Gradual, Correlated, Recurring, Day)
}
