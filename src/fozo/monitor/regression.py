"""How often predictions are right: the logistic regression behind expected accuracies, with a Gaussian process.

    logit P(right) = w . x + u(c),    u ~ GP(0, k),    k(c, c') = s^2 exp(-|c - c'| / l)

``x`` are the features of one prediction, their mean over the predictions around it, and a 1; ``c`` the coordinates of
the images among the signatures. Near a corruption that was seen at calibration, ``u`` is how much better or worse
predictions were than they seem. Far from all of them it falls back to 0, and its variance to s^2. So a known
corruption is corrected for, an unknown one only as far as it resembles known ones, and the interval says which it was.

**Targets** are soft labels: the probability that the plain model gives to the same class for the same image
uncorrupted. They need no label and vary much less by chance than right or wrong. They are right as a *fraction* of
their value on clean images, even for a badly calibrated model. With labels, slope and intercept of the logit are then
fitted to right or wrong over all images (Platt, 1999), which gives an accuracy.

**Unseen kinds.** The process knows how offsets vary among kinds that were seen. A kind that is far from all of them may
do worse, so the standard error of the score has another part, ``widening`` times the distance to the nearest group.
Leave-kinds-out cross-validation estimates it by moments, so that squared errors are as large as expected: each kind is
predicted without it, without its nearest kind too, and without its two nearest.

**Fit.** ``w`` and ``u`` together by Laplace's approximation (Rasmussen & Williams, Gaussian Processes for Machine
Learning, section 3.4). Signal std ``s`` and lengthscale ``l`` are constants: chosen for each model from a grid, by
leave-one-kind-out cross-validation (section 5.4.2), they gave the same errors and intervals (docs/monitoring.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import block_diag
from scipy.spatial.distance import cdist
from scipy.special import entr, expit, logit, softmax

from fozo.types import Array, Floats

Texts = npt.NDArray[np.str_]

CHUNK = 64  # predictions in a group of the calibration, at most: as many as a monitor considers together
LEFT_OUT = 2  # kinds, at most, that cross-validation leaves out beside the one that it judges: its nearest
NEAR = 1.0  # distance up to which a group of another kind is as good as one of the same
COLUMNS = 6  # features of a prediction, and their means over its group
RIDGE = np.diag([1e-6, *(1.0,) * COLUMNS])  # precision of the weights; the first is the intercept
SIGNAL_STD, LENGTHSCALE = 1.0, 32.0  # near together only their ratio s^2 / l matters
JITTER = 1e-6
STEPS = 40
T95 = 2.14  # standard errors to each side: Student's t with 14 degrees of freedom, for some 15 kinds
PAIRS = 128  # most recent pairs that are compared
MIN_PAIRS = 16


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy, with a 95 % interval."""

    value: float
    low: float
    high: float
    outside: bool = False  # whether the images look like nothing seen at calibration: the interval may be too narrow
    relative: bool = False  # whether it is a fraction of the accuracy on clean images, which is unknown without labels

    def __str__(self) -> str:
        unit = " of that on clean images" if self.relative else ""
        hint = ", outside what was seen at calibration" if self.outside else ""
        return f"expected accuracy {self.value:.0%}{unit} ({self.low:.0%} to {self.high:.0%}{hint})"


@dataclass(frozen=True)
class Evidence:
    """Predictions of some images of one domain, and how probably they were right."""

    kind: str  # of corruption
    logits: Floats
    coordinates: Array  # of each image among the signatures
    soft_labels: Array  # probability that the plain model gave to the same class for the same image uncorrupted
    correct: Array | None = None  # 1 or 0, where there are labels


