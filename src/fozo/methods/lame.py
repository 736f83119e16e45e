"""LAME: parameter-free online test-time adaptation (Boudiaf et al., CVPR 2022).

The model is left alone; a batch's predictions are made to agree between images with similar features, by the
concave-convex procedure of Eq. 6-7. Nothing is remembered from batch to batch.

What differs from the authors' program: it returns probabilities; here their logarithms are returned, so that the
output is used like logits (the predicted class is the same). The default affinity is the FOZO paper's, five nearest
neighbours, made symmetric as in FOA's program; the preset ``official`` is the authors' own default, RBF.
A batch of one has no neighbours and keeps the model's prediction.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import log_softmax

from fozo.methods.common.options import one_of, positive, sweep
from fozo.methods.method import Method, Nothing, Result
from fozo.methods.registry import register
from fozo.types import Array, Batch, Tap

TINY = 1e-10  # Added to probabilities before their logarithm is taken, as in the authors' program


@dataclass(frozen=True)
class LAMEConfig:
    """Everything about LAME that can be chosen. The defaults are the FOZO paper's."""

    affinity: str = "knn"
    """What makes two images neighbours: ``knn``, ``rbf`` or ``linear`` (the cosine)."""
    neighbours: int = 5
    """k of ``knn``; the distance to the k-th nearest, the image included, is the width of ``rbf``."""
    symmetric: bool = True
    """Whether the affinity is averaged with its transpose, which the convergence proof assumes."""
    steps: int = 100
    """At most this many iterations."""
    tolerance: float = 1e-8
    """Iterations end when the energy changes by less than this share of itself."""

    def __post_init__(self) -> None:
        one_of("lame", ("knn", "rbf", "linear"), affinity=self.affinity)
        positive("lame", neighbours=self.neighbours, steps=self.steps)


@register(
    "lame", passes="1", adapts="nothing", paper="Boudiaf et al., CVPR 2022", needs={"tokens"},
    tuning={**sweep("neighbours", 5, 3, 10), "RBF": {"preset": "official"}},
)  # fmt: skip
class LAME(Method[LAMEConfig, Nothing]):
    """Predictions made to agree between similar images of a batch; returns log-probabilities."""

    PRESETS: ClassVar = {"paper": LAMEConfig(), "official": LAMEConfig(affinity="rbf", symmetric=False)}

    def step(self, state: Nothing, batch: Batch) -> Result[Nothing]:
        taps = self.engine.run(batch, taps=(Tap.POOLED, Tap.LOGITS))
        pooled = taps[Tap.POOLED][0]
        logits = taps[Tap.LOGITS][0]
        affinity = self.affinity(pooled.astype(np.float64))
        adjusted, _ = adjust(logits.astype(np.float64), affinity, self.config)
        return Result(adjusted.astype(logits.dtype), state)

    def affinity(self, features: Array) -> Array:
        """Affinity matrix of images ``[B, h]``: ``[B, B]``."""
        x = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
        batch = len(x)
        if batch == 1:
            return np.zeros((1, 1))
        if self.config.affinity == "linear":
            kernel: Array = x @ x.T
        else:
            # Row by row, so that memory grows with the batch and not with its square times the width.
            distance = np.sqrt(np.stack([((x - row) ** 2).sum(axis=1) for row in x]))
            kernel = (self._nearest if self.config.affinity == "knn" else self._rbf)(distance)
        if self.config.symmetric:
            kernel = (kernel + kernel.T) / 2
        return kernel

    def _nearest(self, distance: Array) -> Array:
        others = distance.copy()
        np.fill_diagonal(others, np.inf)  # not its own neighbour, even if it has an identical twin
        nearest = np.argsort(others, axis=1, kind="stable")[:, : min(self.config.neighbours, len(distance) - 1)]
        kernel = np.zeros_like(distance)
        np.put_along_axis(kernel, nearest, 1.0, axis=1)
        return kernel

    def _rbf(self, distance: Array) -> Array:
        k = min(self.config.neighbours, len(distance)) - 1
        width = max(float(np.sort(distance, axis=1)[:, k].mean()), 1e-12)  # identical images have no width
        return np.exp(-(distance**2) / (2 * width**2))


def adjust(logits: Array, kernel: Array, config: LAMEConfig) -> tuple[Array, int]:
    """Iterate Eq. 7; return log-probabilities ``[B, classes]`` and how many iterations it took."""
    unary = np.log(np.exp(log_softmax(logits, axis=1)) + TINY)
    log_y = log_softmax(unary, axis=1)
    previous = np.inf
    for step in range(config.steps):
        pairwise = kernel @ np.exp(log_y)
        log_y = log_softmax(unary + pairwise, axis=1)  # Eq. 7
        y = np.exp(log_y)
        energy = float((y * (np.log(np.maximum(y, 1e-20)) - unary - pairwise)).sum())  # Eq. 6
        if step > 1 and abs(energy - previous) <= config.tolerance * abs(previous):
            break
        previous = energy
    return log_y, step + 1
