"""How often predictions are right, learnt from clean and corrupted images: the regression behind expected accuracies.

    logit P(right) = w . (1, what the prediction shows, what those around it show on average) + u(looks)

``u`` is a Gaussian process over what the images look like (their place among the signatures): near a corruption that
was seen at calibration it is how much better or worse predictions were found to be than they seem; far from all of them
it falls back to 0, and its variance grows to that of the process. So a known corruption is corrected for, an unknown
one only as far as it looks like known ones, and the interval says which it was.

**What counts as right.** A prediction of a corrupted image counts as right by the probability that the plain model gave
to the same class for the same image uncorrupted. That needs no label, and it varies much less by chance than being
right or wrong does. It is true as a *part* of what it is on clean images, even of a model that is far too modest or too
sure. Where there are labels, two numbers (slope and intercept of the logit) are then fitted to being right itself, over
all images, which makes it an accuracy.

``w`` and ``u`` are found together by Newton's method (Laplace's approximation). How far ``u`` varies (``amplitude``)
and over what distance (``reach``) are chosen by leaving out one kind of corruption after the other: those of a grid
under which what was found for it is likeliest, given all others. So the interval is meant for a kind never seen, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from fozo.monitor.accuracy import Estimate, prediction_features
from fozo.monitor.signatures import Coordinates
from fozo.types import Array, Floats

CHUNK = 64
"""Predictions that are looked at together when it is learnt: as many as a monitor looks at."""
COLUMNS = 6
"""Of the regression: what one prediction shows, and what those around it show."""
RIDGE = 1.0
AMPLITUDES = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.4)
REACHES = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
FIRST = 0.6, 16.0
"""Amplitude and reach to begin with."""
JITTER = 1e-6
STEPS = 40


@dataclass(frozen=True)
class Evidence:
    """Predictions of some images of one domain, and how probably they were right."""

    kind: str
    logits: Floats
    places: Array
    """Where each image is among the signatures: :meth:`fozo.monitor.signatures.Signatures.rows`."""
    likely: Array
    """What the plain model gave to the same classes for the same images uncorrupted."""
    right: Array | None = None
    """Whether they were, if there are labels."""


@dataclass(frozen=True)
class Regression:
    """How often predictions are right, by what they show and by what the images look like."""

    centre: Array
    scale: Array
    weights: Array
    places: Array
    """Of the groups of images that it was learnt from: ``[groups, features]``."""
    offsets: Array
    """``u`` is ``offsets @ k``, where ``k`` are the covariances with the groups."""
    spread: Array
    """``[weights + groups] * 2``: with a gradient on both sides, the variance of a mean less that of the process."""
    amplitude: float
    reach: float
    intercept: float
    slope: float
    """By these two the score becomes the logit of being right."""
    clean: float
    """What counts as right on clean images, on average."""
    images: int
    """How many these are."""

    @classmethod
    def of(cls, evidence: Sequence[Evidence]) -> Regression:
        """Learn it; the evidence of the clean images comes first."""
        parts = [part for each in evidence for part in _chunks(each)]
        columns = np.concatenate([_columns(prediction_features(part.logits)) for part in parts])
        likely = np.concatenate([part.likely for part in parts])
        group = np.repeat(np.arange(len(parts)), [len(part.likely) for part in parts])
        centre, scale = columns.mean(axis=0), columns.std(axis=0) + 1e-9
        x = _with_one((columns - centre) / scale)
        places = np.array([part.places.mean(axis=0) for part in parts])
        distances = _distances(places)
        amplitude, reach, weight = _choose(x, likely, group, [part.kind for part in parts], distances)
        found, curvature = _laplace(x, likely, group, _covariances(distances, amplitude, reach), weight)
        number, inverse = x.shape[1], np.linalg.inv(_covariances(distances, amplitude, reach))
        towards = np.eye(len(found))
        towards[number:, number:] = inverse
        spread = towards @ np.linalg.inv(curvature) @ towards
        spread[number:, number:] -= inverse
        line = 0.0, 1.0
        right = [part.right for part in parts if part.right is not None]
        if right:
            line = _line(_score(x, group, found), np.concatenate(right))
        clean = evidence[0].likely
        learnt = found[:number], places, inverse @ found[number:], spread, amplitude, reach
        return cls(centre, scale, *learnt, *line, float(clean.mean()), len(clean))

    def arrays(self) -> dict[str, Array]:
        """What a file keeps of it."""
        numbers = self.amplitude, self.reach, self.intercept, self.slope, self.clean, self.images
        return {
            "columns": np.stack([self.centre, self.scale]), "weights": self.weights, "places": self.places,
            "offsets": self.offsets, "spread": self.spread, "numbers": np.array(numbers),
        }  # fmt: skip

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], width: int) -> Regression:
        """Take what :meth:`arrays` gave, of images of so many features; what does not go together is refused."""
        names = "columns", "weights", "places", "offsets", "spread", "numbers"
        columns, weights, places, offsets, spread, numbers = (arrays[name] for name in names)
        groups, size = len(offsets), COLUMNS + 1 + len(offsets)
        wanted = (2, COLUMNS), (COLUMNS + 1,), (groups, width), (groups,), (size, size), (6,)
        if tuple(arrays[name].shape for name in names) != wanted:
            raise ValueError("a regression has the wrong form")
        amplitude, reach, intercept, slope, clean, images = numbers.tolist()
        if min(amplitude, reach, clean, columns[1].min()) <= 0 or images < 1:
            raise ValueError("a regression has scales that are not positive")
        learnt = columns[0], columns[1], weights, places, offsets, spread
        return cls(*learnt, amplitude, reach, intercept, slope, clean, int(images))

    def probabilities(self, shown: Array, place: Coordinates) -> Array:
        """Probability of being right for each of some predictions, given what they show, of images at a place."""
        return self._judge(shown, place)[0]

    def mean(self, shown: Array, place: Coordinates) -> tuple[float, float]:
        """Mean of these probabilities, and the standard error that is the regression's own."""
        p, x, k = self._judge(shown, place)
        slopes = self.slope * p * (1 - p)
        gradient = np.concatenate([(slopes[:, None] * x).mean(axis=0), slopes.mean() * k])
        variance = (slopes.mean() * self.amplitude) ** 2 + gradient @ self.spread @ gradient
        return float(p.mean()), float(np.sqrt(max(variance, 0.0)))

    def estimate(self, shown: Array, place: Coordinates, *, outside: bool = False, relative: bool = False) -> Estimate:
        """Estimate the accuracy of predictions of one domain, or, ``relative``, which part it is of that when clean.

        The error has the regression's own, that of chance for so many predictions which are each right or wrong, and
        that of the images calibrated on, which were drawn by chance too.
        """
        p = self.probabilities(shown, place)
        value, own = self.mean(shown, place)
        chance = (p * (1 - p)).sum() / len(p) ** 2 + value * (1 - value) / self.images
        unit = self.clean if relative else 1.0
        return Estimate.about(value / unit, float(np.sqrt(own**2 + chance)) / unit, outside=outside, relative=relative)

    def likeness(self, other: Regression) -> float:
        """Correlation of two processes over the groups, learnt from the same images: how far they err alike."""
        mine, others = (each._levels for each in (self, other))
        scale = float(np.sqrt(np.square(mine).sum() * np.square(others).sum()))
        return float(mine @ others) / max(scale, 1e-9)

    @cached_property
    def _levels(self) -> Array:
        """The process at the groups."""
        covariances = _covariances(_distances(self.places), self.amplitude, self.reach)
        return np.asarray(self.slope * covariances @ self.offsets)

    def _judge(self, shown: Array, place: Coordinates) -> tuple[Array, Array, Array]:
        """Probabilities, columns, and covariances with the groups."""
        x = _with_one((_columns(shown) - self.centre) / self.scale)
        squared = np.square(self.places - place.mean).sum(axis=1)
        # Means of few images are far from everything by chance alone.
        chance = max(1 / place.images - 1 / CHUNK, 0.0) * self.places.shape[1]
        k = _covariances(np.sqrt(np.maximum(squared - chance, 0.0)), self.amplitude, self.reach)
        return _sigmoid(self.intercept + self.slope * (x @ self.weights + self.offsets @ k)), x, k


