"""Content: what images show by the model's own predictions, and what follows from it for the activations.

A camera that sees only birds moves the tokens of a model away from their clean average, and so does fog. To distinguish
the two, calibration learns how much of the activations follows from *what is shown*: each clean image gets a
content vector, the expectation of the head's rows under the predicted classes,

    c = sum over classes of p(class) (row of the class - mean row),  on the principal directions of the rows

and the statistics y of an image are regressed on it, y = mean + W (c - mean c). Predictions
hardly depend on the drift (a wrong breed is still a dog), where the features that they are read from do.

Only sums are stored, so statistics merge without loss. The ridge penalty of W is chosen by generalised
cross-validation from the sums alone. Few clean images, or contents that explain nothing, get a W near 0 by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
from scipy.special import softmax

from fozo.core.moments import Moments
from fozo.errors import FozoError
from fozo.state import State
from fozo.types import Affine, Array, Floats

DIMENSIONS = 64  # content vectors have at most; more hardly improved targets of narrow groups, and files grow
CONTENT_VARIANCE = 0.25
"""Squared shift, in units of the variance over clean images, that clean images of one kind of thing may have: their
average descriptor differs from that of all clean images by their content. Align's groups of classes for tuning stay
below it, and far above it under the extra corruptions at severity 3. Of 20 groups of ImageNet's classes the farthest is
at 0.19; the 15 corruptions begin at 0.4, but for one (docs/monitoring.md)."""
PENALTIES = 10.0 ** np.arange(-6, 7)  # ridge penalties to choose from, in units of the largest eigenvalue


@dataclass(frozen=True)
class ContentBasis(State):
    """The principal directions of a head's rows."""

    centre: Array
    """Mean row, ``[h]``."""
    directions: Array
    """``[h, k]``, orthonormal."""

    @classmethod
    def of(cls, head: Affine) -> ContentBasis:
        rows = np.asarray(head.weight, dtype=np.float64).T
        centre = rows.mean(axis=0)
        directions = np.linalg.svd(rows - centre, full_matrices=False)[2][: min(DIMENSIONS, len(rows) - 1)].T
        # A singular vector's sign is chance; fixed, so that statistics made in two places can be merged.
        largest = np.take_along_axis(directions, np.abs(directions).argmax(axis=0)[None], axis=0)
        return cls(centre, directions * np.sign(largest))

    def vectors(self, head: Affine) -> Array:
        """Content vector of each class, ``[classes, k]``; the head may have fewer classes than that of calibration."""
        return cast("Array", (np.asarray(head.weight, dtype=np.float64).T - self.centre) @ self.directions)

    def check(self, other: ContentBasis) -> None:
        """Refuse contents on other directions: their numbers mean something else."""
        same = self.directions.shape == other.directions.shape
        if not same or not np.allclose(self.directions, other.directions, atol=1e-6):
            raise FozoError("these statistics were made with different heads of one model; collect them again")


def contents(logits: Floats, vectors: Array) -> Array:
    """Content vectors of images ``[B, k]``: expectations of the classes' ``vectors`` under the predictions."""
    probabilities = softmax(np.asarray(logits, dtype=np.float64), axis=1)
    return cast("Array", np.einsum("bc,ck->bk", probabilities, vectors))  # on this thread, as BLAS is not


@dataclass(frozen=True)
class ContentMoments(State):
    """Sums of content vectors and of their products with other statistics of the same images, about the means."""

    basis: ContentBasis
    count: int
    mean: Array
    """``[k]``."""
    products: Array
    """Sum of (c - mean)(c - mean)^T, ``[k, k]``."""
    cross: Mapping[str, Array]
    """For each statistic y ``[...]`` by name, the sum of (c - mean)(y - mean of y), ``[k, ...]``."""

    def __post_init__(self) -> None:
        """Refuse sums that no images have."""
        contents = self.mean.shape
        if self.basis.directions.shape != self.basis.centre.shape + contents or len(contents) != 1:
            raise ValueError("its contents are on other directions")
        if self.products.shape != contents + contents or self.products.diagonal().min(initial=0) < 0:
            raise ValueError("its products are not of its contents")

    @classmethod
    def of(cls, basis: ContentBasis, vectors: Array, statistics: Mapping[str, Array]) -> ContentMoments:
        """Sums over a batch: content vectors ``[B, k]`` and statistics ``[B, ...]``."""
        mean = vectors.mean(axis=0)
        centred = vectors - mean
        cross = {name: np.tensordot(centred, y - y.mean(axis=0), (0, 0)) for name, y in statistics.items()}
        return cls(basis, len(vectors), mean, centred.T @ centred, cross)

    def merge(self, other: ContentMoments, differences: Mapping[str, Array]) -> ContentMoments:
        """Sums of both samples together; ``differences`` are those of the statistics' means, other minus this."""
        self.basis.check(other.basis)
        count = self.count + other.count
        delta = other.mean - self.mean
        weight = self.count * other.count / count
        cross = {
            name: product + other.cross[name] + weight * np.multiply.outer(delta, differences[name])
            for name, product in self.cross.items()
        }
        products = self.products + other.products + weight * np.outer(delta, delta)
        return ContentMoments(self.basis, count, self.mean + delta * (other.count / count), products, cross)


