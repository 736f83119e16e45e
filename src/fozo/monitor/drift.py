"""Drift: are these images clean images of the kind that was calibrated on, for a chosen rate of false alarms?

Features of an image (:mod:`fozo.monitor.quality`) are standardised by those of the clean images, clipped at three
standard deviations (so that one outlier has limited weight) and whitened. ``T`` is the mean squared length of a clean
image then, by cross-validation. The *distance* of n images is the squared length of their mean, in units of T: for
independent clean images 1/n + 1/N on average, with N the images calibrated on. Its distribution is taken as log-normal
with the mean and variance that follow from those of one image:

    Q = |mean|^2 / (1/n + 1/N),    E Q = T,    Var Q = 2 S (1 - 1/n) + V / n

with S the squared Frobenius norm of the whitened covariance and V the variance of the squared length. So thresholds
hold for every n, and every rate, from the clean images alone; ``benchmarks/monitor.py`` counts how well.

**Entropy.** Some drifts hardly change these features, but the predictions. So the rise of the mean entropy of n
predictions, by h standard deviations of a clean one, is tested too. The mean is taken as gamma-distributed, and h^2 is
the distance.

**What is not drift.** The mean of narrow content differs from that of all clean images, so a squared shift of
``content`` (0.25) is allowed for. And frames of one scene are not independent. Neighbours differ by D = 1 - rho in
units of T (von Neumann, 1941), with rho their autocorrelation; that of images of narrow content is taken for
rho = 1 - 2 D, so that these count in full. Then n of them count as n (1 - rho) / (1 + rho), the clean ones too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.special import gammaincc, gammainccinv, ndtr, ndtri

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.state import State, ragged
from fozo.types import Array

MAX_CLEAN_DEVIATION = 3.0  # standard deviations at which a feature is clipped
SHRINKAGE = 0.2  # added to the variances of standardised features before whitening
MIN_SCALE = 1e-6  # least standard deviation of a feature
MIN_ENTROPY = 1e-3  # nats: least mean and standard deviation of clean entropies
FOLDS = 4
MIN_IMAGES = 16  # clean images that are needed to estimate how clean images vary
WINDOWS = (4, 16, 64)  # images that are tested together, where batches are smaller
RECENT = 16  # images, at least, that decide whether a drift has ended
MIN_SIDE = 8  # images, at least, on both sides of a change from one drift to another
UNKNOWN_TIME = -1.0


@dataclass(frozen=True)
class Drift(State):
    """Whether images have drifted: river's names, and Alibi Detect's numbers."""

    drift_detected: bool = False
    warning_detected: bool = False
    distance: float = 0.0
    """Distance from clean images; 1 is the mean distance of one clean image from the mean of all."""
    threshold: float = 0.0
    """Distance above which it is drift."""
    p_value: float = 1.0
    """Probability that clean images are as far as that."""
    since: int | None = None
    """Number of the image with which the drift began, the first being 1."""
    since_time: float | None = None
    """When that was, in seconds since 1970."""
    changed: int | None = None
    """Number of the image with which it last turned into another drift."""
    changed_time: float | None = None

    @property
    def is_drift(self) -> bool:
        return self.drift_detected

    @property
    def ratio(self) -> float:
        """Distance over threshold: above 1 is drift, however many images were tested."""
        return self.distance / self.threshold if self.threshold else 0.0

    @property
    def first(self) -> int | None:
        """Number of the first image of the present drift: since it began, or since it changed."""
        return self.since if self.changed is None else self.changed

    def as_dict(self) -> dict[str, float]:
        """Alibi Detect's names."""
        return {
            "is_drift": int(self.drift_detected),
            "distance": self.distance,
            "threshold": self.threshold,
            "p_val": self.p_value,
        }


NO_DRIFT = Drift()


@dataclass(frozen=True)
class Whitening(State):
    """Standardises and whitens features."""

    mean: Array
    std: Array
    centre: Array
    """Mean of the images after clipping."""
    matrix: Array
    """``[features, features]``"""
    max_deviation: float = MAX_CLEAN_DEVIATION

    def __post_init__(self) -> None:
        (width,) = self.mean.shape
        if not (self.std.shape == self.centre.shape == (width,) and self.matrix.shape == (width, width)):
            raise ValueError("a whitening has arrays of different widths")
        if min(self.max_deviation, self.std.min()) <= 0:
            raise ValueError("its scales are not positive")

    @classmethod
    def of(cls, features: Array) -> Whitening:
        mean = features.mean(axis=0)
        std = np.maximum(features.std(axis=0), MIN_SCALE)
        clipped = np.clip((features - mean) / std, -MAX_CLEAN_DEVIATION, MAX_CLEAN_DEVIATION)
        values, vectors = np.linalg.eigh(np.cov(clipped.T))
        return cls(mean, std, clipped.mean(axis=0), vectors / np.sqrt(np.maximum(values, 0) + SHRINKAGE))

    def __call__(self, features: Array) -> Array:
        clipped = np.clip((features - self.mean) / self.std, -self.max_deviation, self.max_deviation)
        return np.asarray((clipped - self.centre) @ self.matrix)


