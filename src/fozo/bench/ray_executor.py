"""Running many experiments on a Ray cluster, with the same results as in one process.

Every node must see the weights, the images and ``--out`` under the same absolute paths, as a network file system shows
them: an experiment lives in its folder, so a node that takes over from a dead one goes on from the state saved there.
A worker that does not find the driver's mark in ``--out`` refuses to begin.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import uuid4

from fozo.bench.folder import disk_errors
from fozo.bench.pool import TRIES, Finished, Job, run_job
from fozo.errors import FozoError


def run_jobs(jobs: Sequence[Job], *, address: str | None = None, finished: Finished) -> None:
    """Run all jobs on a cluster, calling ``finished`` after each.

    Args:
        jobs: what to run; as many at a time as the cluster has processors for, ``threads`` to each.
        address: of the cluster, as Ray writes it; by default the one Ray finds, or else a new one on this machine.
        finished: told of every result, in the order in which they come.
    """
    with _cluster(address) as ray, _mark(Path(jobs[0].out)) as mark:
        threads = max(job.threads for job in jobs)
        room = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        if threads > room:  # Ray would wait for such a node for ever
            raise FozoError(f"threads is {threads}, but no node of the cluster has more than {room:g}; give --threads")
        # A dead worker's job is given to another by Ray itself; what the job raises is no reason to try again.
        remote = ray.remote(max_retries=TRIES - 1, retry_exceptions=False)(_run)
        waiting = {
            remote.options(num_cpus=job.threads, num_gpus=_gpus(job)).remote(_absolute(job), mark): job for job in jobs
        }
        try:
            while waiting:
                (done,), _ = ray.wait(list(waiting))
                finished(waiting[done], _result(ray, done))
                del waiting[done]
        finally:
            for task in waiting:
                ray.cancel(task, force=True)


def _run(job: Job, mark: str) -> dict[str, object]:
    """On a node: run one job. The process is kept for the next ones, and its model with it."""
    if not Path(mark).exists():
        raise FozoError(f"{job.out} on {os.uname().nodename} is not the driver's; give an --out that all nodes share")
    return run_job(job)


def _result(ray: ModuleType, task: object) -> dict[str, object]:
    try:
        result: dict[str, object] = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FozoError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise FozoError(
            f"a worker died {TRIES} times, perhaps for lack of memory ({type(error).__name__}); "
            f"give the same command again to go on, perhaps with more --threads, so that fewer run on a node"
        ) from error
    return result


def _absolute(job: Job) -> Job:
    """Make paths mean the same in a worker, which has a working folder of its own."""

    def full(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    places, experiment = job.places, job.experiment
    folders = ("imagenet", "imagenet_c", "imagenet_r", "imagenet_sketch", "imagenet_v2", "image_list")
    absolute: dict[str, Any] = {name: full(getattr(places, name)) for name in folders}
    places = replace(places, **absolute)
    if not experiment.model.startswith("timm:"):
        experiment = replace(experiment, model=str(Path(experiment.model).absolute()))
    return replace(job, experiment=experiment, places=places, out=str(Path(job.out).absolute()))


def _gpus(job: Job) -> int:
    return 1 if (job.places.device or "").startswith("cuda") else 0


@contextmanager
def _mark(out: Path) -> Iterator[str]:
    """Leave a file in ``out`` by which workers see that theirs is the same folder."""
    path = out.absolute() / f".ray-{uuid4().hex}"
    with disk_errors(path):
        out.mkdir(parents=True, exist_ok=True)
        path.touch()
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


def _knock(address: str) -> None:
    """See whether anybody answers at HOST:PORT; Ray itself would try for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # auto, local: names that Ray knows
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise FozoError(f"nobody answers at {address} ({error}); give --address of a running Ray cluster") from error


@contextmanager
def _cluster(address: str | None) -> Iterator[ModuleType]:
    """Connect to the cluster, unless this process is connected already; leave it as it was found."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read at import: nothing is reported to anybody
    try:
        import ray
    except ImportError as error:
        raise FozoError(f"cannot import Ray ({error}); install it with pip install 'fozo[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    _knock(address or "")
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FozoError(f"cannot reach a Ray cluster at {address or 'this machine'}: {reason}") from error
    try:
        yield ray
    finally:
        ray.shutdown()
