"""Differences between two runs over the same batches, with intervals: what the tables of finished runs share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fozo.bench.measures import RESAMPLES, BatchRecord, Interval, interval
from fozo.errors import FozoError

BASE = "NoAdapt"


def paired(ours: Sequence[BatchRecord], theirs: Sequence[BatchRecord], seed: int = 0) -> tuple[float, Interval | None]:
    """Difference of two runs' averages over the same batches, in points, and its interval.

    For records that keep counts and not single images, so pairs are of batches: what is hard for one run is hard for
    the other, and leaves the difference. From each domain's n batches n - 1 are drawn with replacement, which gives the
    variance without bias even where n is 2 (Rao and Wu, 1988); a domain with a single batch has no interval.
    """
    if [(r.domain, r.images) for r in ours] != [(r.domain, r.images) for r in theirs]:
        raise FozoError("only runs over the same batches can be paired; run both with the same seed and batch size")
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 1], dtype=np.uint64)))
    means, drawn = [], []
    for name in dict.fromkeys(record.domain for record in ours):
        pairs = [(a.correct - b.correct, a.images) for a, b in zip(ours, theirs, strict=True) if a.domain == name]
        gain, images = np.array(pairs, dtype=np.float64).T
        means.append(100 * gain.sum() / images.sum())
        if len(pairs) > 1:
            times = generator.multinomial(len(pairs) - 1, np.full(len(pairs), 1 / len(pairs)), RESAMPLES)
            drawn.append(100 * (times @ gain) / (times @ images))
    complete = len(drawn) == len(means)
    return float(np.mean(means)), interval(np.mean(drawn, axis=0)) if complete else None


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
