"""Which earlier images say something about this one: those that look as if they came from the same domain.

Nobody tells a deployed model when its domain changes, whether a batch mixes domains, or that last week's fog is back.
Each image gets a *key*: an estimate of the look of its domain, with an uncertainty. Earlier images count according to
how well their keys agree. A new domain thus starts with a clean slate, an old one finds its memories again, and in a
mixed batch every image has neighbours of its own.

The key is an empirical Bayes estimate. Looks z are standardised by their spread over clean images, so an image differs
from its domain's centre by a variance of about 1 (its content), in every batch of every model. If a batch's looks vary
by 1 + t, domains in it vary by t, and the best guess at the centre of image i's domain is

    batch mean + t / (1 + t) * (z_i - batch mean),        known to a variance of t / (1 + t) + 1 / n

A batch of one domain has t = 0: its images share one sharp key. In a batch of many, keys go their own ways.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Stored = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Keys:
    """Looks of the domains of n images and their variances, ``[n, features]`` each, and the looks themselves."""

    centre: Array
    variance: Array
    look: Array

    def part(self, images: slice) -> Keys:
        """Keys of some of the images."""
        return Keys(self.centre[images], self.variance[images], self.look[images])

    def distinct(self) -> Keys:
        """One row if all images share one key, else all of them."""
        return self.part(slice(0, 1)) if np.ptp(self.centre, axis=0).max() == 0 else self


@dataclass(frozen=True)
class Rule:
    """How much earlier images count."""

    context: int = 16
    """Smaller batches are judged together with the images before them, this many in all."""
    dimensions: float = 4.0
    """Independent directions among the features of a look, which are many but go together."""
    half_life: float = 64.0
    """An image counts half after this many newer ones of the same domain."""
    room: int = 512
    """Images remembered."""

    def keys(self, looks: Array, before: Array) -> Keys:
        """Estimate the keys of a batch of standardised looks ``[B, f]``; ``before`` are those of earlier images."""
        missing = max(0, self.context - len(looks))
        joined = np.concatenate([before[len(before) - missing :], looks]) if missing and len(before) else looks
        count = len(joined)
        if count == 1:  # nothing is known of the domain but this image
            return Keys(looks, np.ones_like(looks), looks)
        mean = joined.mean(axis=0)
        # The variance of few images is itself uncertain: what lies within two standard errors of 1 counts as 1.
        excess = joined.var(axis=0, ddof=1) - 1 - 2 * np.sqrt(2 / (count - 1))
        between = np.maximum(excess, 0)
        share = between / (1 + between)
        centre = mean + share * (looks - mean)
        variance = np.maximum(share + (1 - share) ** 2 * (1 + between) / count, 1 / count)
        return Keys(centre, np.broadcast_to(variance, looks.shape), looks)

    def informed(self, keys: Keys, recalled: Recalled) -> Keys:
        """Sharpen keys by the looks of the earlier images that count for them, each an observation of variance 1."""
        evidence = recalled.worth[:, None]
        variance = 1 / (1 / keys.variance + evidence)
        return Keys(variance * (keys.centre / keys.variance + evidence * recalled.look), variance, keys.look)

    def weights(self, keys: Keys, remembered: Keys) -> Array:
        """Say how much each remembered image counts for each of ``keys``: ``[n, remembered]``, 1 at most."""
        difference = keys.centre[:, None] - remembered.centre[None]
        # Of one domain, this is 1 on average, whatever the sizes of the batches that the keys were made from.
        distance = (difference**2 / (keys.variance[:, None] + remembered.variance[None])).mean(axis=2)
        alike = np.exp(-self.dimensions / 2 * np.maximum(distance - 1, 0))
        newer = alike.sum(axis=1, keepdims=True) - np.cumsum(alike, axis=1)
        weights: Array = alike * 0.5 ** (newer / self.half_life)
        return weights


@dataclass(frozen=True)
class Recalled:
    """What earlier images say: averages over them, one row for each key or one for all."""

    values: Array
    """``[n or 1, width]``."""
    look: Array
    """``[n or 1, features]``."""
    worth: Array
    """How many images the averages are worth, ``[n or 1]``."""


class Memory:
    """The most recent images: their keys, and what is to be recalled of them (one vector each, in float32)."""

    def __init__(self, features: int, width: int, rule: Rule) -> None:
        """Begin empty. ``features`` is the size of a look, ``width`` that of what is recalled."""
        self.rule = rule
        empty = np.zeros((0, features))
        self.keys = Keys(empty, empty, empty)
        self.values: Stored = np.zeros((0, width), dtype=np.float32)

    def __len__(self) -> int:
        """Images remembered."""
        return len(self.values)

    def recall(self, keys: Keys) -> Recalled:
        """Average over the images that count for each key.

        Images that agree on the weights share one row: a batch of one domain is moved as one.
        """
        weights = self.rule.weights(keys.distinct(), self.keys)
        total = weights.sum(axis=1)
        # Kish's effective sample size; total caps it, so that distant images do not count for many.
        size = total**2 / np.maximum((weights**2).sum(axis=1), 1e-300)
        worth: Array = np.minimum(size, total)
        shares = weights / np.maximum(total, 1e-300)[:, None]
        values = (shares.astype(np.float32) @ self.values).astype(np.float64)
        return Recalled(values, shares @ self.keys.look, worth)

    def add(self, keys: Keys, values: Array) -> None:
        """Remember images, forgetting the oldest. Arrays are replaced, never written into: a copy is a reference."""
        room = self.rule.room
        self.keys = Keys(
            *(
                np.concatenate([old, new])[-room:]
                for old, new in (
                    (self.keys.centre, keys.centre),
                    (self.keys.variance, keys.variance),
                    (self.keys.look, keys.look),
                )
            )
        )
        self.values = np.concatenate([self.values, values.astype(np.float32)])[-room:]
