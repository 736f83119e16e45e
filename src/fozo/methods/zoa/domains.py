"""What ZOA knows of domains: noticing that one has changed, and a bank of what was learned on earlier ones."""

from __future__ import annotations

import numpy as np
from scipy.special import softmax

from fozo.errors import FozoError
from fozo.types import Array, State


class DomainWatch:
    """Follows the mean and variance of a stream's features and says when they jump."""

    def __init__(self, threshold: float, ema_decay: float) -> None:
        """``threshold`` is the distance that makes a new domain, ``ema_decay`` the past's weight in the average."""
        self.threshold = threshold
        self.ema_decay = ema_decay
        self.average: Array | None = None  # ``[2, d]``: mean and variance

    def observe(self, mean: Array, variance: Array) -> bool:
        """Take in a batch's statistics ``[d]``; return whether they are a new domain's, and follow that one then."""
        new: Array = np.stack([mean, variance])
        changed = self.average is not None and self.distance(mean, variance) > self.threshold
        if self.average is None or changed:
            self.average = new
        else:
            self.average = self.ema_decay * self.average + (1 - self.ema_decay) * new
        return changed

    def distance(self, mean: Array, variance: Array) -> float:
        """Half the sum of the two Kullback-Leibler divergences between gaussians, averaged over the features."""
        assert self.average is not None
        past_mean, past_variance = self.average
        squares = (mean - past_mean) ** 2
        ratios = (variance + squares) / (past_variance + 1e-8) + (past_variance + squares) / (variance + 1e-8)
        return float((ratios / 2 - 1).mean())


class KnowledgeBank:
    """Parameter offsets D_i learned on earlier domains, mixed by a softmax; D_0 = 0 is the source.

    ``parts`` is how many equally long vectors an offset consists of; similarity is the mean cosine over them.
    """

    def __init__(
        self, size: int, parts: int, *, capacity: int, inverse_temperature: float, stale_table: bool = False
    ) -> None:
        """Start with the source alone. ``stale_table`` repeats a slip of the authors' program, see :meth:`_drop`."""
        if capacity < 2:
            raise FozoError(f"zoa: capacity must be at least 2 domains, not {capacity}")
        self.parts, self.capacity, self.inverse_temperature = parts, capacity, inverse_temperature
        self.stale_table = stale_table
        self.offsets: Array = np.zeros((1, size))
        self.similarity: Array = np.zeros((capacity, capacity))  # Of D_i+1 and D_j+1, where i < j

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def mixed(self, mixture: Array) -> Array:
        offset: Array = softmax(self.inverse_temperature * mixture) @ self.offsets
        return offset

    def store(self, offset: Array, mixture: Array) -> Array:
        """Remember a domain, and return the mixture with it: it gets as large a share as the largest."""
        if len(self) == self.capacity:
            mixture = np.delete(mixture, self._drop())
        last = len(self)
        self.similarity = self.similarity.copy()
        self.similarity[:last, last] = [self._cosine(old, offset) for old in self.offsets[1:]]
        self.offsets = np.concatenate([self.offsets, offset[None]])
        return np.append(mixture, mixture.max())

    def _cosine(self, one: Array, other: Array) -> float:
        a, b = one.reshape(self.parts, -1), other.reshape(self.parts, -1)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return float(((a * b).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())

    def _drop(self) -> int:
        """Forget the older of the two most similar, and return its index among the offsets.

        The authors' table keeps its places when an entry leaves, so that its rows soon speak of other entries, and
        a pair counts as similar with 0 where there is no pair.
        """
        pairs = np.triu(np.ones_like(self.similarity), 1) > 0
        table = self.similarity if self.stale_table else np.where(pairs, self.similarity, -np.inf)
        out = int(np.unravel_index(table.argmax(), table.shape)[0])
        self.offsets = np.delete(self.offsets, out + 1, axis=0)
        if not self.stale_table:
            kept = np.delete(np.delete(self.similarity, out, axis=0), out, axis=1)
            self.similarity = np.pad(kept, ((0, 1), (0, 1)))
        return out + 1

    def state(self) -> State:
        return {"offsets": self.offsets, "similarity": self.similarity}

    def load_state(self, state: State) -> None:
        if len(state["offsets"]) > self.capacity + 1:
            raise FozoError(f"the state remembers {len(state['offsets']) - 1} domains, but capacity is {self.capacity}")
        self.offsets, self.similarity = (np.array(state[name], np.float64) for name in ("offsets", "similarity"))
