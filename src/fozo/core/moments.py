"""Mean and variance, gathered in one pass over batches of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.state import State, ragged
from fozo.types import Array, Floats

TINY = 1e-12  # keeps the logarithm of a variance finite where a feature is constant over an image


def log_variance(variance: npt.ArrayLike) -> Array:
    """Logarithm of a variance, always finite. Unlike variances, these may be averaged and subtracted."""
    return np.log(np.asarray(variance, dtype=np.float64) + TINY)


def shrinkage(error: npt.ArrayLike, deviation: npt.ArrayLike) -> Array:
    """The part of a squared deviation that its expected squared error does not explain (James and Stein, 1961)."""
    return np.maximum(1 - np.asarray(error) / np.maximum(deviation, 1e-30), 0)


@dataclass(frozen=True)
class Moments(State):
    """Count, mean and sum of squared deviations of a sample: mergeable without loss (Chan et al., 1983).

    Unlike running sums of x and x^2 this never subtracts two large, nearly equal numbers.
    """

    count: int
    mean: Array
    squares: Array  # sum over the sample of (x - mean)^2

    def __post_init__(self) -> None:
        """Refuse what no sample has."""
        if self.mean.shape != self.squares.shape or self.squares.min(initial=0) < 0 or self.count < 1:
            raise ValueError("its moments are of no sample")

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Moments:
        """Moments of a batch ``[B, ...]`` over its first axis."""
        x = np.asarray(values, dtype=np.float64)
        mean = x.mean(axis=0)
        return cls(len(x), mean, ((x - mean) ** 2).sum(axis=0))

    def merge(self, other: Moments) -> Moments:
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
class Window(State):
    """The feature rows of the most recent images, for a batch of one, which has no standard deviation.

    The statistics of a single image are taken together with those of the images just before it, as they were under the
    prompts that won there.
    """

    rows: Array = ragged("images")

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> Window:
        return cls(np.empty((0, *shape)))

    def moments(self, features: Floats, size: int) -> Moments:
        """Moments of a batch ``[B, ...]``; a single image is joined by those before it, ``size`` in all at most."""
        if len(features) > 1:
            return Moments.of(features)
        recent = self.rows[max(0, len(self.rows) + 1 - size) :]
        return Moments.of(np.concatenate([recent, np.asarray(features, dtype=np.float64)]))

    def push(self, features: Floats, size: int) -> Window:
        """Remember a batch's rows, forgetting the oldest."""
        joined = np.concatenate([self.rows, features], dtype=np.float64)
        return Window(joined[-size:].copy())


@dataclass(frozen=True)
class MovingAverage(State):
    """An exponential moving average of arrays; the first array is the first average."""

    average: Array
    count: int = 0  # arrays seen

    @classmethod
    def empty(cls, shape: tuple[int, ...]) -> MovingAverage:
        return cls(np.zeros(shape))

    def update(self, new: Array, decay: float) -> MovingAverage:
        """Take in an array; the past has the weight ``decay``."""
        average = decay * self.average + (1 - decay) * new if self.count else new
        return MovingAverage(average, self.count + 1)


@dataclass(frozen=True)
class TokenMoments:
    """Mean and scatter of the tokens of all images; mergeable without loss (Chan et al., 1983)."""

    count: int
    mean: Array  # [d]
    scatter: Array  # [d, d]: sum over the tokens of (x - mean)(x - mean)'

    def merge(self, other: TokenMoments) -> TokenMoments:
        count = self.count + other.count
        delta = other.mean - self.mean
        between = np.outer(delta, delta) * (self.count * other.count / count)
        return TokenMoments(count, self.mean + delta * (other.count / count), self.scatter + other.scatter + between)

    @property
    def covariance(self) -> Array:
        """Unbiased covariance ``[d, d]``; it needs at least two tokens."""
        if self.count < 2:
            raise FozoError(f"a covariance needs at least two tokens, not {self.count}")
        return self.scatter / (self.count - 1)