class Finding(NamedTuple):
    """What one test says of some images."""

    p_value: float
    distance: float
    threshold: float


@dataclass(frozen=True)
class CleanImages(State):
    """Distribution of clean images, and of the distance of their means."""

    images: int
    whitening: Whitening
    length: float
    """T: mean squared length of a whitened clean image."""
    variance: float
    """V: variance of that squared length."""
    norm: float
    """S: squared Frobenius norm of the covariance."""
    entropy: tuple[float, float] | None = None
    """Mean and standard deviation of the predictions' entropies, in nats."""

    def __post_init__(self) -> None:
        if min(self.length, self.variance, self.norm, self.images, *(self.entropy or ())) <= 0:
            raise ValueError("its scales are not positive")

    @classmethod
    def of(cls, features: Array, entropies: Array | None = None) -> CleanImages:
        """Estimate it from features ``[n, width]`` of clean images, by cross-validation, and entropies ``[n]``."""
        count, width = features.shape
        if count < MIN_IMAGES:
            raise FozoError(f"a monitor needs at least {MIN_IMAGES} clean images, not {count}; give more of them")
        everything = Whitening.of(features)(features)
        images = independent(everything, float(np.square(everything).sum(axis=1).mean()))
        folds = np.arange(count) % FOLDS
        if images < count / 2:  # frames of a video: neighbours of what was left out would give it away
            folds = np.arange(count) * FOLDS // count
        unseen = np.empty_like(features)
        for fold in range(FOLDS):
            whitening = Whitening.of(features[folds != fold])
            unseen[folds == fold] = whitening(features[folds == fold])
        lengths = np.square(unseen).sum(axis=1)
        length = float(lengths.mean())
        # The squared norm of an estimated covariance is too large by about T^2 / n; none is below T^2 / f.
        estimated_norm = float(np.square(np.cov(unseen.T)).sum())
        norm = max(estimated_norm - length**2 / images, length**2 / width)
        entropy = None
        if entropies is not None:
            entropy = (max(float(entropies.mean()), MIN_ENTROPY), max(float(entropies.std()), MIN_ENTROPY))
        return cls(max(1, round(images)), Whitening.of(features), length, float(lengths.var()), norm, entropy)

    @property
    def width(self) -> int:
        return len(self.whitening.mean)

    def entropy_rises(self, entropies: Array) -> Array:
        """How far entropies are above the clean mean, in clean standard deviations; 0 where that is unknown."""
        if self.entropy is None:
            return np.zeros(len(entropies))
        mean, std = self.entropy
        return (entropies - mean) / std

    def _log_normal(self, images: float) -> tuple[float, float]:
        """Mean and standard deviation of log Q for a number of independent images."""
        variance = 2 * self.norm * (1 - 1 / images) + self.variance / images
        sigma2 = math.log1p(variance / self.length**2)
        return math.log(self.length) - sigma2 / 2, math.sqrt(sigma2)

    def p_value(self, distance: float, images: float, content: float, others: float | None = None) -> float:
        """Probability that independent clean images are as far from those calibrated on, or from ``others``."""
        if others is None:
            others = self.images
        q = self.length * (distance - content) / (1 / images + 1 / others)
        if q <= 0:
            return 1.0
        mean, deviation = self._log_normal(min(images, others))
        return float(ndtr((mean - math.log(q)) / deviation))

    def threshold(self, rate: float, images: float, content: float) -> float:
        """Distance that clean images exceed at this rate."""
        mean, deviation = self._log_normal(images)
        q = math.exp(mean - deviation * ndtri(rate))
        return content + q * (1 / images + 1 / self.images) / self.length

    def distance(self, rows: Array) -> float:
        """Squared length of the mean of whitened images ``[n, f]``, in units of a clean image's."""
        return float(np.square(rows.mean(axis=0)).sum()) / self.length

    def entropy_test(self, rise: float, rate: float, images: float, content: float) -> Finding:
        """Test a mean entropy that rose by ``rise`` clean standard deviations."""
        assert self.entropy is not None
        mean, std = self.entropy
        allowed = math.sqrt(content)
        variance = std**2 * (1 / images + 1 / self.images)
        # Shape and scale of the gamma distribution with this mean and variance.
        shape = mean**2 / variance
        scale = variance / mean
        p_value = float(gammaincc(shape, max(mean + std * (rise - allowed), 0.0) / scale))
        threshold = allowed + (scale * float(gammainccinv(shape, rate)) - mean) / std
        return Finding(p_value, max(rise, 0.0) ** 2, threshold**2)

    def independent(self, rows: Array) -> float:
        """How many independent images ``rows`` count as: fewer where neighbours are nearly the same picture."""
        return independent(rows, self.length)


