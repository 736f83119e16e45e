"""Mean and variance, gathered in one pass over batches of any size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.types import Array, Floats, State

TINY = 1e-12  # keeps the logarithm of a variance finite where a feature is constant over an image


def log_variance(variance: npt.ArrayLike) -> Array:
    """Logarithm of a variance, always finite. Unlike variances, these may be averaged and subtracted."""
    return np.log(np.asarray(variance, dtype=np.float64) + TINY)


def shrinkage(error: npt.ArrayLike, deviation: npt.ArrayLike) -> Array:
    """The part of a squared deviation that its expected squared error does not explain (James and Stein, 1961)."""
    return np.maximum(1 - np.asarray(error) / np.maximum(deviation, 1e-30), 0)


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a sample: mergeable without loss (Chan et al., 1983).

    Unlike running sums of x and x^2 this never subtracts two large, nearly equal numbers.
    """

    count: int
    mean: Array
    squares: Array  # sum over the sample of (x - mean)^2

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


class Window:
    """The most recent feature rows, for batches too small to have a standard deviation.

    A single image has no standard deviation. Its statistics are taken together with those of the images just
    before it, as they were under the prompts that won there.
    """

    def __init__(self, size: int, shape: tuple[int, ...]) -> None:
        if size < 2:
            raise FozoError(f"a window needs room for at least two images, not {size}")
        self.size = size
        self.rows: Array = np.empty((0, *shape))

    def moments(self, features: Floats) -> Moments:
        """Moments of ``features`` ``[B, ...]`` joined by the most recent rows, ``size`` images in all at most."""
        current = np.asarray(features, dtype=np.float64)
        forgotten = max(0, len(self.rows) + len(current) - self.size)
        return Moments.of(np.concatenate([self.rows[forgotten:], current]))

    def push(self, features: Floats) -> None:
        """Remember a batch's rows, forgetting the oldest."""
        self.rows = np.concatenate([self.rows, features], dtype=np.float64)[-self.size :].copy()

    def state(self) -> State:
        return {"window": self.rows}

    def load_state(self, state: State) -> None:
        if len(state["window"]) > self.size:
            what = f"the state's window is of {len(state['window'])} images, but {self.size} are the most"
            raise FozoError(f"{what}; save it again")
        self.rows = state["window"].astype(np.float64)


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
