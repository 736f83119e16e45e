"""Utility under deadlines: the three measures of Tempora (ICML 2026, arXiv:2602.06136), from times and accuracies.

Time is counted in units of the reference latency: mean + 6 standard deviations of the plain model's time for a batch.
A method's *prediction* is what a batch takes when it is frozen, its *adaptation* what a step takes beyond that; so one
whose answer needs the whole step predicts slowly and adapts in no time. Accuracies are those of recorded batches: one
that is served although others were dropped counts as in a run that saw them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from fozo.bench.gains import BASE
from fozo.bench.store import Run
from fozo.data.sets.base import CLEAN

LATENCY, ADAPTING, FROZEN = "latency", "adapting", "frozen"
"""Columns of the recipe ``tempora``: times of few batches, and accuracies of all, the last with an early freeze."""
SPEED = 1.0  # rho: batches that arrive in a reference latency
TOLERANCE = 2.0  # T: a wait this long halves what an answer is worth
BUDGET = 0.5  # B: how long a method may adapt in a domain, before it is frozen


@dataclass(frozen=True)
class Latency:
    """What a batch takes, in seconds or in units of the reference latency."""

    prediction: float
    adaptation: float

    @classmethod
    def of(cls, run: Run, unit: float = 1.0) -> Latency:
        """Read the times of a run that is frozen after some batches; the first of all warms up."""
        seconds, last = [cost.seconds / unit for cost in run.costs()], run.experiment.stream.freeze_after
        prediction = fmean(seconds[last:])
        return cls(prediction, max(0.0, fmean(seconds[1:last]) - prediction))


def reference_latency(plain: Run) -> float:
    seconds = [cost.seconds for cost in plain.costs()[1:]]
    return fmean(seconds) + 6 * pstdev(seconds)


def served(count: int, latency: Latency, speed: float = SPEED) -> list[int]:
    """Batches that are not dropped: one may wait while another is worked on, and whatever comes then is lost."""
    found, begin, free = [], 0.0, 0.0
    for batch in range(count):
        arrival = batch / speed
        if begin <= arrival:  # none waits
            begin = max(arrival, free)
            free = begin + latency.prediction + latency.adaptation
            found.append(batch)
    return found


def discrete(accuracies: Sequence[float], latency: Latency, speed: float = SPEED) -> float:
    """Availability x accuracy on served batches: a dropped batch counts as wrong."""
    return sum(accuracies[batch] for batch in served(len(accuracies), latency, speed)) / len(accuracies)


def continuous(accuracies: Sequence[float], latency: Latency, tolerance: float = TOLERANCE) -> float:
    """Mean of accuracy x kappa, with kappa = 1 / (1 + d / (T - 1)): d is how long a user waits beyond the reference."""
    waits = [max(0.0, latency.prediction + latency.adaptation * (batch > 0) - 1) for batch in range(len(accuracies))]
    return fmean(share / (1 + wait / (tolerance - 1)) for share, wait in zip(accuracies, waits, strict=True))


def frozen_after(batches: int, latency: Latency, budget: float = BUDGET) -> int | None:
    """After how many batches of a domain adaptation has exceeded the budget; ``None`` where it never does."""
    return next((done for done in range(1, batches) if done * latency.adaptation > budget), None)


def utilities(
    latency: Mapping[str, Run], adapting: Mapping[str, Run], frozen: Mapping[str, Run]
) -> dict[str, dict[str, float | None]]:
    """The three utilities in percent by row, ``None`` where what it takes was not run."""
    if BASE not in latency:
        return {}
    unit, found = reference_latency(latency[BASE]), {}
    for label in (label for label in latency if label in adapting):
        own, shares = Latency.of(latency[label], unit), _shares(adapting[label])
        last = frozen_after(len(shares) // (len(adapting[label].measures.domains) - 1), own)
        kept = frozen.get(label) if last else adapting[label]
        if kept is not None and kept.experiment.stream.freeze_after != last:
            kept = None
        found[label] = {
            "discrete": discrete(shares, own),
            "continuous": continuous(shares, own),
            "amortised": None if kept is None else fmean(_shares(kept)),
        }
    return found


def _shares(run: Run) -> list[float]:
    """Accuracy of each corrupted batch, in percent; the stream ends with clean ones."""
    return [100 * record.correct / record.images for record in run.records() if record.domain != CLEAN.name]
