"""Differences of runs over the same images, with intervals: what adaptation gained over doing nothing.

What is hard for one method is hard for the other and cancels: paired differences have far smaller variance than the
accuracies.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from fozo.bench.measures import RESAMPLES, BatchRecord, Interval, interval
from fozo.bench.store import Group, Run
from fozo.types import Array

BASE = "NoAdapt"  # the row that others are compared with, where a recipe has it
FEWEST = 20  # images without which there is no interval


def signed(points: float) -> str:
    """Write a difference; what rounds to nothing has no sign."""
    text = f"{points:+.1f}"
    return "0.0" if text in ("+0.0", "-0.0") else text


@dataclass(frozen=True)
class Gain:
    """A difference in points, and its 95 % interval where it has one."""

    value: float
    within: Interval | None

    @property
    def side(self) -> int:
        """1 or -1 where it is significant (its 95 % interval excludes zero), else 0."""
        if self.within is None:
            return 0
        return 1 if self.within.low > 0 else -1 if self.within.high < 0 else 0

    def __str__(self) -> str:
        ends = "" if self.within is None else f" ({signed(self.within.low)} to {signed(self.within.high)})"
        return signed(self.value) + ends


@dataclass(frozen=True)
class Gains:
    """Differences part by part (mostly domains), as resampled."""

    values: Mapping[str, float]
    draws: Mapping[str, Array | None]  # ``[RESAMPLES]`` of each; ``None`` where there is too little to draw from

    def of(self, part: str) -> Gain:
        draws = self.draws[part]
        return Gain(self.values[part], None if draws is None else interval(draws))

    @property
    def mean(self) -> Gain:
        drawn = [draws for draws in self.draws.values() if draws is not None]
        within = interval(np.asarray(np.mean(drawn, axis=0))) if len(drawn) == len(self.values) else None
        return Gain(float(np.mean(list(self.values.values()))), within)


Gained: TypeAlias = Mapping[str, Mapping[str, Gains]]  # by column of a table, then by label of a row


def gains(ours: Sequence[Run], base: Sequence[Run]) -> Gains | None:
    """Compare two rows over the same images; ``None`` where they cannot be paired.

    Images are drawn again, each with all its domains, and so are seeds where there are several.
    """
    mine, theirs = ([run.records() for run in runs] for runs in (ours, base))
    named = all(len(record.right) == record.correct for records in (*mine, *theirs) for record in records)
    if not mine or not theirs or not named or _sizes(mine[0]) != _sizes(theirs[0]):
        return None
    return by_image(mine, theirs)


def _sizes(records: Sequence[BatchRecord]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for record in records:
        found[record.domain] += record.images
    return dict(found)


@lru_cache(maxsize=2)
def _times(images: int, seed: int) -> Array:
    """How often each of the images is drawn, ``[RESAMPLES, images]``: the same draws for all rows of a table."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 2], dtype=np.uint64)))
    return generator.multinomial(images, np.full(images, 1 / images), RESAMPLES).astype(np.float32)


def by_image(ours: Sequence[Sequence[BatchRecord]], theirs: Sequence[Sequence[BatchRecord]], seed: int = 0) -> Gains:
    """Pair two rows image by image; each is a list of seeds' records, whose orders need not be the same."""
    sizes = _sizes(ours[0])
    row_of = {i: row for row, i in enumerate(sorted({i for run in (*ours, *theirs) for r in run for i in r.right}))}
    count = max(len(row_of), *sizes.values())  # images never recognised are not named, but may be drawn

    def recognised(records: Sequence[BatchRecord]) -> Array:
        """How often each image was recognised in each domain, ``[images, domains]``."""
        rows = ([row_of[i] for record in records if record.domain == name for i in record.right] for name in sizes)
        return np.stack([np.bincount(each, minlength=count).astype(np.float64) for each in rows], axis=1)

    scale = 100 / np.array(list(sizes.values()))
    base = np.mean([recognised(records) for records in theirs], axis=0)
    each = [(recognised(records) - base) * scale for records in ours]
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 3], dtype=np.uint64)))
    seeds = generator.multinomial(len(each), np.full(len(each), 1 / len(each)), RESAMPLES) / len(each)
    times = _times(count, seed)
    drawn = np.add.reduce([seeds[:, [s]] * (times @ one) for s, one in enumerate(each)])
    means = np.mean(each, axis=0).sum(axis=0)
    draws = {name: drawn[:, i] if count >= FEWEST else None for i, name in enumerate(sizes)}
    return Gains(dict(zip(sizes, means.tolist(), strict=True)), draws)


def over_base(group: Group, base: str = BASE) -> Gained:
    found: dict[str, dict[str, Gains]] = {}
    for column in group.columns:
        against = group.of(base, column)
        for label in group.labels if against else ():
            if label != base and (one := gains(group.of(label, column), against)) is not None:
                found.setdefault(column, {})[label] = one
    return found
