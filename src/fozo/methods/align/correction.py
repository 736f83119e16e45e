"""Corrections: what is done to the images of one domain, decided once for as many of them as the evidence is good for.

Finding memories, averaging them and planning moves costs about the same for one image as for sixty-four. A correction
rests on some effective samples. Until a quarter as many new images have come, it would hardly change, so it is cached
for images whose descriptors are of the same domain. A new domain has no evidence: each of its groups gets a new
correction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fozo.errors import FozoError
from fozo.methods.align.retrieval import DomainEstimate
from fozo.types import NO_KNOBS, Array, Floats, Knobs, Move, State

PART = 0.25
"""New images that a correction is kept for, as a part of the effective samples that it rests on."""


@dataclass(frozen=True)
class Correction:
    """Equaliser and moves for images of one domain, or a row of them for each image."""

    drifted: Array
    """How far images are from clean ones, 0 to 1, ``[n or 1]``."""
    deficit: Array
    """Log energy that the equaliser gives back, ``[n or 1, channels, bands]``."""
    knobs: Knobs
    samples: Array
    """Effective samples that it rests on, ``[n or 1]``."""
    domains: DomainEstimate
    """Of the images that it was made for."""
    left: int = 0
    """Images that it is still good for."""

    def serves(self, domains: DomainEstimate) -> bool:
        """Whether it is still good for images: not too many, and all of the one domain it was made for."""
        count = len(domains.mean)
        if count > self.left:
            return False
        own, theirs = self.domains, domains.same_domain()
        if len(theirs.mean) > 1:
            return False
        off = np.square(theirs.mean[0] - own.mean[0]) / (theirs.variance[0] + own.variance[0])
        return bool(off.mean() <= 1)  # what two estimates of one domain differ by

    def used(self, images: int) -> Correction | None:
        """The same, for fewer images to come, if it is good for any."""
        if self.left <= images:
            return None
        left = self.left - images
        return Correction(self.drifted, self.deficit, self.knobs, self.samples, self.domains, left)

    def kept(self) -> Correction | None:
        """Itself, to be used again, if it is of one domain and rests on anything."""
        left = int(PART * self.samples[0]) if len(self.samples) == 1 else 0
        return replace(self, left=left, domains=self.domains.part(slice(0, 1))) if left else None


def correction_state(
    correction: Correction | None, depth: int, dim: int, features: int, bands: tuple[int, int]
) -> State:
    """Write a correction as named arrays; none is one that is good for no image."""
    if correction is None:
        nothing = DomainEstimate(*(np.ones((1, features)) for _ in range(3)))
        correction = Correction(np.zeros(1), np.zeros((1, *bands)), NO_KNOBS, np.zeros(1), nothing)
    moves = np.zeros((3, depth, dim), dtype=np.float32)
    moves[0] = 1
    if correction.knobs.patches is not None and correction.knobs.cls is not None:
        move = correction.knobs.patches
        moves[...] = move.scale[0, 0], move.shift[0, 0], correction.knobs.cls.shift[0, 0]
    return {
        "correction_moves": moves,
        "correction_deficit": correction.deficit[0],
        "correction_domain": np.concatenate([correction.domains.mean[:1], correction.domains.variance[:1]]),
        "correction_scalars": np.array([correction.drifted[0], correction.samples[0], correction.left]),
    }


def correction_of(state: State, negligible: float) -> Correction | None:
    """Read what :func:`correction_state` wrote; where ``drifted`` is negligible, nothing is moved."""
    drifted, samples, left = (float(value) for value in state["correction_scalars"])
    mean, variance = state["correction_domain"][:, None]
    if not (0 <= drifted <= 1 and samples >= 0 and 0 <= left <= samples and (variance > 0).all()):
        raise FozoError("the state's correction is none that adaptation leads to; save the state again")
    if not left:
        return None
    moves: Floats = state["correction_moves"][:, None, None]  # type: ignore[assignment]
    knobs = NO_KNOBS
    if drifted > negligible:
        knobs = Knobs(cls=Move(np.ones_like(moves[0]), moves[2]), patches=Move(moves[0], moves[1]))
    return Correction(
        np.array([drifted]),
        state["correction_deficit"][None],  # type: ignore[arg-type]
        knobs,
        np.array([samples]),
        DomainEstimate(mean, variance, mean),
        int(left),
    )
