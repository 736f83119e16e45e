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
FEWEST_DOMAINS = 5  # domains, likewise
# Columns of the recipe ``tempora``: times of few batches, and accuracies of all, the last with an early freeze.
LATENCY = "latency"
ADAPTING = "adapting"
FROZEN = "frozen"
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
    """In points of accuracy."""
    within: Interval | None
    """95 %; ``None`` where there are too few images."""
    over_domains: Interval | None = None
    """95 % of a mean over domains if the domains were drawn again, and not the images."""

    @property
    def side(self) -> int:
        """1 or -1 where it is significant (its 95 % interval excludes zero), else 0."""
        if self.within is None:
            return 0
        return int(self.within.low > 0) - int(self.within.high < 0)

    def __str__(self) -> str:
        ends = "" if self.within is None else f" ({signed(self.within.low)} to {signed(self.within.high)})"
        return signed(self.value) + ends


@dataclass(frozen=True)
class Gains:
    """Differences part by part (mostly domains), as resampled."""

    values: Mapping[str, float]
    """The differences."""
    draws: Mapping[str, Array | None]
    """``[RESAMPLES]`` of each; ``None`` where there is too little to draw from."""

    def of(self, part: str) -> Gain:
        draws = self.draws[part]
        return Gain(self.values[part], None if draws is None else interval(draws))

    @property
    def mean(self) -> Gain:
        drawn = [draws for draws in self.draws.values() if draws is not None]
        within = interval(np.asarray(np.mean(drawn, axis=0))) if len(drawn) == len(self.values) else None
        values = np.array(list(self.values.values()))
        over_domains = None
        if len(values) >= FEWEST_DOMAINS:
            over_domains = interval(_times(len(values), 0) @ values / len(values))
        return Gain(float(values.mean()), within, over_domains)


Gained: TypeAlias = Mapping[str, Mapping[str, Gains]]  # by column of a table, then by label of a row


def gains(ours: Sequence[Run], base: Sequence[Run]) -> Gains | None:
    """Compare two rows over the same images; ``None`` where they cannot be paired.

    Images are drawn again, each with all its domains, and so are seeds where there are several.
    """
    our_records = [run.records() for run in ours]
    base_records = [run.records() for run in base]
    if not ours or not base or _sizes(our_records[0]) != _sizes(base_records[0]):
        return None
    if any(len(batch.right) != batch.correct for records in (*our_records, *base_records) for batch in records):
        return None  # records that do not name their images
    return by_image(our_records, base_records, ours[0].experiment.stream.images)


def _sizes(records: Sequence[BatchRecord]) -> dict[str, int]:
    sizes: Counter[str] = Counter()
    for record in records:
        sizes[record.domain] += record.images
    return dict(sizes)


@lru_cache(maxsize=3)
def _times(images: int, seed: int) -> Array:
    """How often each of the images (or domains) is drawn, ``[RESAMPLES, images]``: the same for all rows of a table."""
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 2], dtype=np.uint64)))
    return generator.multinomial(images, np.full(images, 1 / images), RESAMPLES).astype(np.float32)


def by_image(
    ours: Sequence[Sequence[BatchRecord]],
    theirs: Sequence[Sequence[BatchRecord]],
    most: int | None = None,
    seed: int = 0,
) -> Gains:
    """Pair two rows image by image; each is a list of seeds' records, whose orders need not be the same.

    ``most`` is how many images the stream has at most, where they come back in a domain.
    """
    sizes = _sizes(ours[0])
    images = sorted({image for run in (*ours, *theirs) for record in run for image in record.right})
    row_of = {image: row for row, image in enumerate(images)}
    largest = max(sizes.values())
    streamed = largest if most is None else min(most, largest)
    count = max(len(images), streamed)  # images never recognised are not named, but may be drawn

    def recognised(records: Sequence[BatchRecord]) -> Array:
        """How often each image was recognised in each domain, ``[images, domains]``."""
        columns = []
        for name in sizes:
            rows = [row_of[image] for record in records if record.domain == name for image in record.right]
            columns.append(np.bincount(rows, minlength=count).astype(np.float64))
        return np.stack(columns, axis=1)

    scale = 100 / np.array(list(sizes.values()))
    base = np.mean([recognised(records) for records in theirs], axis=0)
    differences = [(recognised(records) - base) * scale for records in ours]
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 3], dtype=np.uint64)))
    runs = len(differences)
    weights = generator.multinomial(runs, np.full(runs, 1 / runs), RESAMPLES) / runs
    times = _times(count, seed)
    drawn = np.add.reduce([weights[:, [run]] * (times @ difference) for run, difference in enumerate(differences)])
    means = np.mean(differences, axis=0).sum(axis=0)
    draws = {name: drawn[:, i] if count >= FEWEST else None for i, name in enumerate(sizes)}
    return Gains(dict(zip(sizes, means.tolist(), strict=True)), draws)


def over_base(group: Group, base: str = BASE) -> Gained:
    gained: dict[str, dict[str, Gains]] = {}
    for column in group.columns:
        plain = group.of(base, column)
        for label in group.labels:
            paired = None if label == base else gains(group.of(label, column), plain)
            if paired is not None:
                gained.setdefault(column, {})[label] = paired
    return gained


class Latency(NamedTuple):
    """What a batch takes, in units of the reference latency: mean + 6 standard deviations of the plain model's time.

    A method whose answer needs the whole step predicts slowly and adapts in no time.
    """

    prediction: float
    """What a batch takes when the method is frozen."""
    adaptation: float
    """What a step takes beyond that."""


def latencies(runs: Mapping[str, Run]) -> dict[str, Latency]:
    """Read the times of runs that are frozen after some batches, NoAdapt among them; the first of all warms up."""
    seconds = {label: [cost.seconds for cost in run.costs()[1:]] for label, run in runs.items()}
    unit = fmean(seconds[BASE]) + 6 * pstdev(seconds[BASE])
    measured = {}
    for label, run in runs.items():
        last = (run.experiment.stream.freeze_after or 0) - 1
        step = fmean(seconds[label][:last]) / unit
        prediction = fmean(seconds[label][last:]) / unit
        measured[label] = Latency(prediction, max(0.0, step - prediction))
    return measured


def served(count: int, latency: Latency, speed: float = 1.0) -> list[int]:
    """Batches that are not dropped: one may wait while another is worked on, and whatever comes then is lost.

    ``speed`` (rho) is how many arrive in a reference latency.
    """
    answered = []
    begin = 0.0
    free = 0.0
    for batch in range(count):
        if begin <= batch / speed:  # none waits
            begin = max(batch / speed, free)
            free = begin + sum(latency)
            answered.append(batch)
    return answered


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
    measured = latencies(latency) if BASE in latency else {}
    found = {}
    for label in measured.keys() & adapting.keys():
        run = adapting[label]
        shares = _shares(run)
        found[f"{label} discrete"] = discrete(shares, measured[label])
        found[f"{label} continuous"] = continuous(shares, measured[label])
        corrupted = len(run.measures.domains) - 1
        last = frozen_after(len(shares) // corrupted, measured[label])
        amortised = frozen.get(label) if last else run
        if amortised is not None and amortised.experiment.stream.freeze_after == last:
            found[f"{label} amortised"] = fmean(_shares(amortised))
    return found


def _shares(run: Run) -> list[float]:
    """Accuracy of each corrupted batch, in percent; the stream ends with clean ones."""
    return [100 * record.correct / record.images for record in run.records() if record.domain != "clean"]
