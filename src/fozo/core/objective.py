"""What FOZO minimises without labels (Eq. 13-15): the distance of feature statistics from the source's, and entropy."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import entr, softmax

from fozo.core.moments import Moments
from fozo.errors import FozoError
from fozo.types import Array

PUBLISHED_BATCH = 64  # the batch size that the published weights of the two terms were chosen for


def entropies(logits: npt.ArrayLike) -> Array:
    """Shannon entropy (natural logarithm) of the softmax of each row ``[..., classes] -> [...]``."""
    entropy: Array = entr(softmax(np.asarray(logits, dtype=np.float64), axis=-1)).sum(axis=-1)
    return entropy


@dataclass(frozen=True)
class Objective:
    """``weight * L_stats + L_ent`` (Eq. 15), with one switch for each point where paper and program differ."""

    weight: float = 0.4
    """Weight of L_stats, lambda in the paper."""
    distance: str = "squares"
    """``squares``: sum of squared differences over all layers, times B/64 (authors' program).
    ``norms``: L2 norms of the differences, for the shallow and the deep half of the layers apart (Eq. 13)."""

    def __post_init__(self) -> None:
        if self.distance not in ("squares", "norms"):
            raise FozoError(f"distance must be 'squares' or 'norms', not {self.distance!r}")
        if self.weight < 0:
            raise FozoError(f"weight must not be negative, not {self.weight}")

    def __call__(self, source: Moments, features: Moments, logits: npt.ArrayLike) -> float:
        """Loss of a batch from its feature moments ``[L, d]`` and its logits ``[B, classes]``."""
        entropy = entropies(logits)
        alignment = self.weight * self.misalignment(source, features)
        scale = len(entropy) / PUBLISHED_BATCH if self.distance == "squares" else 1.0
        return float(alignment * scale + entropy.sum())

    def misalignment(self, source: Moments, features: Moments) -> float:
        """L_stats (Eq. 13). A single image without neighbours has no std: only its mean counts then."""
        half = len(source.mean) // 2
        differences = [features.mean - source.mean]
        if features.count > 1:
            differences.append(features.std - source.std)
        if self.distance == "squares":
            return float(sum((difference**2).sum() for difference in differences))
        halves = [layers for difference in differences for layers in (difference[:half], difference[half:])]
        return float(sum(np.sqrt((layers**2).sum()) for layers in halves))
