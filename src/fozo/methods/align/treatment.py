"""Treatments: what is done to the images of one domain, decided once for as many of them as the evidence is good for.

To find memories, average them and plan moves costs about the same for one image as for sixty-four. A treatment rests on
some effective samples; until a quarter as many new images have come, those could hardly change it, so it is kept as
long as images are of the same domain by their descriptors. A new domain has no evidence: its treatment is made anew
for every group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fozo.errors import FozoError
from fozo.methods.align.retrieval import DomainEstimate
from fozo.types import NO_KNOBS, Array, Floats, Knobs, Move, State

PART = 0.25
"""New images that a treatment is kept for, as a part of the effective samples that it rests on."""


@dataclass(frozen=True)
class Treatment:
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
        own, theirs = self.domains, domains.alike()
        if len(theirs.mean) > 1:
            return False
        off = np.square(theirs.mean[0] - own.mean[0]) / (theirs.variance[0] + own.variance[0])
        return bool(off.mean() <= 1)  # what two estimates of one domain differ by

    def used(self, images: int) -> Treatment | None:
        """The same, for fewer images to come, if it is good for any."""
        if self.left <= images:
            return None
        left = self.left - images
        return Treatment(self.drifted, self.deficit, self.knobs, self.samples, self.domains, left)

    def kept(self) -> Treatment | None:
        """Itself, to be used again, if it is of one domain and rests on anything."""
        left = int(PART * self.samples[0]) if len(self.samples) == 1 else 0
        return replace(self, left=left, domains=self.domains.part(slice(0, 1))) if left else None


def treatment_state(treatment: Treatment | None, depth: int, dim: int, features: int, bands: tuple[int, int]) -> State:
    """Write a treatment as named arrays; none is one that is good for no image."""
    if treatment is None:
        nothing = DomainEstimate(*(np.ones((1, features)) for _ in range(3)))
        treatment = Treatment(np.zeros(1), np.zeros((1, *bands)), NO_KNOBS, np.zeros(1), nothing)
    moves = np.zeros((3, depth, dim), dtype=np.float32)
    moves[0] = 1
    if treatment.knobs.patches is not None and treatment.knobs.cls is not None:
        move = treatment.knobs.patches
        moves[...] = move.scale[0, 0], move.shift[0, 0], treatment.knobs.cls.shift[0, 0]
    return {
        "treatment_moves": moves,
        "treatment_deficit": treatment.deficit[0],
        "treatment_domain": np.concatenate([treatment.domains.mean[:1], treatment.domains.variance[:1]]),
        "treatment_facts": np.array([treatment.drifted[0], treatment.samples[0], treatment.left]),
    }


def treatment_of(state: State, negligible: float) -> Treatment | None:
    """Read what :func:`treatment_state` wrote; where ``drifted`` is negligible, nothing is moved."""
    drifted, samples, left = (float(value) for value in state["treatment_facts"])
    mean, variance = state["treatment_domain"][:, None]
    if not (0 <= drifted <= 1 and samples >= 0 and 0 <= left <= samples and (variance > 0).all()):
        raise FozoError("the state's treatment is none that adaptation leads to; save the state again")
    if not left:
        return None
    moves: Floats = state["treatment_moves"][:, None, None]  # type: ignore[assignment]
    knobs = NO_KNOBS
    if drifted > negligible:
        knobs = Knobs(cls=Move(np.ones_like(moves[0]), moves[2]), patches=Move(moves[0], moves[1]))
    return Treatment(
        np.array([drifted]),
        state["treatment_deficit"][None],  # type: ignore[arg-type]
        knobs,
        np.array([samples]),
        DomainEstimate(mean, variance, mean),
        int(left),
    )
