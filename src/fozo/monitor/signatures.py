"""Signatures: what each corruption does to the features of clean images, and which one a stream resembles.

At calibration some clean images are corrupted with fozo's own corruptions. The signature of a kind is the polyline
through the mean standardised features at severities 1 to 5. Features are whitened by how images vary within one
corruption. So for n images of a kind whose signature was made from m, the squared distance of their mean to its
polyline is at most about (1/n + 1/m + error) for each feature.

A guess is the nearest polyline. Kinds that are nearly as near (by the likelihood ratio) are ambiguous with it and named
beside it. What is near no polyline is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fozo.monitor.drift import RECENT, Whitening
from fozo.types import Array

SEVERITIES = (1, 2, 3, 4, 5)
MAX_DEVIATION = 12.0  # standard deviations at which a feature is clipped: corruptions differ by large shifts too
SHRINKAGE = 0.2  # fraction of each feature's variance that is added before whitening
ERROR = 0.05  # squared error of a signature for another stream's content, as a fraction of how images vary
LIKELIHOOD_RATIO = 20.0  # kinds whose likelihood is within this factor of the best are ambiguous with it
UNKNOWN = 3.0  # normalised distance to the nearest signature from which on the drift is unknown


@dataclass(frozen=True)
class Guess:
    """Which corruption a drift resembles."""

    kind: str  # the nearest corruption, or `clean`
    severity: float  # between 1 and 5; 0 for clean
    ambiguous_with: tuple[str, ...]  # other corruptions that cannot be distinguished from it
    known: bool  # whether it is near anything that was seen at calibration
    normalised_distance: float  # mean squared, in units of its expected error: 1 for more of the same

    @property
    def kinds(self) -> tuple[str, ...]:
        return (self.kind, *self.ambiguous_with)

    @property
    def names(self) -> tuple[str, ...]:  # what it is called
        return self.kinds if self.known else ("unknown",)

    def __str__(self) -> str:
        names = " or ".join(name.replace("_", " ") for name in self.kinds)
        return f"like {names}" if self.known else f"unlike all that was seen at calibration, nearest to {names}"


@dataclass(frozen=True)
class Signatures:
    """The signatures of some kinds of corruptions."""

    kinds: tuple[str, ...]
    coordinates: Whitening  # gives the coordinates of images `[n, features]`: features whitened within a corruption
    points: Array  # `[kinds, severities, features]`: coordinates of means
    images: int  # that each of them was made from

    @classmethod
    def of(cls, clean: Array, corrupted: Mapping[tuple[str, int], Array]) -> Signatures:
        """Fit them to features of clean images, and of corrupted ones by (kind, severity)."""
        kinds = tuple(dict.fromkeys(kind for kind, _ in corrupted))
        mean, std = clean.mean(axis=0), np.maximum(clean.std(axis=0), 1e-6)
        standardised = Whitening(mean, std, 0 * mean, np.eye(len(mean)), MAX_DEVIATION)
        rows = {key: standardised(value) for key, value in corrupted.items()}
        within = np.concatenate([value - value.mean(axis=0) for value in rows.values()])
        covariance = within.T @ within / max(len(within) - len(rows), 1)
        variances = np.maximum(np.diag(covariance), 1e-6)
        values, vectors = np.linalg.eigh(covariance + SHRINKAGE * np.diag(variances))
        matrix = vectors / np.sqrt(values)
        points = np.array([[rows[kind, severity].mean(axis=0) @ matrix for severity in SEVERITIES] for kind in kinds])
        return cls(kinds, replace(standardised, matrix=matrix), points, min(len(value) for value in rows.values()))

    def arrays(self) -> dict[str, Array]:
        white = self.coordinates
        return {"mean": white.mean, "std": white.std, "matrix": white.matrix, "points": self.points}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], kinds: tuple[str, ...], images: int) -> Signatures:
        """Read what :meth:`arrays` returned; raises a ``ValueError`` if damaged."""
        mean, std, matrix, points = (arrays[name] for name in ("mean", "std", "matrix", "points"))
        if len(points) != len(kinds) or images < 1 or not (std > 0).all():
            raise ValueError(f"{len(points)} signatures and {len(kinds)} kinds do not fit together")
        return cls(kinds, Whitening(mean, std, 0 * mean, matrix, MAX_DEVIATION), points, images)

    def guess(self, features: Array) -> Guess:
        """Name the corruption that images ``[n, features]`` resemble most."""
        mean, expected = self.coordinates(features).mean(axis=0), 1 / len(features) + 1 / self.images + ERROR
        found = {kind: _nearest(line, mean) for kind, line in zip(self.kinds, self.points, strict=True)}
        found["clean"] = float(np.square(mean).sum()), 0.0
        best = min(found, key=found.__getitem__)
        near = found[best][0] + 2 * expected * np.log(LIKELIHOOD_RATIO)
        others = sorted((distance, kind) for kind, (distance, _) in found.items() if kind != best and distance < near)
        normalised = found[best][0] / len(mean) / expected
        return Guess(best, found[best][1], tuple(kind for _, kind in others), normalised < UNKNOWN, normalised)

    def changed(self, features: Array) -> bool:
        """Whether the latest 16 images, and the latest 8, resemble another corruption than those before."""
        if len(features) < 2 * RECENT:
            return False
        late, last = self.guess(features[-RECENT:]), self.guess(features[-RECENT // 2 :])
        return (
            late.known and late.kind in last.kinds and late.kind not in ("clean", *self.guess(features[:-RECENT]).kinds)
        )


def _nearest(line: Array, point: Array) -> tuple[float, float]:
    """Squared distance of a point to the polyline through the severities, and the severity there."""
    found = []
    for start, end, low in zip(line[:-1], line[1:], SEVERITIES[:-1], strict=True):
        way = end - start
        part = float(np.clip((point - start) @ way / max(float(way @ way), 1e-12), 0, 1))
        found.append((float(np.square(point - start - part * way).sum()), low + part))
    return min(found)
