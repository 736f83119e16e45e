"""The shadow: now and then the plain model predicts too, so that it is known whether adaptation helps.

At a chosen rate, images are run through the plain model as well. Where both name the same class, both are right or
both are wrong, however sure they are: only pairs that differ can gain or lose anything. Of these the probability of
being right is expected for both predictions (:mod:`fozo.monitor.accuracy`); adaptation *hurts* where the plain model's
is higher by more than two standard errors, which are those of the pairs and of the regressions, as far as these do not
err alike.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.monitor.accuracy import prediction_features
from fozo.monitor.regression import Regression
from fozo.monitor.signatures import Coordinates
from fozo.types import Array, Floats

PAIRS = 128
"""Most recent pairs that are compared."""
FEWEST = 16
"""Pairs before anything is said."""


@dataclass(frozen=True)
class Comparison:
    """What the most recent pairs say."""

    pairs: int
    agreement: float
    """Part of the predictions that are the same."""
    entropy_plain: float
    entropy_adapted: float
    gain: float | None = None
    """Expected accuracy of the adapted model less that of the plain one, where accuracy can be expected."""
    error: float | None = None
    """Its standard error, but for what both predictions share."""

    @property
    def hurts(self) -> bool:
        """Whether the evidence says that adaptation makes predictions worse."""
        return self.gain is not None and self.error is not None and self.gain < -2 * self.error

    @property
    def may_hurt(self) -> bool:
        """Whether it still looks like it: a guard that fell back stays there for so long, lest it flutter."""
        return self.gain is not None and self.error is not None and self.gain < -self.error


class Shadow:
    """Chooses images for the shadow, and keeps what both models said of them."""

    def __init__(self, rate: float) -> None:
        self.rate, self._due = rate, 0.0
        self._pairs: deque[tuple[Array, Array, bool]] = deque(maxlen=PAIRS)

    def choose(self, count: int) -> npt.NDArray[np.int64]:
        """Say which of the next ``count`` images are run through the plain model too: evenly, without chance."""
        places = np.floor(self._due + self.rate * np.arange(count + 1))
        self._due = (self._due + self.rate * count) % 1.0
        return np.flatnonzero(np.diff(places) > 0)

    def add(self, plain: Floats, adapted: Floats) -> None:
        """Keep pairs of logits ``[n, classes]``."""
        same = plain.argmax(axis=1) == adapted.argmax(axis=1)
        rows = zip(prediction_features(plain), prediction_features(adapted), same, strict=True)
        self._pairs.extend((p, a, bool(s)) for p, a, s in rows)

    def state(self) -> tuple[float, Array]:
        """What is to be kept: how much of the next image is due, and the pairs as rows ``[n, 7]``."""
        rows = [np.concatenate([p, a, [same]]) for p, a, same in self._pairs]
        return self._due, np.array(rows).reshape(-1, 7)

    def load_state(self, due: float, rows: Array) -> None:
        """Go on from what :meth:`memory` gave."""
        self._due = due
        self._pairs.clear()
        self._pairs.extend((row[:3], row[3:6], bool(row[6])) for row in rows)

    def forget(self) -> None:
        """Drop the pairs: they are of another domain."""
        self._pairs.clear()

    def compare(
        self, place: Coordinates | None, plain: Regression | None, adapted: Regression | None
    ) -> Comparison | None:
        """Say what the pairs show; ``place`` is that of the recent images among the signatures."""
        if len(self._pairs) < FEWEST:
            return None
        p, a = (np.array([pair[i] for pair in self._pairs]) for i in (0, 1))
        agreement = float(np.mean([same for _, _, same in self._pairs]))
        gain = error = None
        if place is not None and plain is not None and adapted is not None:
            same = np.array([pair[2] for pair in self._pairs])
            difference = np.where(same, 0.0, adapted.probabilities(a, place) - plain.probabilities(p, place))
            gain = float(difference.mean())
            # Both are of the same images. What their scores err alike does not change which one is likelier.
            unlike = np.sqrt(max(1 - plain.likeness(adapted), 0.0))
            systematic = unlike * np.hypot(plain.mean(p, place)[1], adapted.mean(a, place)[1]) * (1 - agreement)
            error = float(np.hypot(difference.std() / np.sqrt(len(difference)), systematic))
        return Comparison(len(p), agreement, float(p[:, 2].mean()), float(a[:, 2].mean()), gain, error)
