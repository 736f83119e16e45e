"""Differences between two runs over the same batches, with intervals: what the tables of finished runs share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fozo.bench.gains import BASE, Gain, by_batch
from fozo.bench.measures import BatchRecord, Interval

__all__ = ["BASE", "difference", "over_seeds"]


def over_seeds(seeds: Sequence[tuple[Sequence[BatchRecord], Sequence[BatchRecord]]]) -> Gain:
    """Mean over several seeds of the difference of two runs' averages, paired by batch.

    Seeds change the order of the images, not the images. So the interval is not narrowed by their number: its ends are
    the means of the seeds' own.
    """
    found = [by_batch(ours, theirs).mean for ours, theirs in seeds]
    within = [gain.within for gain in found if gain.within is not None]
    ends = [float(np.mean([getattr(each, end) for each in within])) for end in ("low", "high") if within]
    return Gain(float(np.mean([gain.value for gain in found])), Interval(*ends) if ends else None)


def difference(gain: Gain) -> str:
    """Write a gain over the plain model, with its interval; bold where the interval excludes zero."""
    within = gain.within
    text = f"{gain.value:+.2f}" + (f" ({within.low:+.2f} to {within.high:+.2f})" if within is not None else "")
    return f"**{text}**" if gain.side else text
