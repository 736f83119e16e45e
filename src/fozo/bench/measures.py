"""Measures of a run, from its records alone: accuracy, calibration, and how sure we may be of them.

Accuracies are in percent. ``average`` is the mean over domains of their accuracies, as in the paper's tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fozo.bench.records import BINS, BatchRecord, Cost
from fozo.errors import FozoError

Array = npt.NDArray[np.float64]
RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A bootstrap confidence interval of 95 %."""

    low: float
    high: float


@dataclass(frozen=True)
class Measures:
    """All that a table may ask of a run."""

    images: int
    batches: int
    average: float
    average_interval: Interval
    top1: float
    top1_interval: Interval
    top5: float
    top5_interval: Interval
    ece: float
    ece_interval: Interval
    entropy: float
    domains: Mapping[str, float]
    domain_intervals: Mapping[str, Interval]
    passes: int
    """Forward passes over all images."""


def measure(records: Sequence[BatchRecord], seed: int = 0) -> Measures:
    """Measure a run; ``seed`` is of the bootstrap's private generator."""
    images = np.array([record.images for record in records])
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64)))
    names = list(dict.fromkeys(record.domain for record in records))
    place = np.array([names.index(record.domain) for record in records])
    sizes = np.bincount(place, weights=images).astype(int)
    drawn = {}
    means = {}
    for field in ("correct", "correct5"):
        hits = np.bincount(place, weights=[getattr(record, field) for record in records]).astype(int)
        means[field] = 100 * hits / sizes
        # Drawing n images with replacement of which k are right is drawing from a binomial: no loop over images.
        drawn[field] = generator.binomial(sizes, hits / sizes, (RESAMPLES, len(names)))
    shares = 100 * drawn["correct"] / sizes
    weights = sizes / sizes.sum()
    histogram = np.array([[r.bin_images, r.bin_correct, r.bin_confidence] for r in records], dtype=np.float64)
    # Confidences are only kept summed over a batch's bins, so it is batches that are drawn again here.
    again = generator.multinomial(len(records), np.full(len(records), 1 / len(records)), RESAMPLES)
    errors = _ece(np.tensordot(again, histogram, axes=1))
    return Measures(
        images=int(images.sum()),
        batches=len(records),
        average=float(means["correct"].mean()),
        average_interval=interval(shares.mean(axis=1)),
        top1=float(means["correct"] @ weights),
        top1_interval=interval(shares @ weights),
        top5=float(means["correct5"] @ weights),
        top5_interval=interval(100 * drawn["correct5"] / sizes @ weights),
        ece=float(_ece(histogram.sum(axis=0)[None])[0]),
        ece_interval=interval(errors),
        entropy=float(np.average([record.entropy for record in records], weights=images)),
        domains=dict(zip(names, means["correct"].tolist(), strict=True)),
        domain_intervals={name: interval(shares[:, i]) for i, name in enumerate(names)},
        passes=round(sum(record.passes * record.images for record in records)),
    )


def interval(values: Array) -> Interval:
    """Cut off what lies outside the middle 95 %."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def _ece(histogram: Array) -> Array:
    """Expected calibration error in percent of histograms ``[..., 3, bins]``: mean of |confidence - accuracy|."""
    count, correct, confidence = histogram[..., 0, :], histogram[..., 1, :], histogram[..., 2, :]
    assert histogram.shape[-1] == BINS
    error: Array = 100 * np.abs(confidence - correct).sum(axis=-1) / count.sum(axis=-1)
    return error


def paired(ours: Sequence[BatchRecord], theirs: Sequence[BatchRecord], seed: int = 0) -> tuple[float, Interval | None]:
    """Difference of two runs' averages over the same batches, in points, and its interval.

    Records keep counts, not single images, so pairs are of batches: what is hard for one run is hard for the other,
    and leaves the difference. From each domain's n batches n - 1 are drawn with replacement, which gives the variance
    without bias even where n is 2 (Rao and Wu, 1988); a domain with a single batch has no interval.
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
    whole = len(drawn) == len(means)
    return float(np.mean(means)), interval(np.mean(drawn, axis=0)) if whole else None


def over_time(records: Sequence[BatchRecord]) -> tuple[Array, Array]:
    """Accuracy of all images so far against their number, after each batch."""
    images = np.cumsum([record.images for record in records])
    correct = np.cumsum([record.correct for record in records])
    return images.astype(np.float64), 100 * correct / images


def within_domains(records: Sequence[BatchRecord], costs: Sequence[Cost]) -> list[tuple[Array, Array, Array]]:
    """For each domain by itself: seconds so far, passes so far, and accuracy so far in percent (Table C.1)."""
    found = []
    for name in dict.fromkeys(record.domain for record in records):
        own = [(record, cost) for record, cost in zip(records, costs, strict=True) if record.domain == name]
        images = np.cumsum([record.images for record, _ in own])
        correct = np.cumsum([record.correct for record, _ in own])
        seconds = np.cumsum([cost.seconds for _, cost in own])
        passes = np.cumsum([record.passes * record.images for record, _ in own])
        found.append((seconds, passes.astype(np.float64), 100 * correct / images))
    return found


def at_budget(curves: Sequence[tuple[Array, Array, Array]], seconds: float) -> float:
    """Average over domains of the accuracy after ``seconds``: of the batches done by then, but at least the first."""
    values = [
        accuracy[max(0, int(np.searchsorted(times, seconds * (1 + 1e-9), "right")) - 1)]
        for times, _, accuracy in curves
    ]
    return float(np.mean(values))
