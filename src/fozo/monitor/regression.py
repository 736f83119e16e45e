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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.linalg import block_diag
from scipy.spatial.distance import cdist
from scipy.special import entr, expit, logit, softmax

from fozo.state import State
from fozo.types import Array, Floats

Indices = npt.NDArray[np.int64]

CHUNK = 64  # predictions in a group of the calibration, at most: as many as a monitor considers together
LEFT_OUT = 2  # kinds, at most, that cross-validation leaves out beside the one that it judges: its nearest
NEAR_DISTANCE = 1.0  # up to here a group of another kind is as good as one of the same
COLUMNS = 6  # features of a prediction, and their means over its group
WEIGHTS = COLUMNS + 1  # with the intercept, which is the first
RIDGE = np.diag([1e-6, *(1.0,) * COLUMNS])  # precision of the weights
SIGNAL_STD = 1.0
LENGTHSCALE = 32.0  # near together only the ratio s^2 / l matters
JITTER = 1e-6
STEPS = 40  # of Newton's method, at most
MAX_STEP = 2.0
TOLERANCE = 1e-6
T95 = 2.14  # standard errors to each side: Student's t with 14 degrees of freedom, for some 15 kinds
MAX_MARGIN = 10.0
MIN_DOUBT = 1e-4  # least probability of being right, and of being wrong
PAIRS = 128  # most recent pairs that are compared
MIN_PAIRS = 16
BEGIN_ERRORS = 2.0  # standard errors by which adaptation has to be worse for a guard to begin
END_ERRORS = 1.0  # standard errors by which it has to be worse for a guard to go on


@dataclass(frozen=True)
class Estimate:
    """Expected accuracy, with a 95 % interval."""

    value: float
    low: float
    high: float
    outside: bool = False
    """Whether the images look like nothing seen at calibration: the interval may be too narrow."""
    relative: bool = False
    """Whether it is a fraction of the accuracy on clean images, which is unknown without labels."""

    def __str__(self) -> str:
        unit = " of that on clean images" if self.relative else ""
        hint = ", outside what was seen at calibration" if self.outside else ""
        return f"expected accuracy {self.value:.0%}{unit} ({self.low:.0%} to {self.high:.0%}{hint})"


@dataclass(frozen=True)
class Evidence:
    """Predictions of some images of one domain, and how probably they were right."""

    kind: str
    """The corruption."""
    logits: Floats
    coordinates: Array
    """Where each image is among the signatures."""
    soft_labels: Array
    """Probability that the plain model gave to the same class for the same image uncorrupted."""
    correct: Array | None = None
    """1 or 0, where there are labels."""


@dataclass(frozen=True)
class Fit:
    """Laplace's approximation of a logistic regression: the mode of its weights, and the curvature there."""

    design: Array
    """``[predictions, weights]``"""
    target: Array
    weight: float
    """Binary outcomes that each target counts for."""
    mode: Array
    curvature: Array

    @classmethod
    def of(cls, design: Array, target: Array, mean: Array, precision: Array, weight: float = 1.0) -> Fit:
        """Fit it by Newton's method, with a normal prior."""
        mode = mean
        for _ in range(STEPS):
            p = expit(design @ mode)
            curvature = weight * (design.T * (p * (1 - p) + 1e-9)) @ design + precision
            step = np.linalg.solve(curvature, weight * design.T @ (target - p) - precision @ (mode - mean))
            mode = mode + np.clip(step, -MAX_STEP, MAX_STEP)
            if np.abs(step).max() < TOLERANCE:
                break
        return cls(design, target, weight, mode, curvature)

    @cached_property
    def probabilities(self) -> Array:
        return np.asarray(expit(self.design @ self.mode))


