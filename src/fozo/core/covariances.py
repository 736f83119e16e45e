"""Mean, variance and covariance of all tokens as they leave each block, on clean images: what PEA aligns to.

Apart from :class:`fozo.core.statistics.SourceStatistics`, because a matrix for each block is megabytes (57 for a
ViT-Base) that no other method reads. :func:`fozo.methods.pea.measure_covariances` measures them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from fozo.core.moments import TokenMoments
from fozo.errors import FozoError
from fozo.io import ArraySpec, load_statistics, refuse_damage, save_arrays
from fozo.types import Array, Spec

RIDGE = 1e-5  # added to the diagonal of every covariance, as in PEA's program
ADVICE = "measure them again"


@dataclass(frozen=True)
class Covariances:
    """Mean, variance and covariance of tokens on clean images, block by block."""

    fingerprint: str
    mean: Array  # [L, d]
    variance: Array  # [L, d]
    covariance: Array  # [L, d, d], with the ridge
    model: str = field(default="", compare=False)

    KIND = "token covariances"
    VERSION = 1

    def check(self, spec: Spec) -> None:
        if self.fingerprint != spec.fingerprint or self.mean.shape != (spec.depth, spec.dim):
            raise FozoError(
                f"these token covariances are of {self.model or 'another model'} ({self.fingerprint[:12]}), not of "
                f"{spec.name} ({spec.fingerprint[:12]}); measure them again with this model"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        header = {"kind": self.KIND, "version": self.VERSION, "fingerprint": self.fingerprint, "model": self.model}
        save_arrays(path, header, {"mean": self.mean, "variance": self.variance, "covariance": self.covariance})

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Covariances:
        """Read what :meth:`save` wrote; what no clean images can have given is refused here, not in use."""
        header, arrays = load_statistics(path, cls.KIND, (cls.VERSION,), _shapes, ADVICE)
        with refuse_damage(path, cls.KIND, ADVICE):
            if (arrays["variance"] < 0).any():
                raise ValueError("a variance is negative")
            if not np.allclose(arrays["covariance"], arrays["covariance"].transpose(0, 2, 1)):
                raise ValueError("a covariance is not symmetric")
        return cls(fingerprint=str(header.get("fingerprint")), model=str(header.get("model")), **arrays)


def _shapes(specs: Mapping[str, ArraySpec]) -> dict[str, tuple[int, ...]]:
    layers, width = specs["mean"].shape
    return {"mean": (layers, width), "variance": (layers, width), "covariance": (layers, width, width)}


class Gathering:
    """Puts the moments of batches together, for each block: exactly, or as the authors' program does it.

    There the mean before a batch is mistaken (it is right in the first batch only), so that the variance counts
    differences between batches too often, and the covariance, taken about each batch's own mean, leaves them out. Both
    are off by a few percent, and depend on the order of the images.
    """

    def __init__(self, spec: Spec, *, as_published: bool = False) -> None:
        self.spec, self.as_published = spec, as_published
        nothing = TokenMoments(0, np.zeros(spec.dim), np.zeros((spec.dim, spec.dim)))
        self.moments = [nothing] * spec.depth
        self.squares = np.zeros((spec.depth, spec.dim))  # sums behind the variances, as published

    def __call__(self, layer: int, batch: TokenMoments) -> None:
        """Take in the tokens of a batch as they leave a block; it can be an engine's visitor."""
        before = self.moments[layer]
        after = before.merge(batch)
        if self.as_published:
            mistaken = after.mean - (batch.mean - before.mean)
            between = batch.count * (batch.mean - mistaken) * (batch.mean - after.mean)
            self.squares[layer] += batch.scatter.diagonal() + between
            after = replace(after, scatter=before.scatter + batch.scatter)
        self.moments[layer] = after

    def covariances(self) -> Covariances:
        if min(moments.count for moments in self.moments) < 2:
            raise FozoError("token covariances need at least one batch of clean images; give some")
        mean, covariance = (np.stack([getattr(m, name) for m in self.moments]) for name in ("mean", "covariance"))
        variance = covariance.diagonal(axis1=1, axis2=2).copy()
        if self.as_published:
            variance = self.squares / np.array([[moments.count - 1] for moments in self.moments])
        ridge = RIDGE * np.eye(self.spec.dim)
        return Covariances(self.spec.fingerprint, mean, variance, covariance + ridge, self.spec.name)
