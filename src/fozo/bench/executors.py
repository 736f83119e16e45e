"""Running many experiments: one after another, or in several processes, with the same results.

A worker that dies (out of memory, killed) takes nothing with it: its experiment goes on in a new process.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path

from fozo.bench.plan import Experiment
from fozo.bench.resources import Paths, Resources, Show, quiet
from fozo.bench.run import run_experiment
from fozo.bench.store import Run, Store
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError
from fozo.io.system import worker_pool

CACHE = "calibration"
TRIES = 3
Finished = Callable[[Run], None]


@dataclass(frozen=True)
class Setup:
    """Where and how experiments are run: plain values, for another process."""

    out: str  # the folder of the recipe
    paths: Paths
    load: LoadOptions = field(default_factory=lambda: LoadOptions(threads=1))
    command: str = ""


_resources: dict[Setup, Resources] = {}  # what the latest experiment in this process has opened, for the next one


def run_one(experiment: Experiment, setup: Setup, show: Show = quiet) -> Run:
    if setup not in _resources:
        _resources.clear()
        _resources[setup] = Resources(setup.paths, setup.load, Path(setup.out).parent / CACHE)
    resources, store, threads = _resources[setup], Store(Path(setup.out)), setup.load.threads or 1
    return run_experiment(experiment, resources, store, threads=threads, command=setup.command, show=show)


def run_local(
    experiments: Sequence[Experiment], setup: Setup, *, workers: int = 1, finished: Finished, show: Show = quiet
) -> None:
    """Run experiments on this machine, with ``workers`` processes; with 1 everything happens in this one.

    ``finished`` is called with every run, in the order in which they end, ``show`` with the progress in this process.
    """
    if workers < 1:
        raise FozoError(f"workers is {workers}; give a whole number from 1 up")
    if workers == 1:
        for experiment in experiments:
            finished(run_one(experiment, setup, show))
        return
    left, deaths = list(experiments), 0
    while left:
        before = len(left)
        try:
            # Impatient: an experiment takes hours, and goes on from its files wherever it was stopped.
            with worker_pool(min(workers, before), patient=False) as pool:
                futures = {pool.submit(run_one, experiment, setup): experiment for experiment in left}
                for future in as_completed(futures):
                    run = future.result()
                    left.remove(futures[future])
                    finished(run)
        except BrokenProcessPool:
            deaths = deaths + 1 if len(left) == before else 0  # a death now and then does not end a long run
        if deaths == TRIES:
            raise FozoError(
                f"worker processes died {TRIES} times in a row, perhaps for lack of memory; "
                f"give the same command with fewer --workers"
            )