@dataclass(frozen=True)
class Regression(State):
    """How often predictions are right, by their features and by the coordinates of the images."""

    centre: Array
    scale: Array
    weights: Array
    coordinates: Array
    """``[groups, f]``: where the groups are that it was fitted to."""
    dual: Array
    """K^-1 u: the process at a point is ``dual @ k``, with its covariances ``k`` to the groups (R&W eq. 3.21)."""
    covariance: Array
    """C, ``[weights + groups] * 2``: a score with the gradient g has the variance s^2 + g^T C g."""
    intercept: float
    """Intercept of the line by which the score becomes the logit of being right."""
    slope: float
    """Slope of that line."""
    clean: float
    """Mean soft label of the clean images."""
    images: float
    """How many clean images there were."""
    group: float
    """Images of the smallest group."""
    widening: float
    """Standard error of the score for each unit of distance from the nearest group."""

    def __post_init__(self) -> None:
        groups, _ = self.coordinates.shape
        size = WEIGHTS + groups
        shapes = [array.shape for array in (self.centre, self.scale, self.weights, self.dual, self.covariance)]
        if shapes != [(COLUMNS,), (COLUMNS,), (WEIGHTS,), (groups,), (size, size)]:
            raise ValueError("a regression has arrays of other groups")
        if min(self.clean, self.scale.min()) <= 0 or min(self.images, self.group) < 1 or self.widening < 0:
            raise ValueError("a regression has scales that are not positive")

    @classmethod
    def of(cls, evidence: Sequence[Evidence]) -> Regression:
        """Fit it; the evidence of the clean images comes first."""
        groups: list[tuple[Evidence, Indices]] = []
        for domain in evidence:
            count = len(domain.logits)
            groups += [(domain, chunk) for chunk in np.array_split(np.arange(count), max(1, count // CHUNK))]
        sizes = [len(chunk) for _, chunk in groups]
        columns = np.concatenate([_columns(prediction_features(domain.logits[chunk])) for domain, chunk in groups])
        coordinates = np.array([domain.coordinates[chunk].mean(axis=0) for domain, chunk in groups])
        soft_labels = np.concatenate([domain.soft_labels for domain in evidence])
        centre = columns.mean(axis=0)
        scale: Array = columns.std(axis=0) + 1e-9
        member = np.repeat(np.eye(len(groups)), sizes, axis=0)
        design = np.column_stack([np.ones(len(columns)), (columns - centre) / scale, member])
        distances = cdist(coordinates, coordinates)
        inverse = np.linalg.inv(_kernel(distances) + JITTER * np.eye(len(groups)))  # K^-1
        fit = _fit(design, soft_labels, inverse)
        covariance = _covariance(fit, inverse)
        intercept, slope = _line(fit, [domain.correct for domain in evidence if domain.correct is not None])
        group = min(sizes)
        nearness = _beyond_chance(distances, 2 / group, coordinates.shape[1])
        return cls(
            centre,
            scale,
            weights=fit.mode[:WEIGHTS],
            coordinates=coordinates,
            dual=inverse @ fit.mode[WEIGHTS:],
            covariance=covariance,
            intercept=intercept,
            slope=slope,
            clean=float(evidence[0].soft_labels.mean()),
            images=float(len(evidence[0].soft_labels)),
            group=float(group),
            widening=_widening(fit, np.array([domain.kind for domain, _ in groups]), nearness),
        )

    def predict(self, features: Array, coordinates: Array) -> tuple[Array, float]:
        """Probability of being right for each of some predictions ``[n, 3]`` of images ``[m, f]`` of one domain.

        Also the standard error of their mean by the regression alone (delta method).
        """
        columns = _columns(features)
        x = np.column_stack([np.ones(len(columns)), (columns - self.centre) / self.scale])
        distances = cdist(coordinates.mean(axis=0)[None], self.coordinates)[0]
        count, width = coordinates.shape
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
        value = float(p.mean())
        variances = p * (1 - p)
        chance = T95**2 * (variances.sum() / len(p) ** 2 + value * (1 - value) / self.images)
        # As an error of the logits, of which bounds are within 0 and 1 and far from 0 also where a value is near it.
        logits = logit(np.clip(p, 1e-9, 1 - 1e-9))
        step = T95 * error / max(float(variances.mean()), 1e-9)
        below = abs(value - float(expit(logits - step).mean()))
        above = abs(value - float(expit(logits + step).mean()))
        low = max(0.0, float(value - np.hypot(below, np.sqrt(chance))))
        high = float(value + np.hypot(above, np.sqrt(chance)))
        if relative:
            return Estimate(value / self.clean, low / self.clean, high / self.clean, outside, relative)
        return Estimate(value, low, min(1.0, high), outside, relative)

    def correlation(self, other: Regression) -> float:
        """Correlation of two processes over the groups, fitted to the same images: how far their errors are shared."""
        scale = np.linalg.norm(self._process) * np.linalg.norm(other._process)
        return float(self._process @ other._process / max(scale, 1e-9))

    @cached_property
    def _process(self) -> Array:
        """The process at the groups."""
        return np.asarray(self.slope * _kernel(cdist(self.coordinates, self.coordinates)) @ self.dual)


def prediction_features(logits: Floats) -> Array:
    """Features of single predictions: log-odds of the confidence, margin, entropy: ``[n, 3]``; 0 without logits."""
    x = np.asarray(logits, dtype=np.float64)
    if not x.shape[1]:
        return np.zeros((len(x), 3))
    p = softmax(x, axis=1)
    confidence = np.clip(p.max(axis=1), MIN_DOUBT, 1 - MIN_DOUBT)
    margin = np.full(len(x), MAX_MARGIN)
    if x.shape[1] > 1:
        ordered = np.sort(x, axis=1)
        margin = np.minimum(ordered[:, -1] - ordered[:, -2], MAX_MARGIN)
    return np.stack([np.log(confidence / (1 - confidence)), margin, entr(p).sum(axis=1)], axis=1)


def _columns(features: Array) -> Array:
    return np.concatenate([features, np.broadcast_to(features.mean(axis=0), features.shape)], axis=1)


def _beyond_chance(distances: Array, variance: float, width: int) -> Array:
    """Distances without what chance adds to those of means of few images: ``variance`` in each of ``width`` columns."""
    return np.sqrt(np.maximum(np.square(distances) - variance * width, 0.0))


def _kernel(distances: Array) -> Array:
    return np.asarray(SIGNAL_STD**2 * np.exp(-distances / LENGTHSCALE))


def _fit(design: Array, soft_labels: Array, inverse: Floats) -> Fit:
    """Fit (w, u) in one vector (R&W algorithm 3.1, with the weights included); ``inverse`` is K^-1.

    Soft labels vary less than p (1 - p), so each counts for several binary outcomes: a first fit says how many.
    """
    mean = np.zeros(design.shape[1])
    precision = block_diag(RIDGE, inverse)
    p = Fit.of(design, soft_labels, mean, precision).probabilities
    weight = float((p * (1 - p)).mean() / max(np.square(soft_labels - p).mean(), 1e-6))
    return Fit.of(design, soft_labels, mean, precision, weight)


def _covariance(fit: Fit, inverse: Floats) -> Array:
    """C of a score whose gradient is g = (x, k), by the weights (w, K^-1 u).

    Given the data, with H the curvature and A = diag(I, K^-1), its variance is s^2 + g^T (A H^-1 A - diag(0, K^-1)) g:
    R&W eq. 3.24, with the weights included.
    """
    transform = block_diag(np.eye(WEIGHTS), inverse)
    covariance = transform @ np.linalg.inv(fit.curvature) @ transform
    covariance[WEIGHTS:, WEIGHTS:] -= inverse
    return np.asarray(covariance)


def _line(fit: Fit, correct: list[Array]) -> tuple[float, float]:
    """Intercept and slope by which scores become logits of being right (Platt, 1999); no change without labels.

    Its prior is at no change: for a model that is always right the maximum likelihood is at infinity.
    """
    if not correct:
        return 0.0, 1.0
    scores = np.column_stack([np.ones(len(fit.design)), fit.design @ fit.mode])
    line = Fit.of(scores, np.concatenate(correct), np.array([0.0, 1.0]), np.eye(2))
    intercept, slope = line.mode.tolist()
    return intercept, slope


def leave_out(fit: Fit, rows: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return mode and covariance of a fit without some of its data (R&W section 5.4.2, for several at once).

    The likelihood is taken as quadratic, so the mode and curvature (m, H) become, with X and W of the rows left out,

        H' = H - X^T W X    and    m' = m - H'^-1 X^T (y - p)
    """
    x = fit.design[rows]
    p = fit.probabilities[rows]
    residuals = fit.weight * (fit.target[rows] - p)
    curvatures = fit.weight * p * (1 - p)
    covariance = np.linalg.inv(fit.curvature - (x.T * curvatures) @ x)
    return fit.mode - covariance @ (x.T @ residuals), covariance


def _widening(fit: Fit, kinds: npt.NDArray[np.str_], distances: Array) -> float:
    """Standard error of the score for each unit of distance, beyond the regression's own, for kinds left out.

    ``kinds`` are those of the groups, the first of them clean; ``distances`` are between groups.
    """
    group = fit.design[:, WEIGHTS:].argmax(axis=1)
    judged: list[tuple[float, float, float]] = []  # squared error, the one expected, squared distance times slope
    _, *corrupted = dict.fromkeys(kinds.tolist())
    for kind in corrupted:
        nearest = {other: distances[np.ix_(kinds == kind, kinds == other)].min() for other in corrupted}
        order = sorted(corrupted, key=lambda other: (other != kind, nearest[other]))
        for count in range(1, LEFT_OUT + 2):
            is_out = np.isin(kinds, order[:count])
            mode, covariance = leave_out(fit, is_out[group])
            distance = distances[:, ~is_out].min(axis=1)
            for index in np.flatnonzero((kinds == kind) & (distance > NEAR_DISTANCE)):
                x = fit.design[group == index]
                p = expit(x @ mode)
                error = (fit.target[group == index] - p).mean()
                slopes = p * (1 - p)
                gradient = slopes @ x / len(x)
                expected = gradient @ covariance @ gradient + slopes.mean() / fit.weight / len(x)
                judged.append((error**2, expected, (slopes.mean() * distance[index]) ** 2))
    if not judged:
        return 0.0
    errors, expected_errors, distances_squared = np.array(judged).T
    # A regression through the origin, by moments: E error^2 = expected + widening^2 d^2.
    widening_squared = (errors - expected_errors).sum() / (distances_squared.sum() + 1e-9)
    return float(np.sqrt(max(widening_squared, 0.0)))


@dataclass(frozen=True)
class Comparison:
    """The most recent pairs of predictions of the same images: the plain model's and the adapted one's.

    The plain model predicts some of the images too (the shadow), to measure whether adaptation helps. Where both
    predictions name the same class, both are right or both are wrong: only pairs that differ can gain or lose. For
    these the probability of being right is estimated for both. Adaptation *hurts* where the plain model's is higher
    by more than two standard errors: those of the pairs, and of the part of the regressions' errors that both do
    not share.
    """

    pairs: int
    agreement: float
    """Fraction of equal predictions."""
    gain: float | None = None
    """Expected accuracy of the adapted model minus that of the plain one."""
    error: float | None = None
    """Its standard error, without what both predictions share."""

    def worse_by(self, errors: float) -> bool:
        """Whether adaptation is worse by more than some standard errors."""
        return self.gain is not None and self.error is not None and self.gain < -errors * self.error

    @property
    def hurts(self) -> bool:
        """Whether adaptation is significantly worse: a guard begins."""
        return self.worse_by(BEGIN_ERRORS)

    @property
    def may_hurt(self) -> bool:
        """Whether it is worse by one standard error: a guard that has begun goes on, so that it does not flutter."""
        return self.worse_by(END_ERRORS)

    @classmethod
    def of(cls, pairs: Array, plain: Regression | None, adapted: Regression | None, where: Array | None) -> Comparison:
        """Compare pairs that :func:`paired` returned; ``where`` are the coordinates of the recent images."""
        is_same = pairs[:, 6] > 0
        agreement = float(is_same.mean())
        if where is None or plain is None or adapted is None:
            return cls(len(pairs), agreement)
        p_plain, error_plain = plain.predict(pairs[:, :3], where)
        p_adapted, error_adapted = adapted.predict(pairs[:, 3:6], where)
        gains = np.where(is_same, 0.0, p_adapted - p_plain)
        # Both are of the same images: errors that both regressions share cancel in the difference.
        unshared = np.sqrt(max(1 - plain.correlation(adapted), 0.0))
        model_error = unshared * np.hypot(error_plain, error_adapted) * (1 - agreement)
        error = float(np.hypot(gains.std() / np.sqrt(len(gains)), model_error))
        return cls(len(pairs), agreement, float(gains.mean()), error)


def paired(plain: Floats, adapted: Floats) -> Array:
    """Pairs of logits ``[n, classes]`` as features of both, and whether they name the same class: ``[n, 7]``."""
    is_same = plain.argmax(axis=1) == adapted.argmax(axis=1)
    return np.column_stack([prediction_features(plain), prediction_features(adapted), is_same])
