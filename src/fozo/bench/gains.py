"""What adaptation gained over doing nothing: differences over the same images, with intervals; and under deadlines.

What is hard for one method is hard for the other and cancels: paired differences have far smaller variance than the
accuracies. Utility under deadlines has the three measures of Tempora (ICML 2026, arXiv:2602.06136). Accuracies there
are those of recorded batches: one that is served although others were dropped counts as in a run that saw them all.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean, pstdev
from typing import NamedTuple, TypeAlias

import numpy as np

from fozo.bench.measures import RESAMPLES, BatchRecord, Interval, interval
from fozo.bench.store import Group, Run
from fozo.types import Array

BASE = "NoAdapt"  # the row that others are compared with, where a recipe has it
FEWEST = 20  # images without which there is no interval
LATENCY, ADAPTING, FROZEN = "latency", "adapting", "frozen"
"""Columns of the recipe ``tempora``: times of few batches, and accuracies of all, the last with an early freeze."""
TOLERANCE = 2.0  # T: a wait this long halves what an answer is worth
BUDGET = 0.5  # B: how long a method may adapt in a domain, before it is frozen


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


class Latency(NamedTuple):
    """What a batch takes, in units of the reference latency: mean + 6 standard deviations of the plain model's time.

    ``prediction`` is what a batch takes when the method is frozen, ``adaptation`` what a step takes beyond that; so a
    method whose answer needs the whole step predicts slowly and adapts in no time.
    """

    prediction: float
    adaptation: float


def latencies(runs: Mapping[str, Run]) -> dict[str, Latency]:
    """Read the times of runs that are frozen after some batches, NoAdapt among them; the first of all warms up."""
    seconds = {label: [cost.seconds for cost in run.costs()[1:]] for label, run in runs.items()}
    unit, found = fmean(seconds[BASE]) + 6 * pstdev(seconds[BASE]), {}
    for label, run in runs.items():
        last = (run.experiment.stream.freeze_after or 0) - 1
        step, prediction = fmean(seconds[label][:last]) / unit, fmean(seconds[label][last:]) / unit
        found[label] = Latency(prediction, max(0.0, step - prediction))
    return found


def served(count: int, latency: Latency, speed: float = 1.0) -> list[int]:
    """Batches that are not dropped: one may wait while another is worked on, and whatever comes then is lost.

    ``speed`` (rho) is how many arrive in a reference latency.
    """
    found, begin, free = [], 0.0, 0.0
    for batch in range(count):
        if begin <= batch / speed:  # none waits
            begin = max(batch / speed, free)
            free = begin + sum(latency)
            found.append(batch)
    return found


def discrete(accuracies: Sequence[float], latency: Latency) -> float:
    """Availability x accuracy on served batches: a dropped batch counts as wrong."""
    return sum(accuracies[batch] for batch in served(len(accuracies), latency)) / len(accuracies)


def continuous(accuracies: Sequence[float], latency: Latency, tolerance: float = TOLERANCE) -> float:
    """Mean of accuracy x kappa, with kappa = 1 / (1 + d / (T - 1)): d is how long a user waits beyond the reference."""
    first, later = (max(0.0, wait - 1) / (tolerance - 1) for wait in (latency.prediction, sum(latency)))
    return fmean(share / (1 + (later if batch else first)) for batch, share in enumerate(accuracies))


def frozen_after(batches: int, latency: Latency) -> int | None:
    """After how many batches of a domain adaptation has exceeded the budget; ``None`` where it never does."""
    return next((done for done in range(1, batches) if done * latency.adaptation > BUDGET), None)


def utilities(latency: Mapping[str, Run], adapting: Mapping[str, Run], frozen: Mapping[str, Run]) -> dict[str, float]:
    """The utilities in percent, by row and measure; those whose runs are missing are left out."""
    found = {}
    for label, own in latencies(latency).items() if BASE in latency else ():
        if label in adapting:
            shares = _shares(adapting[label])
            found[f"{label} discrete"] = discrete(shares, own)
            found[f"{label} continuous"] = continuous(shares, own)
            last = frozen_after(len(shares) // (len(adapting[label].measures.domains) - 1), own)
            run = frozen.get(label) if last else adapting[label]
            if run is not None and run.experiment.stream.freeze_after == last:
                found[f"{label} amortised"] = fmean(_shares(run))
    return found


def _shares(run: Run) -> list[float]:
    """Accuracy of each corrupted batch, in percent; the stream ends with clean ones."""
    return [100 * record.correct / record.images for record in run.records() if record.domain != "clean"]
