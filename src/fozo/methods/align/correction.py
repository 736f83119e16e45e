"""Corrections: what is done to the images of one domain, decided once for as many of them as the evidence is good for.

Finding memories, averaging them and planning moves costs about the same for one image as for sixty-four. A correction
rests on some effective samples. Until a quarter as many new images have come, it would hardly change, so it is cached
for images whose descriptors are of the same domain. A new domain has no evidence: each of its groups gets a new
correction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fozo.errors import FozoError
from fozo.methods.align.retrieval import DomainEstimate
from fozo.types import NO_KNOBS, Array, Floats, Knobs, Move, State

PART = 0.25
"""New images that a correction is cached for, as a part of the effective samples that it rests on."""
NEGLIGIBLE = 1e-6
"""Drift, or a weight of clean images, below which nothing is moved or learnt."""


@dataclass(frozen=True)
class Correction:
    """Equaliser and moves for images of one domain, or a row of them for each image."""

    drifted: Array
    """How far images are from clean ones, 0 to 1, ``[n or 1]``."""
    log_gains: Array
    """Of the equaliser, ``[n or 1, channels, bands]``."""
    knobs: Knobs
    samples: Array
    """Effective samples that it rests on, ``[n or 1]``."""
    domains: DomainEstimate
    """Of the images that it was made for."""
    left: int = 0
    """Images that it may still be used for."""

    @classmethod
    def none(cls, features: int, bands: tuple[int, int]) -> Correction:
        """One that may be used for no image."""
        domain = DomainEstimate(*np.ones((3, 1, features)))
        return cls(np.zeros(1), np.zeros((1, *bands)), NO_KNOBS, np.zeros(1), domain)

    def serves(self, domains: DomainEstimate) -> bool:
        """Whether images are all of the one domain that it was made for."""
        theirs = domains.same_domain()
        if len(theirs.mean) > 1:
            return False
        distance = np.square(theirs.mean - self.domains.mean) / (theirs.variance + self.domains.variance)
        return bool(distance.mean() <= 1)  # what two estimates of one domain differ by

    def state(self, depth: int, dim: int) -> State:
        moves = np.zeros((3, depth, dim), dtype=np.float32)
        moves[0] = 1
        if self.knobs.patches is not None and self.knobs.cls is not None:
            move = self.knobs.patches
            moves[...] = move.scale[0, 0], move.shift[0, 0], self.knobs.cls.shift[0, 0]
        return {
            "correction_moves": moves,
            "correction_log_gains": self.log_gains[0],
            "correction_domain": np.concatenate([self.domains.mean, self.domains.variance]),
            "correction_scalars": np.array([self.drifted[0], self.samples[0], self.left]),
        }

    @classmethod
    def of_state(cls, state: State) -> Correction:
        """Read what :meth:`state` wrote."""
        drifted, samples, left = (float(value) for value in state["correction_scalars"])
        mean, variance = state["correction_domain"].astype(np.float64)[:, None]
        if not (0 <= drifted <= 1 and samples >= 0 and 0 <= left <= samples and (variance > 0).all()):
            raise FozoError("adaptation cannot lead to the correction of this state; save the state again")
        moves: Floats = state["correction_moves"].astype(np.float32)[:, None, None]
        knobs = NO_KNOBS
        if drifted > NEGLIGIBLE:
            knobs = Knobs(cls=Move(np.ones_like(moves[0]), moves[2]), patches=Move(moves[0], moves[1]))
        log_gains = state["correction_log_gains"].astype(np.float64)[None]
        domain = DomainEstimate(mean, variance, mean)
        return cls(np.array([drifted]), log_gains, knobs, np.array([samples]), domain, int(left))