@dataclass(frozen=True)
class DriftState(State):
    """The most recent images, and what they were found to be."""

    features: Array = ragged("window")
    """Whitened features."""
    rises: Array = ragged("window")
    """Rises of the entropies, in clean standard deviations."""
    times: Array = ragged("window")
    """When the images were seen; -1 where that is unknown."""
    seen: int = 0
    drift: Drift = NO_DRIFT

    def __post_init__(self) -> None:
        if self.seen < max(len(self.features), self.drift.since or 0, self.drift.changed or 0):
            raise ValueError("it has seen fewer images than it remembers")
        if self.drift.drift_detected != (self.drift.since is not None):
            raise ValueError("it has a drift without a date, or a date without a drift")

    def latest(self, count: int) -> DriftState:
        """Keep only the latest images."""
        keep = slice(max(0, len(self.features) - count), None)
        return replace(self, features=self.features[keep], rises=self.rises[keep], times=self.times[keep])

    @property
    def drifted(self) -> DriftState:
        """Keep only the images of the present drift."""
        return self.latest(self.seen - (self.drift.first or 1) + 1)

    @property
    def joined(self) -> Array:
        """Features and rises side by side: the mean of a drift is a mean of both."""
        return np.column_stack([self.features, self.rises])


class DriftDetector:
    """Tests each batch, and the most recent images together; remembers since when it is drift.

    The batch is tested alone, and then with those before it: the last 4, 16 and 64 images (:data:`WINDOWS`) where these
    are more. The tests share the rate evenly (Bonferroni), so ``rate`` bounds the fraction of clean batches with an
    alarm, whatever their size. A warning is a p-value below the root of the rate. A drift has changed where its latest
    images are drift too, but of another mean. It is over when at least 16 images are nearer to clean images than to
    those of the drift, and give no warning.
    """

    def __init__(self, clean: CleanImages, rate: float = 1e-4, content: float = CONTENT_VARIANCE) -> None:
        if not 0 < rate < 0.5:
            raise FozoError(f"the rate of false alarms is {rate}; give one above 0 and below 0.5, such as 1e-4")
        if not content >= 0:
            raise FozoError(f"content is {content}; give a squared shift from 0 up")
        self.clean = clean
        self.rate = rate
        self.content = content

    def init(self) -> DriftState:
        return DriftState(np.zeros((0, self.clean.width)), np.zeros(0), np.zeros(0))

    def update(
        self, state: DriftState, features: Array, time: float | Array = UNKNOWN_TIME, entropies: Array | None = None
    ) -> tuple[DriftState, Drift]:
        """Test a batch ``[n, features]``, seen at a ``time`` (or one each), whose predictions have ``entropies``."""
        if not len(features):
            return state, state.drift
        before = state.drift
        state = self._with_batch(state, features, time, entropies)
        finding = self._worst_window(state, len(features))
        drift = Drift(warning_detected=finding.p_value < math.sqrt(self.rate), **finding._asdict())
        lasting = replace(before, drift_detected=True, warning_detected=True, **finding._asdict())
        if before.drift_detected:
            clean_again = self._clean_again(state.drifted)
            if clean_again:  # forget the drift's images
                return replace(state.latest(clean_again), drift=drift), drift
            state = self.change(replace(state, drift=lasting), self.rate, self.content)
            return state, state.drift
        if finding.p_value < self.rate:
            number, when = _date(state, likeliest_beginning(state.joined))
            drift = replace(lasting, since=number, since_time=when)
        return replace(state, drift=drift), drift

    def _with_batch(
        self, state: DriftState, features: Array, time: float | Array, entropies: Array | None
    ) -> DriftState:
        count = len(features)
        rises = np.zeros(count)
        if entropies is not None:
            rises = np.clip(self.clean.entropy_rises(entropies), -MAX_CLEAN_DEVIATION, MAX_CLEAN_DEVIATION)
        joined = replace(
            state,
            features=np.concatenate([state.features, self.clean.whitening(features)]),
            rises=np.concatenate([state.rises, rises]),
            times=np.concatenate([state.times, np.broadcast_to(time, count)]),
            seen=state.seen + count,
        )
        return joined.latest(WINDOWS[-1] + count)  # so that a change is seen at the edge of a batch too

    def _worst_window(self, state: DriftState, batch: int) -> Finding:
        """Test the batch alone and the last 4, 16 and 64 images; the lowest p-value counts."""
        sizes = [batch, *(size for size in WINDOWS if size > batch)]
        return min(self._test(state.latest(size), len(sizes)) for size in sizes if size <= len(state.features))

    def change(self, state: DriftState, rate: float, content: float = 0.0) -> DriftState:
        """Date a change from one drift to another, where the latest images are drift too and their mean differs."""
        drifted = state.drifted
        count = len(drifted.features)
        length = likeliest_change(drifted.joined)
        if not (state.drift.drift_detected and MIN_SIDE <= length <= count - MIN_SIDE):
            return state
        clean = self.clean
        old = drifted.features[:-length]
        latest = drifted.latest(length)
        new = latest.features
        distance = clean.distance((new.mean(axis=0) - old.mean(axis=0))[None])
        p_value = clean.p_value(distance, clean.independent(new), content, clean.independent(old))
        differs = count * p_value < rate  # all possible splits share the rate
        if not differs or self._test(latest, 1).p_value >= self.rate:
            return state
        number, when = _date(state, length)
        return replace(state, drift=replace(state.drift, changed=number, changed_time=when))

    def _clean_again(self, drifted: DriftState) -> int:
        """How many of the images of a drift look clean again; 0 if it is not over.

        By the likelihood of a return to the clean mean (0) with one of the latest images, over staying at the drift's.
        """
        rows = drifted.joined
        mean = rows[: max(RECENT, len(rows) - RECENT)].mean(axis=0)
        likelihood_ratios = mean @ mean - 2 * rows @ mean
        length = 1 + int(np.cumsum(likelihood_ratios[::-1]).argmax())
        is_over = length >= RECENT and self._test(drifted.latest(length), 1).p_value >= math.sqrt(self.rate)
        return length if is_over else 0

    def _test(self, state: DriftState, tests: int) -> Finding:
        """Test images by their features and by their entropies; ``tests`` tests like this one share the rate."""
        clean = self.clean
        images = clean.independent(state.features)
        distance = clean.distance(state.features)
        shares = tests if clean.entropy is None else 2 * tests
        rate = self.rate / shares
        threshold = clean.threshold(rate, images, self.content)
        finding = Finding(clean.p_value(distance, images, self.content), distance, threshold)
        if clean.entropy is not None:
            finding = min(finding, clean.entropy_test(float(state.rises.mean()), rate, images, self.content))
        return finding._replace(p_value=min(1.0, shares * finding.p_value))


