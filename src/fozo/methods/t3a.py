"""T3A: test-time classifier adjustment (Iwasawa and Matsuo, NeurIPS 2021).

The head is replaced by class centroids: means of features that the stream itself supplied, each under the label that
the model's own head gave it. Per class the M features of lowest entropy are kept; the head's weight rows are the first.

What differs from the authors' program: it raises with a class mask; here the smaller head is simply the head.
Supports are stored normalised, which is all that is ever read of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.objective import entropies
from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine, Floats, Tokens
from fozo.errors import FozoError
from fozo.methods.base import Method, State
from fozo.methods.presets import pick
from fozo.methods.registry import MethodInfo, register


@dataclass(frozen=True)
class Options:
    """Everything about T3A that can be chosen."""

    supports: int = 20
    """M of the paper: features kept for each class."""

    def __post_init__(self) -> None:
        """Refuse what cannot be kept."""
        if self.supports < 1:
            raise FozoError(f"t3a keeps at least one support a class, not {self.supports}")


@dataclass(frozen=True)
class Supports:
    """Features ``[n, h]`` of unit length, sorted by label and then by entropy."""

    features: Floats
    labels: npt.NDArray[np.int64]
    entropies: npt.NDArray[np.float64]

    @classmethod
    def of(cls, features: Floats, logits: Floats) -> Supports:
        """Label features by the head's logits."""
        return cls(_unit(features), logits.argmax(axis=1), entropies(logits))

    def join(self, other: Supports, keep: int) -> Supports:
        """Both together, with only the ``keep`` lowest entropies of each label."""
        features = np.concatenate([self.features, other.features])
        labels = np.concatenate([self.labels, other.labels])
        entropy = np.concatenate([self.entropies, other.entropies])
        order = np.lexsort((entropy, labels))
        labels = labels[order]
        # Place of each support within its label: its position minus that of the label's first.
        rank = np.arange(len(labels)) - np.searchsorted(labels, labels)
        order, labels = order[rank < keep], labels[rank < keep]
        return Supports(features[order], labels, entropy[order])

    def centroids(self, classes: int) -> Floats:
        """Unit vectors ``[classes, h]``; zero for a class that nothing supports."""
        sums = np.zeros((classes, self.features.shape[1]), dtype=self.features.dtype)
        present, first = np.unique(self.labels, return_index=True)
        sums[present] = np.add.reduceat(self.features, first, axis=0)
        return _unit(sums)


def _unit(rows: Floats) -> Floats:
    length = np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    unit: Floats = np.ascontiguousarray(rows / length, dtype=rows.dtype)
    return unit


@register(
    MethodInfo(
        name="t3a",
        summary="class centroids from the stream's surest features instead of the head",
        needs_gradient=False,
        needs_source=False,
        passes="1",
        adapts="the classifier's centroids",
        paper="Iwasawa and Matsuo, NeurIPS 2021",
    )
)
class T3A(Method):
    """Classify by centroids of supports."""

    def __init__(self, engine: Engine, source: SourceStatistics | None = None, **switches: object) -> None:
        """Prepare to adapt; ``switches`` are fields of :class:`Options`."""
        self.choices = pick("t3a", {"paper": Options()}, "paper", switches)
        super().__init__(engine, source)
        # An engine has no door to the head's weights, but the head is affine: its values at zero and at the unit
        # vectors are its bias and, above that bias, its weights.
        width = engine.spec.head_width
        bias = engine.logits(np.zeros((1, width), dtype=np.float32))
        weight = (engine.logits(np.eye(width, dtype=np.float32)) - bias).T
        everything = Supports.of(weight, engine.logits(weight))
        self.start = everything.join(Supports.of(weight[:0], bias[:0]), keep=len(weight))
        self.supports = self.start

    def adapt(self, tokens: Tokens) -> Floats:
        """Add the batch to the supports (Eq. 3-4), drop the unsure ones (Eq. 6), classify (Eq. 2)."""
        features = self.engine.run(tokens).pooled[0]
        logits = self.engine.logits(features)
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not finite; nothing was changed: check its weights")
        supports = self.supports.join(Supports.of(features, logits), self.choices.supports)
        prediction: Floats = features @ supports.centroids(self.engine.spec.classes).T
        self.supports = supports
        return prediction.astype(logits.dtype)

    def reset(self) -> None:
        """Forget everything adapted."""
        self.supports = self.start

    def state(self) -> State:
        """The supports."""
        return {
            "features": self.supports.features.astype(np.float64),
            "labels": self.supports.labels.astype(np.float64),
            "entropies": self.supports.entropies.copy(),
        }

    def restore_state(self, state: State) -> None:
        """Continue from a state."""
        features, labels, entropy = (state.get(name) for name in ("features", "labels", "entropies"))
        if features is None or labels is None or entropy is None or not len(features) == len(labels) == len(entropy):
            raise FozoError("the state's supports are incomplete; save the state again")
        dtype = self.start.features.dtype
        self.supports = Supports(features.astype(dtype), labels.astype(np.int64), entropy.copy())

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return asdict(self.choices)