def _chunks(evidence: Evidence) -> list[Evidence]:
    """Cut predictions into groups of about :data:`CHUNK`: means over more of them are another thing."""
    groups = np.array_split(np.arange(len(evidence.logits)), max(1, len(evidence.logits) // CHUNK))
    right = evidence.right
    return [
        Evidence(
            evidence.kind,
            evidence.logits[i],
            evidence.places[i],
            evidence.likely[i],
            None if right is None else right[i],
        )
        for i in groups
    ]


def _columns(shown: Array) -> Array:
    return np.concatenate([shown, np.broadcast_to(shown.mean(axis=0), shown.shape)], axis=1)


def _with_one(columns: Array) -> Array:
    return np.concatenate([np.ones((len(columns), 1)), columns], axis=1)


def _sigmoid(score: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(score, -30, 30))))


def _score(x: Array, group: npt.NDArray[np.int64], found: Array) -> Array:
    return np.asarray(x @ found[: x.shape[1]] + found[x.shape[1] :][group])


def _distances(places: Array) -> Array:
    return np.asarray(np.sqrt(np.square(places[:, None] - places).sum(axis=2)))


def _covariances(distances: Array, amplitude: float, reach: float) -> Array:
    """Covariances of the process; a square of distances is that of the groups to one another."""
    found = amplitude**2 * np.exp(-distances / reach)
    return found + JITTER * np.eye(len(found)) if found.ndim == 2 else found


