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
``content`` (0.25) is allowed for. And frames of one scene are not independent: where their variance v, in units of T,
is below 1/2, their mean counts as that of 1 / (1/n + 1 - 2v) images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import gammaincc, gammainccinv, ndtr, ndtri

from fozo.core.content import CONTENT_VARIANCE
from fozo.errors import FozoError
from fozo.types import Array, State

MAX_DEVIATION = 3.0  # standard deviations at which a feature is clipped
SHRINKAGE = 0.2  # added to the variances of standardised features before whitening
MIN_ENTROPY = 1e-3  # nats: least mean and standard deviation of clean entropies
FOLDS = 4
MIN_IMAGES = 16  # clean images that are needed to estimate how clean images vary
WINDOWS = (4, 16, 64)  # images that are tested together, where batches are smaller
RECENT = 16  # images, at least, that decide whether a drift has ended
PART = 8  # images, at least, on both sides of a change from one drift to another


@dataclass(frozen=True)
class Drift:
    """Whether images have drifted: river's names, and Alibi Detect's numbers."""

    drift_detected: bool = False
    warning_detected: bool = False
    distance: float = 0.0  # from clean images; 1 is the mean distance of one clean image from the mean of all
    threshold: float = 0.0  # distance above which it is drift
    p_value: float = 1.0  # probability that clean images are as far as that
    since: int | None = None  # number of the image with which the drift began, the first being 1
    since_time: float | None = None  # when that was, in seconds since 1970
    changed: int | None = None  # number of the image with which it last turned into another drift
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

    def as_dict(self) -> dict[str, float | int | None]:
        """Alibi Detect's names: ``is_drift``, ``distance``, ``threshold``, ``p_val``."""
        numbers = int(self.drift_detected), self.distance, self.threshold, self.p_value
        return dict(zip(("is_drift", "distance", "threshold", "p_val"), numbers, strict=True))


@dataclass(frozen=True)
class Whitening:
    """Standardises and whitens features."""

    mean: Array
    std: Array
    centre: Array  # mean of the clean images after clipping
    matrix: Array  # `[features, features]`
    max_deviation: float = MAX_DEVIATION

    @classmethod
    def of(cls, features: Array) -> Whitening:
        mean, std = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-6)
        clipped = np.clip((features - mean) / std, -MAX_DEVIATION, MAX_DEVIATION)
        values, vectors = np.linalg.eigh(np.cov(clipped.T))
        return cls(mean, std, clipped.mean(axis=0), vectors / np.sqrt(np.maximum(values, 0) + SHRINKAGE))

    def __call__(self, features: Array) -> Array:
        clipped = np.clip((features - self.mean) / self.std, -self.max_deviation, self.max_deviation)
        return np.asarray((clipped - self.centre) @ self.matrix)