def _date(state: DriftState, length: int) -> tuple[int, float | None]:
    """Number and time of the first of the latest ``length`` images."""
    time = float(state.times[-length])
    return state.seen - length + 1, None if time < 0 else time


def independent(rows: Array, length: float) -> float:
    """How many independent images whitened ``rows`` of mean squared ``length`` count as, by their autocorrelation."""
    count = len(rows)
    if count == 1:
        return 1.0
    difference = float(np.square(np.diff(rows, axis=0)).sum()) / (count - 1) / 2 / length
    correlation = max(0.0, 1 - 2 * difference)
    return max(1.0, count * (1 - correlation) / (1 + correlation))


def likeliest_beginning(rows: Array) -> int:
    """How many of the latest images ``[N, f]`` have a mean of their own, if those before them have the mean 0.

    It is the n of the largest likelihood (Page, 1954), n |mean|^2, with the mean of the latest n.
    """
    return 1 + int(_explained(rows).argmax())


def likeliest_change(rows: Array) -> int:
    """How many of the latest of N images have another mean than the m = N - n before them; 0 of a single image.

    It is the n of the largest likelihood of two means (Page, 1954; Hinkley, 1970):

        n m / (n + m) |mean_latest - mean_before|^2  =  |sum of the latest centred rows|^2 / n  *  N / m
    """
    count = len(rows)
    if count < 2:
        return 0
    before = count - np.arange(1, count)
    gains = _explained(rows - rows.mean(axis=0))[:-1] * count / before
    return 1 + int(gains.argmax())


def _explained(rows: Array) -> Array:
    """|sum|^2 / n of the latest n = 1, 2, ... rows."""
    sums = np.cumsum(rows[::-1], axis=0)
    return np.asarray(np.square(sums).sum(axis=1) / np.arange(1, len(sums) + 1))