@dataclass(frozen=True)
class Regression:
    """How often predictions are right, by their features and by the coordinates of the images."""

    centre: Array
    scale: Array
    weights: Array
    coordinates: Array  # `[groups, f]`: of the groups that it was fitted to
    dual: Array  # K^-1 u: the process at a point is `dual @ k`, with its covariances `k` to the groups (R&W eq. 3.21)
    covariance: Array  # `[weights + groups] * 2`: g^T covariance g is the variance of a mean less that of the process
    intercept: float
    slope: float  # by these two the score becomes the logit of being right
    clean: float  # mean soft label of the clean images
    images: float  # how many clean images there were
    group: float  # images of the smallest group
    widening: float  # standard error of the score for each unit of distance from the nearest group

    @classmethod
    def of(cls, evidence: Sequence[Evidence]) -> Regression:
        """Fit it; the evidence of the clean images comes first."""
        counts = [len(each.logits) for each in evidence]
        chunks = [np.array_split(np.arange(count), max(1, count // CHUNK)) for count in counts]
        groups = [(each, i) for each, parts in zip(evidence, chunks, strict=True) for i in parts]
        columns = np.concatenate([_columns(prediction_features(each.logits[i])) for each, i in groups])
        soft_labels = np.concatenate([each.soft_labels for each in evidence])
        centre, scale = columns.mean(axis=0), columns.std(axis=0) + 1e-9
        member = np.repeat(np.eye(len(groups)), [len(i) for _, i in groups], axis=0)
        design = np.column_stack([np.ones(len(columns)), (columns - centre) / scale, member])
        coordinates = np.array([each.coordinates[i].mean(axis=0) for each, i in groups])
        distances, number = cdist(coordinates, coordinates), len(RIDGE)
        inverse = np.linalg.inv(_kernel(distances) + JITTER * np.eye(len(groups)))  # K^-1
        prior = np.zeros(number + len(groups)), block_diag(RIDGE, inverse)  # mean and precision
        # Mode of (w, u) in one vector, and the curvature there (R&W algorithm 3.1, with the weights included). Soft
        # labels vary less than p (1 - p), so each counts for several binary outcomes: a first fit says how many.
        found, _ = _newton(design, soft_labels, *prior)
        p = expit(design @ found)
        weight = float((p * (1 - p)).mean() / max(np.square(soft_labels - p).mean(), 1e-6))
        found, curvature = _newton(design, soft_labels, *prior, weight)
        # The score at a point is g = (x, k) times (w, K^-1 u). Its variance given the data, with H the curvature and
        # A = diag(I, K^-1), is s^2 + g^T (A H^-1 A - diag(0, K^-1)) g: R&W eq. 3.24, with the weights included.
        transform = block_diag(np.eye(number), inverse)
        covariance = transform @ np.linalg.inv(curvature) @ transform
        covariance[number:, number:] -= inverse
        intercept, slope = 0.0, 1.0
        correct = [each.correct for each in evidence if each.correct is not None]
        if correct:
            # With a prior at no change: for a model that is always right the maximum likelihood is at infinity.
            scores = np.column_stack([np.ones(len(design)), design @ found])
            line, _ = _newton(scores, np.concatenate(correct), np.array([0.0, 1.0]), np.eye(2))
            intercept, slope = line.tolist()
        fitted = found[:number], coordinates, inverse @ found[number:], covariance
        clean, group = evidence[0].soft_labels, min(len(i) for _, i in groups)
        kinds = np.array([each.kind for each, _ in groups])
        nearness = _beyond_chance(distances, 2 / group, coordinates.shape[1])
        widening = _widening(design, soft_labels, found, curvature, weight, kinds, nearness)
        return cls(centre, scale, *fitted, intercept, slope, float(clean.mean()), len(clean), group, widening)

    def arrays(self) -> dict[str, Array]:
        return {each.name: np.asarray(getattr(self, each.name), dtype=np.float64) for each in fields(self)}

    @classmethod
    def shapes(cls, groups: int, width: int) -> dict[str, tuple[int, ...]]:
        """Shapes of :meth:`arrays`, for images of ``width`` features."""
        size = COLUMNS + 1 + groups
        shapes = {"centre": (COLUMNS,), "scale": (COLUMNS,), "weights": (COLUMNS + 1,), "coordinates": (groups, width)}
        return {each.name: () for each in fields(cls)} | shapes | {"dual": (groups,), "covariance": (size, size)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array]) -> Regression:
        """Read what :meth:`arrays` returned; raises a ``ValueError`` if damaged."""
        values: dict[str, Any] = {name: array if array.ndim else float(array) for name, array in arrays.items()}
        found = cls(**values)
        if min(found.clean, found.scale.min()) <= 0 or min(found.images, found.group) < 1 or found.widening < 0:
            raise ValueError("a regression has scales that are not positive")
        return found

    def predict(self, features: Array, coordinates: Array) -> tuple[Array, float]:
        """Probability of being right for each of some predictions ``[n, 3]`` of images ``[m, f]`` of one domain.

        Also the standard error of their mean by the regression alone (delta method).
        """
        columns = _columns(features)
        x = np.column_stack([np.ones(len(columns)), (columns - self.centre) / self.scale])
        distances = cdist(coordinates.mean(axis=0)[None], self.coordinates)[0]
        count, width = len(coordinates), self.coordinates.shape[1]
        k = _kernel(_beyond_chance(distances, max(1 / count - 1 / self.group, 0.0), width))
        unseen = self.widening * _beyond_chance(distances, 1 / count + 1 / self.group, width).min()
        p = np.asarray(expit(self.intercept + self.slope * (x @ self.weights + self.dual @ k)))
        slopes = self.slope * p * (1 - p)
        gradient = np.concatenate([(slopes[:, None] * x).mean(axis=0), slopes.mean() * k])
        variance = slopes.mean() ** 2 * (SIGNAL_STD**2 + unseen**2) + gradient @ self.covariance @ gradient
        return p, float(np.sqrt(max(variance, 0.0)))

    def estimate(
        self, features: Array, coordinates: Array, *, outside: bool = False, relative: bool = False
    ) -> Estimate:
        """Expected accuracy of predictions of one domain; ``relative``: as a fraction of that on clean images.

        The error has three parts: that of the regression, the chance of these predictions, each right or wrong, and the
        chance by which the images calibrated on were drawn.
        """
        p, error = self.predict(features, coordinates)
        value, unit = float(p.mean()), self.clean if relative else 1.0
        chance = T95**2 * ((p * (1 - p)).sum() / len(p) ** 2 + value * (1 - value) / self.images)
        # As an error of the logits, of which bounds are within 0 and 1 and far from 0 also where a value is near it.
        logits, step = logit(np.clip(p, 1e-9, 1 - 1e-9)), T95 * error / max(float((p * (1 - p)).mean()), 1e-9)
        below, above = (abs(value - float(expit(logits + sign * step).mean())) for sign in (-1, 1))
        low, high = value - np.hypot(below, np.sqrt(chance)), value + np.hypot(above, np.sqrt(chance))
        high = high if relative else min(1.0, high)  # an accuracy is at most 1
        return Estimate(value / unit, max(0.0, float(low)) / unit, float(high) / unit, outside, relative)

    def correlation(self, other: Regression) -> float:
        """Correlation of two processes over the groups, fitted to the same images: how far their errors are shared."""
        scale = np.linalg.norm(self._process) * np.linalg.norm(other._process)
        return float(self._process @ other._process / max(scale, 1e-9))

    @cached_property
    def _process(self) -> Array:  # at the groups
        return np.asarray(self.slope * _kernel(cdist(self.coordinates, self.coordinates)) @ self.dual)


def prediction_features(logits: Floats) -> Array:
    """Features of single predictions: log-odds of the confidence, margin, entropy: ``[n, 3]``; 0 without logits."""
    x = np.asarray(logits, dtype=np.float64)
    if not x.shape[1]:
        return np.zeros((len(x), 3))
    p = softmax(x, axis=1)
    first = np.clip(p.max(axis=1), 1e-4, 1 - 1e-4)
    ordered = np.sort(x, axis=1)
    margin = ordered[:, -1] - ordered[:, -2] if x.shape[1] > 1 else np.full(len(x), 10.0)
    return np.stack([np.log(first / (1 - first)), np.minimum(margin, 10.0), entr(p).sum(axis=1)], axis=1)


def _columns(features: Array) -> Array:
    return np.concatenate([features, np.broadcast_to(features.mean(axis=0), features.shape)], axis=1)


def _beyond_chance(distances: Array, variance: float, width: int) -> Array:
    """Distances without what chance adds to those of means of few images: ``variance`` in each of ``width`` columns."""
    return np.sqrt(np.maximum(np.square(distances) - variance * width, 0.0))


def _kernel(distances: Array) -> Array:
    return np.asarray(SIGNAL_STD**2 * np.exp(-distances / LENGTHSCALE))


def _newton(design: Array, target: Array, mean: Array, precision: Array, weight: float = 1.0) -> tuple[Array, Array]:
    """Mode and curvature of a logistic regression with a normal prior."""
    found = mean
    for _ in range(STEPS):
        p = expit(design @ found)
        curvature = weight * (design.T * (p * (1 - p) + 1e-9)) @ design + precision
        step = np.linalg.solve(curvature, weight * design.T @ (target - p) - precision @ (found - mean))
        found = found + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-6:
            break
    return found, curvature


def _widening(
    design: Array, target: Array, found: Array, curvature: Array, weight: float, kinds: Texts, distances: Array
) -> float:
    """Standard error of the score for each unit of distance, beyond the regression's own, for kinds left out.

    Without some data the mode and curvature (m, H) of the fit become H' = H - X^T W X and m' = m - H'^-1 X^T (y - p):
    their likelihood is taken as quadratic (R&W section 5.4.2, for several data at once).
    """
    group = design[:, len(RIDGE) :].argmax(axis=1)
    p = expit(design @ found)
    residuals, curvatures = weight * (target - p), weight * p * (1 - p)
    excess, unit = 0.0, 1e-9  # of squared errors, and what a widening of 1 would add to them
    for kind in {*kinds} - {kinds[0]}:  # the first is clean
        nearest = {other: distances[np.ix_(kinds == kind, kinds == other)].min() for other in kinds[kinds != kinds[0]]}
        order = sorted(nearest, key=lambda other: (other != kind, nearest[other]))
        for count in range(1, LEFT_OUT + 2):
            out = np.isin(kinds, order[:count])
            rows = out[group]
            covariance = np.linalg.inv(curvature - (design[rows].T * curvatures[rows]) @ design[rows])
            mode = found - covariance @ (design[rows].T @ residuals[rows])
            for one in np.flatnonzero((kinds == kind) & (distances[:, ~out].min(axis=1) > NEAR)):
                x, y = design[group == one], target[group == one]
                q = expit(x @ mode)
                slopes = q * (1 - q)
                gradient = slopes @ x / len(x)
                expected = gradient @ covariance @ gradient + slopes.mean() / weight / len(x)
                excess += (y - q).mean() ** 2 - expected
                unit += (slopes.mean() * distances[one, ~out].min()) ** 2
    return float(np.sqrt(max(excess / unit, 0.0)))


@dataclass(frozen=True)
class Comparison:
    """The most recent pairs of predictions, plain and adapted, of which the first is the shadow's.

    The shadow: the plain model predicts some of the images too, to measure whether adaptation helps. Where both
    predictions name the same class, both are right or both are wrong: only pairs that differ can gain or lose. For
    these the probability of being right is estimated for both. Adaptation *hurts* where the plain model's is higher
    by more than two standard errors: those of the pairs, and of the part of the regressions' errors that both do
    not share.
    """

    pairs: int
    agreement: float  # fraction of equal predictions
    gain: float | None = None  # expected accuracy of the adapted model minus that of the plain one
    error: float | None = None  # its standard error, without what both predictions share

    @property
    def hurts(self) -> bool:
        """Whether adaptation is significantly worse: a guard begins."""
        return self.gain is not None and self.error is not None and self.gain < -2 * self.error

    @property
    def may_hurt(self) -> bool:
        """Whether it is worse by one standard error: a guard that has begun goes on, so that it does not flutter."""
        return self.gain is not None and self.error is not None and self.gain < -self.error

    @classmethod
    def of(cls, pairs: Array, plain: Regression | None, adapted: Regression | None, where: Array | None) -> Comparison:
        """Compare pairs that :func:`paired` returned; ``where`` are the coordinates of the recent images."""
        same = pairs[:, 6] > 0
        agreement = float(same.mean())
        if where is None or plain is None or adapted is None:
            return cls(len(pairs), agreement)
        p_plain, error_plain = plain.predict(pairs[:, :3], where)
        p_adapted, error_adapted = adapted.predict(pairs[:, 3:6], where)
        gains = np.where(same, 0.0, p_adapted - p_plain)
        # Both are of the same images: errors that both regressions share cancel in the difference.
        unshared = np.sqrt(max(1 - plain.correlation(adapted), 0.0))
        errors = unshared * np.hypot(error_plain, error_adapted) * (1 - agreement)
        error = float(np.hypot(gains.std() / np.sqrt(len(gains)), errors))
        return cls(len(pairs), agreement, float(gains.mean()), error)


def paired(plain: Floats, adapted: Floats) -> Array:
    """Pairs of logits ``[n, classes]`` as features of both, and whether they name the same class: ``[n, 7]``."""
    same = plain.argmax(axis=1) == adapted.argmax(axis=1)
    return np.column_stack([prediction_features(plain), prediction_features(adapted), same])
