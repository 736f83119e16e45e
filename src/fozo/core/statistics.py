"""Mean and spread of features, gathered in one pass, and the file that keeps them for later.

The source statistics are those of the plain model over clean images. They are all that adaptation ever
sees of the source domain: no image and no label of it is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fozo.core.files import load_arrays, save_arrays
from fozo.core.look import look
from fozo.engines.base import as_numpy
from fozo.errors import FozoError

if TYPE_CHECKING:
    from fozo.engines.base import Engine, Floats, Images

Array = npt.NDArray[np.float64]

TINY = 1e-12
"""Keeps the logarithm of a variance finite where a feature is constant over an image."""


def spread(variance: npt.ArrayLike) -> Array:
    """Logarithm of a variance, finite always. Spreads, unlike variances, may be averaged and subtracted."""
    logarithm: Array = np.log(np.asarray(variance, dtype=np.float64) + TINY)
    return logarithm


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a sample: mergeable without loss (Chan et al., 1983).

    Unlike running sums of x and x^2 this never subtracts two large, nearly equal numbers.
    """

    count: int
    mean: Array
    squares: Array
    """Sum over the sample of (x - mean)^2."""

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Moments:
        """Moments of a batch ``[B, ...]`` over its first axis."""
        x = np.asarray(values, dtype=np.float64)
        mean = x.mean(axis=0)
        return cls(len(x), mean, ((x - mean) ** 2).sum(axis=0))

    def merge(self, other: Moments) -> Moments:
        """Moments of both samples together."""
        count = self.count + other.count
        delta = other.mean - self.mean
        mean = self.mean + delta * (other.count / count)
        squares = self.squares + other.squares + delta**2 * (self.count * other.count / count)
        return Moments(count, mean, squares)

    @property
    def std(self) -> Array:
        """Unbiased standard deviation; it needs at least two values."""
        if self.count < 2:
            raise FozoError(f"a standard deviation needs at least two values, not {self.count}; add images")
        return np.sqrt(self.squares / (self.count - 1))


@dataclass(frozen=True)
class SourceStatistics:
    """What the plain model's activations look like on clean data.

    All are over images. ``cls``, ``features`` ``[L, d]``, ``pooled`` ``[h]`` and ``patch_mean`` ``[L, d]`` are named
    as in :class:`fozo.engines.base.Taps`; ``patch_spread`` ``[L, d]`` is the logarithm of ``patch_variance``, and
    ``look`` ``[f]`` is of the images themselves, see :mod:`fozo.core.look`.
    """

    fingerprint: str
    cls: Moments
    features: Moments
    pooled: Moments
    patch_mean: Moments
    patch_spread: Moments
    look: Moments
    model: str = field(default="", compare=False)

    KIND = "source statistics"
    VERSION = 3
    PARTS = ("cls", "features", "pooled", "patch_mean", "patch_spread", "look")

    @property
    def images(self) -> int:
        """Number of clean images seen."""
        return self.cls.count

    @classmethod
    def collect(cls, engine: Engine, batches: Iterable[Images]) -> SourceStatistics:
        """Run the plain model once over clean batches ``[B, channels, height, width]``, normalised.

        One forward pass an image, memory of one batch. A few hundred images are enough; the paper uses the
        whole ImageNet validation set.
        """
        gathered: SourceStatistics | None = None
        for images in batches:
            taps = engine.run(engine.embed(images), patch_moments=True)
            assert taps.patch_mean is not None and taps.patch_variance is not None
            part = cls(
                fingerprint=engine.spec.fingerprint,
                cls=Moments.of(taps.cls[0]),
                features=Moments.of(taps.features[0]),
                pooled=Moments.of(taps.pooled[0]),
                patch_mean=Moments.of(taps.patch_mean[0]),
                patch_spread=Moments.of(spread(taps.patch_variance[0])),
                look=Moments.of(look(as_numpy(images))),
                model=engine.spec.name,
            )
            gathered = part if gathered is None else gathered.merge(part)
        if gathered is None or gathered.images < 2:
            count = 0 if gathered is None else gathered.images
            raise FozoError(f"source statistics need at least two clean images, not {count}; give more batches")
        return gathered

    def merge(self, other: SourceStatistics) -> SourceStatistics:
        """Statistics of both image collections together, for collecting in parallel or in instalments."""
        other.check(self.fingerprint, self.model)
        parts = {name: getattr(self, name).merge(getattr(other, name)) for name in self.PARTS}
        return SourceStatistics(self.fingerprint, model=self.model, **parts)

    def check(self, fingerprint: str, model: str) -> None:
        """Refuse to serve a model other than the one these statistics were collected from."""
        if fingerprint != self.fingerprint:
            raise FozoError(
                f"these source statistics are of {self.model or 'another model'} ({self.fingerprint[:12]}), not of "
                f"{model} ({fingerprint[:12]}); collect them again with this model"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` (no pickle), atomically."""
        moments: Mapping[str, Moments] = {name: getattr(self, name) for name in self.PARTS}
        header = {
            "kind": self.KIND,
            "version": self.VERSION,
            "fingerprint": self.fingerprint,
            "model": self.model,
            "counts": {name: part.count for name, part in moments.items()},
        }
        arrays = {f"{name}.mean": part.mean for name, part in moments.items()}
        arrays |= {f"{name}.squares": part.squares for name, part in moments.items()}
        save_arrays(path, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SourceStatistics:
        """Read what :meth:`save` wrote."""
        header, arrays = load_arrays(path, cls.KIND)
        if header.get("version") != cls.VERSION:
            raise FozoError(
                f"{os.fspath(path)} holds source statistics of version {header.get('version')}, but this fozo reads "
                f"version {cls.VERSION}; collect them again"
            )
        try:
            counts: dict[str, int] = dict(header["counts"])  # type: ignore[call-overload]
            parts = {
                name: Moments(
                    int(counts[name]),
                    arrays[f"{name}.mean"].astype(np.float64),
                    arrays[f"{name}.squares"].astype(np.float64),
                )
                for name in cls.PARTS
            }
        except KeyError as error:
            raise FozoError(f"{os.fspath(path)} lacks {error}; collect the source statistics again") from error
        return cls(str(header["fingerprint"]), model=str(header["model"]), **parts)


class Window:
    """The most recent feature rows, so that a batch too small to have a spread can borrow its neighbours'.

    A single image has no standard deviation. Its statistics are taken together with those of the images just
    before it, as they were under the prompts that won there.
    """

    def __init__(self, size: int) -> None:
        if size < 2:
            raise FozoError(f"a window needs room for at least two images, not {size}")
        self.size = size
        self.rows: Array | None = None

    def moments(self, features: Floats) -> Moments:
        """Moments of ``features`` ``[B, ...]`` joined by the most recent rows, ``size`` images in all at most."""
        current = np.asarray(features, dtype=np.float64)
        room = max(0, self.size - len(current))
        if self.rows is None or room == 0:
            return Moments.of(current)
        return Moments.of(np.concatenate([self.rows[-room:], current]))

    def push(self, features: Floats) -> None:
        """Remember a batch's rows, forgetting the oldest."""
        current = np.asarray(features, dtype=np.float64)
        joined = current if self.rows is None else np.concatenate([self.rows, current])
        self.rows = joined[-self.size :].copy()
