"""Differences between two runs over the same batches, with intervals: what the tables of finished runs share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fozo.bench.gains import BASE, by_batch
from fozo.bench.measures import BatchRecord, Interval

__all__ = ["BASE", "difference", "over_seeds", "paired"]


def paired(ours: Sequence[BatchRecord], theirs: Sequence[BatchRecord], seed: int = 0) -> tuple[float, Interval | None]:
    """Difference of two runs' averages over the same batches, in points, and its interval.

    For records that keep counts and not single images; :func:`fozo.bench.gains.by_batch` says how.
    """
    gain = by_batch(ours, theirs, seed).mean
    return gain.value, gain.within


def over_seeds(seeds: Sequence[tuple[Sequence[BatchRecord], Sequence[BatchRecord]]]) -> tuple[float, Interval | None]:
    """Mean of the paired differences of several seeds.

    Seeds change the order of the images, not the images. So the interval is not narrowed by their number: its ends are
    the means of the seeds' own.
    """
    found = [paired(ours, theirs) for ours, theirs in seeds]
    within = [each for _, each in found if each is not None]
    ends = [float(np.mean([getattr(each, end) for each in within])) for end in ("low", "high") if within]
    return float(np.mean([gain for gain, _ in found])), Interval(*ends) if ends else None


def difference(gain: float, within: Interval | None) -> str:
    """Write a gain over the plain model, with its interval; bold where the interval leaves zero out."""
    if within is None:
        return f"{gain:+.2f}"
    text = f"{gain:+.2f} ({within.low:+.2f} to {within.high:+.2f})"
    return f"**{text}**" if within.low > 0 or within.high < 0 else text
