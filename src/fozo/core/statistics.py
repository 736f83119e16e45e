"""The source statistics: what the plain model's activations look like on clean images, and the file that keeps them.

They are all that adaptation ever sees of the source domain: no image and no label of it is kept.
:func:`fozo.calibration.calibrate` collects them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fozo.core.moments import Moments
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays


@dataclass(frozen=True)
class SourceStatistics:
    """What the plain model's activations look like on clean data.

    All are over images. ``cls``, ``features`` ``[L, d]``, ``pooled`` ``[h]`` and ``patch_mean`` ``[L, d]`` are named
    as in :class:`fozo.types.Tap`; ``patch_log_variance`` ``[L, d]`` is the logarithm of ``patch_variance``, and
    ``descriptor`` ``[f]`` is of the images themselves, see :mod:`fozo.core.descriptor`.
    """

    fingerprint: str
    cls: Moments
    features: Moments
    pooled: Moments
    patch_mean: Moments
    patch_log_variance: Moments
    descriptor: Moments
    model: str = field(default="", compare=False)

    KIND = "source statistics"
    VERSION = 4
    PARTS = ("cls", "features", "pooled", "patch_mean", "patch_log_variance", "descriptor")

    @property
    def images(self) -> int:
        """Number of clean images seen."""
        return self.cls.count

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
            counts = header["counts"]
            if not isinstance(counts, dict):
                raise TypeError("counts is no table")
            parts = {
                name: Moments(
                    int(counts[name]),
                    arrays[f"{name}.mean"].astype(np.float64),
                    arrays[f"{name}.squares"].astype(np.float64),
                )
                for name in cls.PARTS
            }
            return cls(str(header["fingerprint"]), model=str(header["model"]), **parts)
        except (KeyError, TypeError, ValueError) as error:
            raise FozoError(
                f"{os.fspath(path)} holds damaged source statistics ({type(error).__name__}: {error}); "
                f"collect them again"
            ) from error
