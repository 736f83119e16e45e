"""T3A: test-time classifier adjustment (Iwasawa and Matsuo, NeurIPS 2021).

The head is replaced by class centroids: means of features that the stream itself supplied, each under the label that
the model's own head gave it. Per class the M features of lowest entropy are kept; the head's weight rows are the first.

What differs from the authors' program: it raises with a class mask; here the smaller head is simply the head.
Supports are stored normalised, which is all that is ever read of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from fozo.core.objective import entropies
from fozo.errors import FozoError
from fozo.methods.common.options import positive, sweep
from fozo.methods.method import Method, Result
from fozo.methods.registry import register
from fozo.state import State, ragged
from fozo.types import Batch, Floats, Tap, Taps


@dataclass(frozen=True)
class T3AConfig:
    """Everything about T3A that can be chosen."""

    supports: int = 20
    """M of the paper: features kept for each class."""

    def __post_init__(self) -> None:
        positive("t3a", supports=self.supports)


@dataclass(frozen=True)
class Supports(State):
    """Features ``[n, h]`` of unit length, sorted by label and then by entropy."""

    features: Floats = ragged("supports")
    labels: npt.NDArray[np.int64] = ragged("supports")
    entropies: npt.NDArray[np.float64] = ragged("supports")

    @classmethod
    def of(cls, features: Floats, logits: Floats) -> Supports:
        return cls(_unit(features), logits.argmax(axis=1), entropies(logits))

    def join(self, other: Supports, keep: int) -> Supports:
        """Both together, with only the ``keep`` lowest entropies of each label."""
        features = np.concatenate([self.features, other.features])
        labels = np.concatenate([self.labels, other.labels])
        entropy = np.concatenate([self.entropies, other.entropies])
        order = np.lexsort((entropy, labels))
        sorted_labels = labels[order]
        # The rank of a support within its label: its position minus that of the label's first.
        rank = np.arange(len(labels)) - np.searchsorted(sorted_labels, sorted_labels)
        kept = order[rank < keep]
        return Supports(features[kept], labels[kept], entropy[kept])

    def centroids(self, classes: int) -> Floats:
        """Unit vectors ``[classes, h]``; zero for a class that nothing supports."""
        sums = np.zeros((classes, self.features.shape[1]), dtype=self.features.dtype)
        present, first = np.unique(self.labels, return_index=True)
        sums[present] = np.add.reduceat(self.features, first, axis=0)
        return _unit(sums)


def _unit(rows: Floats) -> Floats:
    length = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return np.ascontiguousarray(rows / length, dtype=rows.dtype)


@register(
    "t3a", passes="1", adapts="the classifier's centroids", paper="Iwasawa and Matsuo, NeurIPS 2021",
    needs={"tokens"}, tuning=sweep("supports", 20, 1, 5, 100),
)  # fmt: skip
class T3A(Method[T3AConfig, Supports]):
    """Class centroids from the stream's lowest-entropy features instead of the head."""

    PRESETS: ClassVar = {"paper": T3AConfig()}

    def prepare(self) -> None:
        head = self.engine.head()
        weight = np.ascontiguousarray(head.weight.T)
        rows = Supports.of(weight, head(weight))
        none = Supports.of(weight[:0], head(weight[:0]))
        self._start = rows.join(none, keep=len(weight))

    def init(self) -> Supports:
        return self._start

    def check_state(self, state: Supports) -> None:
        labels = state.labels
        if len(labels) and not 0 <= labels.min() <= labels.max() < self.engine.spec.classes:
            raise FozoError("the state's supports are of classes that this model does not have; give its own state")

    def step(self, state: Supports, batch: Batch) -> Result[Supports]:
        """Add the batch to the supports (Eq. 3-4), drop those of high entropy (Eq. 6), classify (Eq. 2)."""
        taps = self.engine.run(batch, taps=(Tap.POOLED, Tap.LOGITS))
        features = taps[Tap.POOLED][0]
        logits = taps[Tap.LOGITS][0]
        if not np.isfinite(logits).all():  # an infinite feature has no direction, and must not become a centroid
            raise FozoError("the model's logits are not finite; nothing was changed: check its weights")
        supports = state.join(Supports.of(features, logits), self.config.supports)
        return self._classify(supports, taps)

    def predict_step(self, state: Supports, batch: Batch) -> Result[Supports]:
        return self._classify(state, self.engine.run(batch, taps=(Tap.POOLED, Tap.LOGITS)))

    def _classify(self, supports: Supports, taps: Taps) -> Result[Supports]:
        centroids = supports.centroids(self.engine.spec.classes)
        prediction: Floats = taps[Tap.POOLED][0] @ centroids.T
        return Result(prediction.astype(taps[Tap.LOGITS].dtype), supports)