def _choose(
    x: Array, likely: Array, group: npt.NDArray[np.int64], kinds: list[str], distances: Array
) -> tuple[float, float, float]:
    """Choose amplitude and reach, and say for how many that are right or wrong each probability counts.

    With the working responses of a first fit everything is normal, so all kinds are left out in closed form: of the
    precision matrix of all groups, the block of a kind is the inverse of how its groups vary given all others.
    """
    found, _ = _laplace(x, likely, group, _covariances(distances, *FIRST), 1.0)
    score = _score(x, group, found)
    p = _sigmoid(score)
    slopes = p * (1 - p) + 1e-9
    weight = float(slopes.mean() / max(np.square(likely - p).mean(), 1e-6))
    precision, response = weight * slopes, score + (likely - p) / slopes
    total = np.bincount(group, precision)
    x_mean = np.stack([np.bincount(group, precision * column) for column in x.T], axis=1) / total[:, None]
    mean = np.bincount(group, precision * response) / total
    # Within groups the weights are learnt, between them what the weights leave to the process.
    within = (x - x_mean[group]).T * precision
    variance = np.linalg.inv(within @ (x - x_mean[group]) + _ridge(x.shape[1]))
    left = mean - x_mean @ (variance @ within @ (response - mean[group]))
    noise = np.diag(1 / total) + x_mean @ variance @ x_mean.T
    blocks = [np.flatnonzero(np.array(kinds) == kind) for kind in dict.fromkeys(kinds)]

    def likelihood(process: tuple[float, float]) -> float:
        inverse = np.linalg.inv(_covariances(distances, *process) + noise)
        told, logs = inverse @ left, 0.0
        for block in blocks:
            own = inverse[np.ix_(block, block)]
            logs += float(np.linalg.slogdet(own)[1] - told[block] @ np.linalg.solve(own, told[block])) / 2
        return logs

    return *max(product(AMPLITUDES, REACHES), key=likelihood), weight


def _ridge(number: int) -> Array:
    """Precision of the weights; the first is the intercept."""
    return np.diag([JITTER, *(RIDGE,) * (number - 1)])


def _laplace(
    x: Array, likely: Array, group: npt.NDArray[np.int64], covariances: Array, weight: float
) -> tuple[Array, Array]:
    """Find weights and offsets, in one vector, and the curvature there."""
    number, groups = x.shape[1], len(covariances)
    prior = np.zeros((number + groups,) * 2)
    prior[:number, :number], prior[number:, number:] = _ridge(number), np.linalg.inv(covariances)
    design = np.concatenate([x, np.eye(groups)[group]], axis=1)
    found = np.zeros(number + groups)
    for _ in range(STEPS):
        p = _sigmoid(design @ found)
        curvature = weight * (design.T * (p * (1 - p) + 1e-9)) @ design + prior
        step = np.linalg.solve(curvature, weight * design.T @ (likely - p) - prior @ found)
        found = found + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-6:
            break
    return found, curvature


def _line(score: Array, right: Array) -> tuple[float, float]:
    """Intercept and slope by which a score becomes the logit of being right (Platt, 1999)."""
    x, none = _with_one(score[:, None]), np.array([0.0, 1.0])
    found = none
    for _ in range(STEPS):
        p = _sigmoid(x @ found)
        # A ridge towards no change: a model that is always right has no finite line.
        curvature = (x.T * (p * (1 - p))) @ x + RIDGE * np.eye(2)
        found = found + np.clip(np.linalg.solve(curvature, x.T @ (right - p) - RIDGE * (found - none)), -2, 2)
    intercept, slope = found.tolist()
    return intercept, slope
