"""What ZOA knows of domains: noticing that one has changed, and a bank of what was learned on earlier ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError

Array = npt.NDArray[np.float64]


class DomainWatch:
    """Follows the mean and variance of a stream's features and says when they jump."""

    def __init__(self, threshold: float, memory: float) -> None:
        """``threshold`` is the distance that makes a new domain, ``memory`` the weight of the past in the average."""
        self.threshold = threshold
        self.memory = memory
        self.average: Array | None = None
        """``[2, d]``: mean and variance."""

    def observe(self, mean: Array, variance: Array) -> bool:
        """Take in a batch's statistics ``[d]``; return whether they are a new domain's, and follow that one then."""
        new: Array = np.stack([mean, variance])
        changed = self.average is not None and self.distance(mean, variance) > self.threshold
        if self.average is None or changed:
            self.average = new
        else:
            self.average = self.memory * self.average + (1 - self.memory) * new
        return changed

    def distance(self, mean: Array, variance: Array) -> float:
        """Half the sum of the two Kullback-Leibler divergences between gaussians, averaged over the features."""
        assert self.average is not None
        past_mean, past_variance = self.average
        squares = (mean - past_mean) ** 2
        ratios = (variance + squares) / (past_variance + 1e-8) + (past_variance + squares) / (variance + 1e-8)
        return float((ratios / 2 - 1).mean())


class KnowledgeBank:
    """Parameter offsets D_i learned on earlier domains, mixed by softmax(sharpness * a); D_0 = 0 is the source.

    ``parts`` is how many equally long vectors an offset consists of; likeness is the mean cosine over them.
    """

    def __init__(self, size: int, parts: int, *, room: int, sharpness: float, stale_table: bool = False) -> None:
        """Start with the source alone. ``stale_table`` repeats a slip of the authors' program, see :meth:`_drop`."""
        if room < 2:
            raise FozoError(f"the bank needs room for at least 2 domains, not {room}")
        self.parts, self.room, self.sharpness, self.stale_table = parts, room, sharpness, stale_table
        self.offsets: Array = np.zeros((1, size))
        self.mixture: Array = np.zeros(1)
        self.likeness: Array = np.zeros((room, room))
        """Of D_i+1 and D_j+1, where i < j."""

    def __len__(self) -> int:
        """How many domains are remembered, the source not counted."""
        return len(self.offsets) - 1

    def mixed(self, mixture: Array) -> Array:
        """The offsets mixed by ``mixture``."""
        shares = np.exp(self.sharpness * (mixture - mixture.max()))
        offset: Array = shares @ self.offsets / shares.sum()
        return offset

    def store(self, offset: Array) -> None:
        """Remember a domain, with as large a share as the largest."""
        if len(self) == self.room:
            self._drop()
        last = len(self)
        self.likeness[:last, last] = [self._alike(old, offset) for old in self.offsets[1:]]
        self.offsets = np.concatenate([self.offsets, offset[None]])
        self.mixture = np.append(self.mixture, self.mixture.max())

    def _alike(self, one: Array, other: Array) -> float:
        a, b = one.reshape(self.parts, -1), other.reshape(self.parts, -1)
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        return float(((a * b).sum(axis=1) / np.maximum(lengths, 1e-12)).mean())

    def _drop(self) -> None:
        """Forget the older of the two most alike.

        The authors' table keeps its places when an entry leaves, so that its rows soon speak of other entries, and
        a pair counts as alike with 0 where there is no pair.
        """
        pairs = np.triu(np.ones_like(self.likeness), 1) > 0
        table = self.likeness if self.stale_table else np.where(pairs, self.likeness, -np.inf)
        out = int(np.unravel_index(table.argmax(), table.shape)[0])
        self.offsets = np.delete(self.offsets, out + 1, axis=0)
        self.mixture = np.delete(self.mixture, out + 1)
        if not self.stale_table:
            kept = np.delete(np.delete(self.likeness, out, axis=0), out, axis=1)
            self.likeness = np.pad(kept, ((0, 1), (0, 1)))

    def state(self) -> dict[str, Array]:
        """Return everything that changes, as named arrays."""
        return {"bank": self.offsets.copy(), "mixture": self.mixture.copy(), "likeness": self.likeness.copy()}

    def restore(self, state: dict[str, Array]) -> None:
        """Continue from what :meth:`state` returned."""
        offsets, mixture, likeness = state["bank"], state["mixture"], state["likeness"]
        fits = offsets.shape == (len(mixture), self.offsets.shape[1]) and likeness.shape == self.likeness.shape
        if not fits:
            raise FozoError(f"the state's bank has shape {list(offsets.shape)} and does not fit; save the state again")
        self.offsets, self.mixture, self.likeness = offsets.copy(), mixture.copy(), likeness.copy()