@dataclass(frozen=True)
class CleanImages:
    """Distribution of clean images, and of the distance of their means."""

    images: int
    whitening: Whitening
    length: float  # T: mean squared length of a whitened clean image
    variance: float  # V: variance of that squared length
    norm: float  # S: squared Frobenius norm of the covariance
    entropy: tuple[float, float] | None = None  # mean and standard deviation of the predictions' entropies, in nats

    @classmethod
    def of(cls, features: Array, entropies: Array | None = None) -> CleanImages:
        """Estimate it from features ``[n, width]`` of clean images, by cross-validation, and entropies ``[n]``."""
        count = len(features)
        if count < MIN_IMAGES:
            raise FozoError(f"a monitor needs at least {MIN_IMAGES} clean images, not {count}; give more of them")
        fold, unseen = np.arange(count) % FOLDS, np.empty_like(features)
        for part in range(FOLDS):
            unseen[fold == part] = Whitening.of(features[fold != part])(features[fold == part])
        squared = np.square(unseen).sum(axis=1)
        length = float(squared.mean())
        covariance = np.cov(unseen.T)
        # The squared norm of an estimated covariance is too large by about T^2 / n; none is below T^2 / f.
        norm = max(float(np.square(covariance).sum()) - length**2 / count, length**2 / features.shape[1])
        entropy = None
        if entropies is not None:
            entropy = max(float(entropies.mean()), MIN_ENTROPY), max(float(entropies.std()), MIN_ENTROPY)
        return cls(count, Whitening.of(features), length, float(squared.var()), norm, entropy)

    @property
    def width(self) -> int:
        return len(self.whitening.mean)

    def arrays(self) -> dict[str, Array]:
        white, scales = self.whitening, np.array([self.length, self.variance, self.norm, *(self.entropy or ())])
        return {"mean": white.mean, "std": white.std, "centre": white.centre, "matrix": white.matrix, "scales": scales}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], images: int) -> CleanImages:
        """Read what :meth:`arrays` returned; raises a ``ValueError`` for scales that no images have."""
        white = Whitening(arrays["mean"], arrays["std"], arrays["centre"], arrays["matrix"])
        length, variance, norm, *entropy = arrays["scales"].tolist()
        if min(length, variance, norm, *entropy, float(white.std.min())) <= 0 or images < 1:
            raise ValueError("its scales are not positive")
        return cls(images, white, length, variance, norm, (entropy[0], entropy[1]))

    def _log_normal(self, images: float) -> tuple[float, float]:
        """Mean and standard deviation of log Q for a number of independent images."""
        variance = 2 * self.norm * (1 - 1 / images) + self.variance / images
        sigma2 = math.log1p(variance / self.length**2)
        return math.log(self.length) - sigma2 / 2, math.sqrt(sigma2)

    def p_value(self, distance: float, images: float, content: float, others: float | None = None) -> float:
        """Probability that independent clean images are as far from those calibrated on, or from ``others``."""
        others = self.images if others is None else others
        beyond = self.length * (distance - content) / (1 / images + 1 / others)
        if beyond <= 0:
            return 1.0
        mean, deviation = self._log_normal(min(images, others))
        return float(ndtr((mean - math.log(beyond)) / deviation))

    def threshold(self, rate: float, images: float, content: float) -> float:
        """Distance that clean images exceed at this rate."""
        mean, deviation = self._log_normal(images)
        beyond = math.exp(mean - deviation * ndtri(rate))
        return content + beyond * (1 / images + 1 / self.images) / self.length

    def distance(self, rows: Array) -> float:
        """Squared length of the mean of whitened images ``[n, f]``, in units of a clean image's."""
        return float(np.square(rows.mean(axis=0)).sum()) / self.length

    def beyond_chance(self, features: Array) -> float:
        """Distance of images ``[n, features]`` without what so few clean images have on average."""
        rows = self.whitening(features)
        return max(self.distance(rows) - 1 / self.independent(rows) - 1 / self.images, 0.0)

    def entropy_test(self, rise: float, rate: float, images: float, content: float) -> tuple[float, float, float]:
        """P-value, distance and threshold of a mean entropy that rose by ``rise`` clean standard deviations."""
        assert self.entropy is not None
        (mean, std), allowed = self.entropy, math.sqrt(content)
        variance = std**2 * (1 / images + 1 / self.images)
        shape, scale = mean**2 / variance, variance / mean  # of the gamma distribution with this mean and variance
        p_value = float(gammaincc(shape, max(mean + std * (rise - allowed), 0.0) / scale))
        threshold = allowed + (scale * float(gammainccinv(shape, rate)) - mean) / std
        return p_value, max(rise, 0.0) ** 2, threshold**2

    def independent(self, rows: Array) -> float:
        """How many independent images ``rows`` count as: fewer where they are nearly the same picture."""
        count = len(rows)
        if count == 1:
            return 1.0
        variance = float(np.square(rows - rows.mean(axis=0)).sum()) / (count - 1) / self.length
        return 1 / min(1 / count + max(0.0, 1 - 2 * variance), 1.0)


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
        self.clean, self.rate, self.content = clean, rate, content
        self.rows: Array = np.zeros((0, clean.width + 1))  # whitened features, and standardised entropies
        self.times: Array = np.zeros(0)
        self.seen = 0
        self.drift = Drift()

    def state(self) -> State:
        drift = self.drift
        since = [] if drift.since is None else [drift.since, drift.since_time]
        since += [] if drift.changed is None else [drift.changed, drift.changed_time]
        values = float(drift.warning_detected), drift.distance, drift.threshold, drift.p_value
        return {
            "seen": np.array(self.seen), "rows": self.rows, "times": self.times, "drift": np.array(values),
            "since": np.array(since, dtype=np.float64),
        }  # fmt: skip

    def load_state(self, state: State) -> None:
        self.seen = int(state["seen"])
        self.rows, self.times = (state[name].astype(np.float64) for name in ("rows", "times"))
        warning, distance, threshold, p_value = state["drift"].tolist()
        dates = state["since"].tolist()
        dates[::2] = map(int, dates[::2])
        if len(dates) not in (0, 2, 4):
            raise ValueError(f"it has {len(dates)} numbers and times")
        if self.seen < len(self.rows) or not all(1 <= number <= self.seen for number in dates[::2]):
            raise ValueError("it has seen fewer images than it remembers")
        self.drift = Drift(bool(dates), warning > 0, distance, threshold, p_value, *dates)

    def update(self, features: Array, time: float | Array = math.nan, entropies: Array | None = None) -> Drift:
        """Test a batch ``[n, features]``, seen at a ``time`` (or one each), whose predictions have ``entropies``."""
        if not len(features):
            return self.drift
        rises = np.zeros(len(features))
        if entropies is not None and self.clean.entropy is not None:
            mean, std = self.clean.entropy
            rises = np.clip((entropies - mean) / std, -MAX_DEVIATION, MAX_DEVIATION)
        batch = np.column_stack([self.clean.whitening(features), rises])
        self.seen += len(batch)
        keep = WINDOWS[-1] + len(batch)  # so that a change is seen at the edge of a batch too
        self.rows = np.concatenate([self.rows, batch])[-keep:]
        self.times = np.concatenate([self.times, np.broadcast_to(time, len(batch))])[-keep:]
        sizes = [len(batch), *(size for size in WINDOWS if len(batch) < size)]
        tests = [self._test(self.rows[-size:], len(sizes)) for size in sizes if size <= len(self.rows)]
        p_value, distance, threshold = min(tests)
        before, detected = self.drift, p_value < self.rate
        dates = before.since, before.since_time, before.changed, before.changed_time
        if before.first is not None:
            detected = not (over := self._over(self._drifted))
            if over:  # forget the drift's images
                self.rows, self.times = self.rows[-over:], self.times[-over:]
        elif detected:
            dates = (*self._date(1 + int(_gains(self.rows).argmax())), None, None)
        warning = detected or p_value < math.sqrt(self.rate)
        self.drift = Drift(detected, warning, distance, threshold, p_value, *(dates if detected else ()))
        return self.change(self.rate, self.content) if before.drift_detected else self.drift

    def change(self, rate: float, content: float = 0.0) -> Drift:
        """Date a change from one drift to another, where the latest images are drift too and their mean differs.

        The split is that of the largest likelihood of two means; the rate is shared by all possible ones.
        """
        rows = self._drifted
        count, after = len(rows), np.arange(1, len(rows))  # images in all, and after each split
        length = 1 + int((_gains(rows - rows.mean(axis=0))[:-1] * count / (count - after)).argmax()) if count > 1 else 0
        if self.drift.drift_detected and PART <= length <= count - PART:
            old, new = rows[:-length], rows[-length:]
            distance = self.clean.distance((new.mean(axis=0) - old.mean(axis=0))[None, :-1])
            independent = self.clean.independent(new[:, :-1]), content, self.clean.independent(old[:, :-1])
            if count * self.clean.p_value(distance, *independent) < rate and self._test(new, 1)[0] < self.rate:
                number, time = self._date(length)
                self.drift = replace(self.drift, changed=number, changed_time=time)
        return self.drift

    @property
    def _drifted(self) -> Array:
        return self.rows[-(self.seen - (self.drift.first or 1) + 1) :]

    def _over(self, rows: Array) -> int:
        """How many images look clean again after those of a drift ``rows``; 0 if it is not over.

        By the likelihood of a return to the clean mean (0) with one of the latest images, over staying at the drift's.
        """
        drifted = rows[: max(RECENT, len(rows) - RECENT)].mean(axis=0)
        length = 1 + int(np.cumsum((drifted @ drifted - 2 * rows @ drifted)[::-1]).argmax())
        ended = length >= RECENT and self._test(rows[-length:], 1)[0] >= math.sqrt(self.rate)
        return length if ended else 0

    def _test(self, rows: Array, shares: int) -> tuple[float, float, float]:
        """P-value, distance and threshold of some images, by one of ``shares`` tests that share the rate."""
        features, rise, clean, content = rows[:, :-1], float(rows[:, -1].mean()), self.clean, self.content
        distance, images = clean.distance(features), clean.independent(features)
        shares *= 1 if clean.entropy is None else 2
        rate, tests = self.rate / shares, list[tuple[float, float, float]]()
        tests.append((clean.p_value(distance, images, content), distance, clean.threshold(rate, images, content)))
        if clean.entropy is not None:
            tests.append(clean.entropy_test(rise, rate, images, content))
        p_value, distance, threshold = min(tests)
        return min(1.0, shares * p_value), distance, threshold

    def _date(self, length: int) -> tuple[int, float | None]:
        time = float(self.times[-length])
        return self.seen - length + 1, None if math.isnan(time) else time


def _gains(rows: Array) -> Array:
    """How much the mean of the latest 1, 2, ... images explains: the log-likelihood of a change before them."""
    sums = np.cumsum(rows[::-1], axis=0)
    return np.asarray(np.square(sums).sum(axis=1) / np.arange(1, len(sums) + 1))