class ContentRegression:
    """What content says about other statistics of an image, and how much it leaves unsaid."""

    def __init__(self, content: ContentMoments, moments: Mapping[str, Moments]) -> None:
        """Fit ``y = mean + W (c - mean c)`` for all statistics of ``content`` with one penalty."""
        self.mean = content.mean
        eigenvalues, vectors = np.linalg.eigh(content.products)
        nonzero = eigenvalues > 1e-9 * eigenvalues.max(initial=0.0)
        eigenvalues = eigenvalues[nonzero]
        vectors = vectors[:, nonzero]
        rotated = {name: np.tensordot(vectors.T, cross, 1) for name, cross in content.cross.items()}
        # The part of each feature's sum of squares that each direction explains without a penalty.
        explained = {
            name: (y.T**2 / eigenvalues).T / np.maximum(moments[name].squares, 1e-300) for name, y in rotated.items()
        }
        features = sum(moments[name].mean.size for name in explained)
        shrinkage = _shrinkage(eigenvalues, explained, features, content.count)
        degrees_left = max(1 - shrinkage.sum() / content.count, 1e-3)
        solved = vectors * (shrinkage / eigenvalues)
        self.weights = {name: np.tensordot(solved, y, 1) for name, y in rotated.items()}
        """W for each statistic, ``[k, ...]``."""
        # Above 0 also where sums are rounded: callers divide by it.
        self.unexplained = {
            name: np.maximum(1 - np.tensordot(2 * shrinkage - shrinkage**2, y, 1), 1e-12) / degrees_left
            for name, y in explained.items()
        }  # The part of a feature's variance over images that content does not explain, ``[...]``

    def shift(self, name: str, offsets: Array) -> Array:
        """How images of content ``mean + offsets`` (``[n, k]``) differ from the average image: ``[n, ...]``."""
        return np.tensordot(offsets, self.weights[name], 1)


def _shrinkage(eigenvalues: Array, explained: Mapping[str, Array], features: int, count: int) -> Array:
    """Choose the ridge penalty p, and return the part ``l / (l + p)`` that it leaves of each direction.

    It has the least score of generalised cross-validation (Golub, Heath, Wahba 1979) over n images,

        GCV(p) = RSS(p) / (1 - tr H / n)^2,    RSS(p) = sum_i (p / (l_i + p))^2 e_i + rest,

    where l_i is the sum of squares of the contents along direction i, e_i what that direction explains without a
    penalty of all features' sums of squares, and the rest what no direction explains. ``tr H`` counts the mean too.
    """
    shrinkage = np.zeros(len(eigenvalues))
    by_direction = sum((share.sum(axis=tuple(range(1, share.ndim))) for share in explained.values()), shrinkage)
    rest = features - by_direction.sum()
    if rest < 1e-9 * features:  # as many directions as images: this is rounding
        rest = 0.0
    least = np.inf
    # From the largest down, and a smaller one has to win clearly: of two images, all penalties score the same.
    for penalty in PENALTIES[::-1] * eigenvalues.max(initial=0.0):
        lost = penalty / (eigenvalues + penalty)  # 1 - shrinkage, which for a small penalty would be rounding too
        residual = rest + (lost**2 * by_direction).sum()
        degrees_left = (count - 1 - len(lost) + lost.sum()) / count
        score = residual / degrees_left**2 if degrees_left > 0 else np.inf
        if score < least * (1 - 1e-6):
            least = score
            shrinkage = eigenvalues / (eigenvalues + penalty)
    return shrinkage
