"""Running many experiments: one after another, or in several processes with the same results.

A worker that dies (out of memory, killed) takes nothing with it: its experiment goes on in a new process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from fozo.bench.experiment import Experiment
from fozo.bench.run import Watcher, run_experiment
from fozo.bench.workshop import Places, Workshop
from fozo.errors import FozoError

SHELF = "calibration"
TRIES = 3
Finished = Callable[["Job", dict[str, object]], None]


@dataclass(frozen=True)
class Job:
    """An experiment and where to run it; plain values, so that it can be sent to another process."""

    experiment: Experiment
    places: Places
    out: str
    """The folder of the recipe; the experiment's own is inside."""
    threads: int = 1
    command: str = ""

    @property
    def folder(self) -> Path:
        """The experiment's own folder."""
        return Path(self.out) / self.experiment.folder


@lru_cache(maxsize=1)
def _workshop(places: Places, shelf: str) -> Workshop:
    return Workshop(places, Path(shelf))


def run_job(job: Job, watch: Watcher = lambda progress: None) -> dict[str, object]:
    """Run one job in this process, which keeps its model for the next one."""
    workshop = _workshop(job.places, str(Path(job.out).parent / SHELF))
    return run_experiment(job.experiment, workshop, job.folder, threads=job.threads, command=job.command, watch=watch)


def share_of_cores(workers: int) -> int:
    """Threads for each of so many workers."""
    return max(1, (os.cpu_count() or 1) // workers)


def run_jobs(
    jobs: Sequence[Job],
    *,
    workers: int = 1,
    finished: Finished,
    watch: Callable[[Job], Watcher] = lambda job: lambda progress: None,
) -> None:
    """Run all jobs, calling ``finished`` after each.

    Args:
        jobs: what to run.
        workers: processes; with 1 everything happens in this one.
        finished: told of every result, in the order in which they come.
        watch: makes the watcher of a job that runs in this process.
    """
    if workers < 1:
        raise FozoError(f"workers is {workers}; give a whole number from 1 up")
    if workers == 1:
        for job in jobs:
            finished(job, run_job(job, watch(job)))
        return
    left, deaths = list(jobs), 0
    while left:
        before, left = len(left), _pool(left, workers, finished)
        deaths = deaths + 1 if len(left) == before else 0  # a death now and then in a long run is no reason to give up
        if deaths == TRIES:
            raise FozoError(
                f"worker processes died {TRIES} times in a row, perhaps for lack of memory; "
                f"give the same command with fewer --workers"
            )


def _pool(jobs: Sequence[Job], workers: int, finished: Finished) -> list[Job]:
    """Run jobs in a pool; return those that were not finished because a worker died."""
    left = list(jobs)
    # Spawned, not forked: a forked child of a process that has used torch's threads may hang.
    pool = ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn"))
    try:
        futures = {pool.submit(run_job, job): job for job in jobs}
        for future in as_completed(futures):
            try:
                result = future.result()
            except BrokenProcessPool:
                return left
            left.remove(futures[future])
            finished(futures[future], result)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return left
