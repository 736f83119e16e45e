"""What is recorded of each batch, and what a whole run's records amount to.

Accuracies are in percent. ``average`` is the mean over domains of their accuracies, as in the paper's tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fozo.core.objective import entropies
from fozo.errors import FozoError
from fozo.io import as_dataclass
from fozo.types import Array

BINS = 15  # confidence bins of the expected calibration error, as in Guo et al. (2017)
RESAMPLES = 2000
LEVEL = 0.95
COMMON_METRICS = ("loss", "epsilon", "rate")  # metrics that every line of the records has, filled or null


@dataclass(frozen=True)
class BatchRecord:
    """What one batch gave. Everything here is a function of model, stream and seed: no times."""

    index: int
    """From 0, in the stream."""
    domain: str
    """Its condition, such as ``fog/5``."""
    images: int
    """How many there are."""
    correct: int
    """Images whose likeliest class is right."""
    correct5: int
    """Images whose class is among the five likeliest."""
    entropy: float
    """Mean entropy of the predictions, in nats."""
    passes: float
    """Forward passes that the method made for each image, on average."""
    bin_images: tuple[int, ...]
    """Images in each bin of confidence."""
    bin_correct: tuple[int, ...]
    """Right predictions in each bin of confidence."""
    bin_confidence: tuple[float, ...]
    """Sum of confidences in each bin of confidence."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """What the method says of itself: its loss, mostly."""
    right: tuple[int, ...] = ()
    """Which images of the set were recognised, to pair two runs; old records have none."""

    def line(self) -> dict[str, object]:
        """Give plain values for a log: metrics stand beside the other fields, whole numbers of passes have no point."""
        payload = asdict(self)
        metrics = payload.pop("metrics")
        taken = next((name for name in metrics if name in payload), None)
        if taken is not None:
            raise FozoError(f"a method's metric is called {taken!r}, like a field of every record; rename it")
        return {**payload, "passes": whole(self.passes), **dict.fromkeys(COMMON_METRICS), **metrics}

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> BatchRecord:
        """Read what :meth:`line` gave, refusing what no batch gives."""
        known = {name: line[name] for name in cls.__dataclass_fields__ if name in line and name != "metrics"}
        metrics = {name: value for name, value in line.items() if name not in known and value is not None}
        record = as_dataclass(cls, {**known, "metrics": metrics}, "a batch's record")
        counts = (record.correct, record.correct5, len(record.right), *record.bin_images, *record.bin_correct)
        bins = {len(record.bin_images), len(record.bin_correct), len(record.bin_confidence)}
        whole_counts = record.index >= 0 and all(0 <= count <= record.images for count in counts)
        if not whole_counts or record.images < 1 or bins != {BINS} or not 0 < record.passes < 1e6:
            raise FozoError(f"the record of batch {record.index} counts more than it has images, or none; run it again")
        return record


@dataclass(frozen=True)
class Cost:
    """What one batch cost on this machine."""

    index: int
    """From 0, in the stream."""
    seconds: float
    """Time inside the method: adapting and predicting, without reading images."""
    memory: int
    """Peak so far in bytes: resident size of the process on CPU, the allocator's peak on CUDA."""

    @classmethod
    def read(cls, line: Mapping[str, Any]) -> Cost:
        return as_dataclass(cls, line, "a batch's cost")


def score(
    logits: npt.NDArray[np.floating],
    labels: npt.NDArray[np.int64],
    *,
    index: int = 0,
    domain: str = "",
    passes: float = 1.0,
    metrics: Mapping[str, float] | None = None,
    samples: npt.NDArray[np.int64] | None = None,
) -> BatchRecord:
    """Compare predictions ``[B, classes]`` with the labels; ``samples`` says which images of the set these are."""
    if not np.isfinite(logits).all():
        raise FozoError(
            f"batch {index} ({domain}) was given logits that are NaN or infinite; the method or the model is broken, "
            f"try float32 or a lower learning rate"
        )
    confidence = softmax(logits.astype(np.float64), axis=1).max(axis=1)
    right = logits.argmax(axis=1) == labels
    true_logits = np.take_along_axis(logits, labels[:, None], axis=1)
    # Ties count against the true class, so that a constant output scores nothing.
    rank = (logits >= true_logits).sum(axis=1)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    return BatchRecord(
        index=index,
        domain=domain,
        images=len(labels),
        correct=int(right.sum()),
        correct5=int((rank <= 5).sum()),
        entropy=float(entropies(logits).mean()),
        passes=passes,
        bin_images=tuple(np.bincount(bins, minlength=BINS).tolist()),
        bin_correct=tuple(np.bincount(bins[right], minlength=BINS).tolist()),
        bin_confidence=tuple(np.bincount(bins, weights=confidence, minlength=BINS).tolist()),
        metrics=metrics or {},
        right=() if samples is None else tuple(np.sort(samples[right]).tolist()),
    )


def whole(value: float) -> float:
    """Make a whole number an int, so that it is written without a point."""
    return int(value) if value == int(value) else value


