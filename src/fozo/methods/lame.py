"""LAME: parameter-free online test-time adaptation (Boudiaf et al., CVPR 2022).

The model is left alone; a batch's predictions are made to agree between images with similar features, by the
concave-convex procedure of Eq. 6-7. Nothing is remembered from batch to batch.

What differs from the authors' program: it returns probabilities; here their logarithms are returned, so that the
output is used like logits (the predicted class is the same). The default affinity is the FOZO paper's, five nearest
neighbours, made symmetric as in FOA's program; the preset ``official`` is the authors' own default, RBF.
A batch of one has no neighbours and keeps the model's prediction.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine, Floats, Tokens
from fozo.errors import FozoError
from fozo.methods.base import Method, State
from fozo.methods.presets import pick
from fozo.methods.registry import MethodInfo, register

Array = npt.NDArray[np.float64]

TINY = 1e-10
"""Added to probabilities before their logarithm is taken, as in the authors' program."""


@dataclass(frozen=True)
class Options:
    """Everything about LAME that can be chosen. The defaults are the FOZO paper's."""

    affinity: str = "knn"
    """What makes two images neighbours: ``knn``, ``rbf`` or ``linear`` (the cosine)."""
    neighbours: int = 5
    """k of ``knn``; the distance to the k-th nearest, the image itself included, also sets the width of ``rbf``."""
    symmetric: bool = True
    """Whether the affinity is averaged with its transpose, which the convergence proof assumes."""
    steps: int = 100
    """At most this many iterations."""
    tolerance: float = 1e-8
    """Stop when the energy changes by less than this share of itself."""

    def __post_init__(self) -> None:
        """Refuse unknown switches."""
        if self.affinity not in ("knn", "rbf", "linear"):
            raise FozoError(f"affinity must be 'knn', 'rbf' or 'linear', not {self.affinity!r}")
        if self.neighbours < 1 or self.steps < 1:
            raise FozoError(f"lame needs at least 1 neighbour and 1 step, not {self.neighbours} and {self.steps}")


PRESETS = {"paper": Options(), "official": Options(affinity="rbf", symmetric=False)}


@register(
    MethodInfo(
        name="lame",
        summary="predictions made to agree between similar images of a batch",
        needs_gradient=False,
        needs_source=False,
        passes="1",
        adapts="nothing",
        paper="Boudiaf et al., CVPR 2022",
    )
)
class LAME(Method):
    """Laplacian-adjusted maximum likelihood; returns log-probabilities."""

    def __init__(
        self, engine: Engine, source: SourceStatistics | None = None, *, preset: str = "paper", **switches: object
    ) -> None:
        """Prepare to adapt; ``preset`` is ``paper`` or ``official``, ``switches`` are fields of :class:`Options`."""
        self.choices = pick("lame", PRESETS, preset, switches)
        super().__init__(engine, source)

    def adapt(self, tokens: Tokens) -> Floats:
        """Run the plain model and adjust its predictions."""
        pooled = self.engine.run(tokens).pooled[0]
        logits = self.engine.logits(pooled)
        if not np.isfinite(logits).all():
            raise FozoError("the model's logits are not finite; check its weights")
        adjusted, _ = adjust(logits.astype(np.float64), self.affinity(pooled.astype(np.float64)), self.choices)
        return adjusted.astype(logits.dtype)

    def affinity(self, features: Array) -> Array:
        """How much each image ``[B, h]`` listens to each other: ``[B, B]``."""
        x = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        batch = len(x)
        if batch == 1:
            return np.zeros((1, 1))
        if self.choices.affinity == "linear":
            kernel: Array = x @ x.T
        else:
            # Row by row, so that memory grows with the batch and not with its square times the width.
            distance = np.sqrt(np.stack([((x - row) ** 2).sum(axis=1) for row in x]))
            kernel = (self._nearest if self.choices.affinity == "knn" else self._rbf)(distance)
        if self.choices.symmetric:
            kernel = (kernel + kernel.T) / 2
        return kernel

    def _nearest(self, distance: Array) -> Array:
        others = distance.copy()
        np.fill_diagonal(others, np.inf)  # not its own neighbour, even if it has an identical twin
        nearest = np.argsort(others, axis=1, kind="stable")[:, : min(self.choices.neighbours, len(distance) - 1)]
        kernel = np.zeros_like(distance)
        np.put_along_axis(kernel, nearest, 1.0, axis=1)
        return kernel

    def _rbf(self, distance: Array) -> Array:
        k = min(self.choices.neighbours, len(distance)) - 1
        width = max(float(np.sort(distance, axis=1)[:, k].mean()), 1e-12)  # identical images have no width
        kernel: Array = np.exp(-(distance**2) / (2 * width**2))
        return kernel

    def reset(self) -> None:
        """Nothing was adapted."""

    def state(self) -> State:
        """Nothing was adapted."""
        return {}

    def restore_state(self, state: State) -> None:
        """Nothing to restore."""

    def options(self) -> dict[str, object]:
        """Everything that has to be the same for a state to be continued."""
        return asdict(self.choices)


def adjust(logits: Array, kernel: Array, choices: Options) -> tuple[Array, int]:
    """Iterate Eq. 7; return log-probabilities ``[B, classes]`` and how many iterations it took."""
    unary = np.log(np.exp(log_softmax(logits)) + TINY)
    log_y = log_softmax(unary)
    previous = np.inf
    for step in range(choices.steps):
        pairwise = kernel @ np.exp(log_y)
        log_y = log_softmax(unary + pairwise)  # Eq. 7
        y = np.exp(log_y)
        energy = float((y * (np.log(np.maximum(y, 1e-20)) - unary - pairwise)).sum())  # Eq. 6
        if step > 1 and abs(energy - previous) <= choices.tolerance * abs(previous):
            break
        previous = energy
    return log_y, step + 1


def log_softmax(x: Array) -> Array:
    """Logarithm of the softmax of each row."""
    shifted = x - x.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
