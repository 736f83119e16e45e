"""Moments of patch tokens on clean images, and the optimal-transport map that leads back to them.

With S the covariance of a domain's tokens and S* that of clean ones, the linear map that leads the one to the other by
the shortest way (Gelbrich, 1990) is

    T = S*^1/2 (S*^1/2 S S*^1/2)^-1/2 S*^1/2

A blur empties directions of S, and T would amplify what is left of them without limit: its eigenvalues are cut at
``MAX_EIGENVALUE``. How far it moves tokens, in parts of their variance, is

    D = tr((T - I) S (T - I)) / tr S
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from fozo.core.descriptor import Single
from fozo.state import State
from fozo.types import Array, Floats

T = TypeVar("T", bound=np.floating)
Indices = npt.NDArray[np.intp]
MAX_EIGENVALUE = 2.0
LEAST_EIGENVALUE = 1e-9  # of a product of covariances; less is rounding


def power(matrix: Array, exponent: float, least: float = 1e-6) -> Array:
    """A power of a symmetric matrix, whose eigenvalues are raised to ``least`` first."""
    values, vectors = np.linalg.eigh(matrix)
    powered: Array = (vectors * np.maximum(values, least) ** exponent) @ vectors.T
    return powered


def transport(root: Array, covariance: Array) -> Array:
    """T from a covariance S to the clean one, whose root S*^1/2 is given; eigenvalues at most ``MAX_EIGENVALUE``."""
    shortest = root @ power(root @ covariance @ root, -0.5, LEAST_EIGENVALUE) @ root
    values, vectors = np.linalg.eigh(shortest)
    capped: Array = (vectors * np.minimum(values, MAX_EIGENVALUE)) @ vectors.T
    return capped


def displacement(transported: Array, covariance: Array) -> float:
    """D of a map T and a covariance S."""
    moved = transported - np.eye(len(transported))
    return float(np.vdot(moved @ covariance, moved) / np.trace(covariance))


@lru_cache(maxsize=8)
def triangle(width: int) -> tuple[Indices, Indices]:
    """Where the upper triangle is in a flat ``d x d`` matrix, and in that triangle each element of the matrix."""
    rows, columns = np.triu_indices(width)
    positions = np.zeros((width, width), np.intp)
    positions[rows, columns] = np.arange(len(rows))
    positions.T[rows, columns] = np.arange(len(rows))
    return rows * width + columns, positions


def packed(matrices: npt.NDArray[T]) -> npt.NDArray[T]:
    """Upper triangles of symmetric matrices: ``[..., d, d] -> [..., d (d + 1) / 2]``."""
    width = matrices.shape[-1]
    (flat, _) = triangle(width)
    return np.take(matrices.reshape(*matrices.shape[:-2], width * width), flat, axis=-1)


def unpacked(triangles: npt.NDArray[T], width: int) -> npt.NDArray[T]:
    """The symmetric matrices again."""
    (_, positions) = triangle(width)
    return np.take(triangles, positions, axis=-1)


def pooled_moments(moments: Floats) -> tuple[Array, Array]:
    """Mean ``[A, d]`` and covariance ``[A, d, d]`` of the tokens of several images, from each image's own.

    ``moments`` are of a tap :attr:`fozo.types.Tap.PATCH_MOMENTS`, ``[B, A, d + 1, d]``.
    """
    means = moments[:, :, 0].astype(np.float64)
    mean = means.mean(axis=0)
    centred = means - mean
    between = np.einsum("bad,bae->ade", centred, centred) / len(means)
    within: Floats = moments[:, :, 1:].mean(axis=0)
    return mean, within + between


@dataclass(frozen=True)
class PatchMoments(State):
    """Moments of every fourth patch token of clean images, as they enter the aligned blocks."""

    images: int
    mean: Array  # [A, d]
    covariance: Single  # [A, d, d]
    displacement: Array
    """c: displacement of one clean image by chance, ``[A]``; n images are displaced by c / n on average."""

    def __post_init__(self) -> None:
        """Refuse what no images have."""
        aligned, width = self.mean.shape
        if self.covariance.shape != (aligned, width, width) or self.displacement.shape != (aligned,):
            raise ValueError("its patch moments are of different models")
        variances = np.diagonal(self.covariance, axis1=1, axis2=2)
        if self.images < 1 or variances.min(initial=0) < 0 or self.displacement.min(initial=0) < 0:
            raise ValueError("its patch moments are of no images")

    def merge(self, other: PatchMoments) -> PatchMoments:
        """Moments of both collections of images together."""
        images = self.images + other.images
        share = other.images / images
        apart = other.mean - self.mean
        between = np.einsum("ad,ae->ade", apart, apart) * (share * (1 - share))
        return PatchMoments(
            images=images,
            mean=self.mean + share * apart,
            covariance=((1 - share) * self.covariance + share * other.covariance + between).astype(np.float32),
            displacement=(1 - share) * self.displacement + share * other.displacement,
        )

    @property
    def roots(self) -> Array:
        """S*^1/2 of every aligned block, ``[A, d, d]``."""
        return np.stack([power(covariance.astype(np.float64), 0.5) for covariance in self.covariance])