@dataclass(frozen=True)
class Interval:
    """A bootstrap confidence interval of 95 %."""

    low: float
    """Its lower end."""
    high: float
    """Its upper end."""


@dataclass(frozen=True)
class Measures:
    """All that a table may ask of a run. Every interval is of the number before it."""

    images: int
    """Images of all domains."""
    batches: int
    """Batches of all domains."""
    average: float
    """Accuracy averaged over the domains, in percent."""
    average_interval: Interval
    top1: float
    """Accuracy over all images, in percent."""
    top1_interval: Interval
    top5: float
    """Images whose class is among the five likeliest, in percent."""
    top5_interval: Interval
    ece: float
    """Expected calibration error in percent."""
    ece_interval: Interval
    entropy: float
    """Mean entropy of the predictions, in nats."""
    domains: Mapping[str, float]
    """Accuracy of each domain, in percent."""
    domain_intervals: Mapping[str, Interval]
    passes: int
    """Forward passes over all images."""

    @property
    def passes_per_image(self) -> float:
        return whole(self.passes / self.images)

    @classmethod
    def read(cls, payload: object) -> Measures:
        """Read what ``dataclasses.asdict`` gave, refusing what no run gives."""
        read = as_dataclass(cls, payload, "the result")
        intervals = (read.average_interval, read.top1_interval, read.top5_interval, read.ece_interval)
        shares = [read.average, read.top1, read.top5, read.ece, *read.domains.values()]
        for within in (*intervals, *read.domain_intervals.values()):
            shares += [within.low, within.high]
        if min(read.images, read.batches, read.passes) < 1 or not all(-1e-6 <= share <= 100.001 for share in shares):
            raise FozoError("the result counts no images, or accuracies that are not percentages; run it again")
        if not read.domains or read.domains.keys() != read.domain_intervals.keys():
            raise FozoError("the result has no domains, or others than it has intervals of; run it again")
        return read


def measure(records: Sequence[BatchRecord], seed: int = 0) -> Measures:
    """Measure a run; ``seed`` is of the bootstrap's private generator."""
    images = np.array([record.images for record in records])
    generator = np.random.Generator(np.random.Philox(key=np.array([seed, 0], dtype=np.uint64)))
    names = list(dict.fromkeys(record.domain for record in records))
    index = np.array([names.index(record.domain) for record in records])
    sizes = np.bincount(index, weights=images).astype(int)
    means = {}
    draws = {}
    for what in ("correct", "correct5"):
        hits = np.bincount(index, weights=[getattr(record, what) for record in records]).astype(int)
        means[what] = 100 * hits / sizes
        # Drawing n images with replacement of which k are right is drawing from a binomial: no loop over images.
        draws[what] = 100 * generator.binomial(sizes, hits / sizes, (RESAMPLES, len(names))) / sizes
    shares = draws["correct"]
    weights = sizes / sizes.sum()
    histogram = np.array([[r.bin_images, r.bin_correct, r.bin_confidence] for r in records], dtype=np.float64)
    # Confidences are recorded summed over a batch's bins, so it is batches that are drawn again here.
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
        top5_interval=interval(draws["correct5"] @ weights),
        ece=float(_ece(histogram.sum(axis=0)[None])[0]),
        ece_interval=interval(errors),
        entropy=float(np.average([record.entropy for record in records], weights=images)),
        domains=dict(zip(names, means["correct"].tolist(), strict=True)),
        domain_intervals={name: interval(shares[:, i]) for i, name in enumerate(names)},
        passes=round(sum(record.passes * record.images for record in records)),
    )


def interval(values: Array) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def _ece(histogram: Array) -> Array:
    """Expected calibration error in percent of histograms ``[..., 3, bins]``: mean of |confidence - accuracy|."""
    count = histogram[..., 0, :]
    correct = histogram[..., 1, :]
    confidence = histogram[..., 2, :]
    error: Array = 100 * np.abs(confidence - correct).sum(axis=-1) / count.sum(axis=-1)
    return error


def within_domains(records: Sequence[BatchRecord], costs: Sequence[Cost]) -> list[tuple[Array, Array]]:
    """For each domain by itself: seconds so far, and accuracy so far in percent (Table C.1)."""
    batches: dict[str, list[tuple[float, int, int]]] = {}
    for record, cost in zip(records, costs, strict=True):
        batches.setdefault(record.domain, []).append((cost.seconds, record.correct, record.images))
    curves = []
    for domain in batches.values():
        seconds, correct, images = np.cumsum(domain, axis=0, dtype=np.float64).T
        curves.append((seconds, 100 * correct / images))
    return curves


def at_budget(curves: Sequence[tuple[Array, Array]], seconds: float) -> float:
    """Average over domains of the accuracy after ``seconds``: of the batches done by then, but at least the first."""
    reached = [int(np.searchsorted(times, seconds * (1 + 1e-9), "right")) - 1 for times, _ in curves]
    return float(np.mean([accuracy[max(0, i)] for i, (_, accuracy) in zip(reached, curves, strict=True)]))
