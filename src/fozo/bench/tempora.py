"""Utility under deadlines: the three measures of Tempora (ICML 2026, arXiv:2602.06136), from times and accuracies.

Time is counted in units of the reference latency: mean + 6 standard deviations of the plain model's time for a batch.
A method's *prediction* is what a batch takes when it is frozen, its *adaptation* what a step takes beyond that; so one
whose answer needs the whole step predicts slowly and adapts in no time. Accuracies are those of recorded batches: one
that is served although others were dropped counts as in a run that saw them all.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import NamedTuple

from fozo.bench.gains import BASE
from fozo.bench.store import Run

LATENCY, ADAPTING, FROZEN = "latency", "adapting", "frozen"
"""Columns of the recipe ``tempora``: times of few batches, and accuracies of all, the last with an early freeze."""
TOLERANCE = 2.0  # T: a wait this long halves what an answer is worth
BUDGET = 0.5  # B: how long a method may adapt in a domain, before it is frozen


class Latency(NamedTuple):
    """What a batch takes, in units of the reference latency."""

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
