"""Running many experiments: one after another, in several processes or on a Ray cluster, with the same results.

A worker that dies (out of memory, killed) takes nothing with it: its experiment goes on in a new process.
"""

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import ModuleType
from uuid import uuid4

from fozo.bench.plan import Experiment
from fozo.bench.resources import Paths, Resources, Show, quiet
from fozo.bench.run import run_experiment
from fozo.bench.store import Run, Store
from fozo.engines.load import LoadOptions
from fozo.errors import FozoError
from fozo.io import disk_errors
from fozo.io.workers import worker_pool

CACHE = "calibration"
TRIES = 3
Finished = Callable[[Run], None]


@dataclass(frozen=True)
class Setup:
    """Where and how experiments are run: plain values, for another process."""

    out: str  # the folder of the recipe
    paths: Paths
    load: LoadOptions = field(default_factory=LoadOptions)
    threads: int = 1
    command: str = ""


_resources: dict[Setup, Resources] = {}  # what the latest experiment in this process has opened, for the next one


def run_one(experiment: Experiment, setup: Setup, show: Show = quiet) -> Run:
    if setup not in _resources:
        _resources.clear()
        _resources[setup] = Resources(setup.paths, setup.load, Path(setup.out).parent / CACHE)
    resources, store = _resources[setup], Store(Path(setup.out))
    return run_experiment(experiment, resources, store, threads=setup.threads, command=setup.command, show=show)


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


def run_on_ray(
    experiments: Sequence[Experiment], setup: Setup, *, address: str | None = None, finished: Finished
) -> None:
    """Run experiments on a cluster: as many at a time as it has processors for, ``setup.threads`` to each.

    Every node must see the weights, the images and ``--out`` under the same absolute paths: a node that takes over from
    a dead one continues from the state in the experiment's folder. Workers stop where the driver's token is not there.
    ``address`` is as Ray writes it; by default the cluster that Ray finds, or else a new one on this machine.
    ``finished`` is called with every run, in the order in which they end.
    """
    with _cluster(address) as ray, _token(Path(setup.out)) as token:
        room = max(node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"])
        if setup.threads > room:  # Ray would wait for such a node for ever
            raise FozoError(
                f"threads is {setup.threads}, but no node of the cluster has more than {room:g}; give --threads"
            )
        # a dead worker's experiment is given to another by Ray itself; what it raises is no reason to try again.
        remote = ray.remote(max_retries=TRIES - 1, retry_exceptions=False)(_run).options(
            num_cpus=setup.threads, num_gpus=1 if (setup.load.device or "").startswith("cuda") else 0
        )
        setup = _absolute(setup)
        waiting = []
        for each in experiments:
            model = each.model if each.model.startswith("timm:") else str(Path(each.model).absolute())
            waiting.append(remote.remote(replace(each, model=model), setup, token))
        while waiting:
            (done,), waiting = ray.wait(waiting)
            finished(_result(ray, done))
        # After an error the other tasks see that the token is gone. None is cancelled through Ray, which may abort this
        # process where one of them just ends ("Tried to complete task that was not pending"), forced or not.


def _run(experiment: Experiment, setup: Setup, token: str) -> Run:
    """On a node: run one experiment. The process stays for the next ones, with its model."""

    def watch(doing: str, done: int, total: int) -> None:
        if not Path(token).exists():
            raise FozoError(f"the driver of {setup.out} has ended; give the same command to go on")

    if not Path(token).exists():
        raise FozoError(f"{setup.out} on {os.uname().nodename} is not the driver's; give an --out that all nodes share")
    return run_one(experiment, setup, watch)


def _result(ray: ModuleType, task: object) -> Run:
    try:
        run: Run = ray.get(task)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FozoError):
            raise error.cause from None
        raise
    except ray.exceptions.RayError as error:
        raise FozoError(
            f"a worker died {TRIES} times, perhaps for lack of memory ({type(error).__name__}); "
            f"give the same command again to go on, perhaps with more --threads, so that fewer run on a node"
        ) from error
    return run


def _absolute(setup: Setup) -> Setup:
    """Make paths mean the same in a worker, which has a working folder of its own."""
    full = {name: None if path is None else str(Path(path).absolute()) for name, path in asdict(setup.paths).items()}
    scales = None if setup.load.scales is None else str(Path(setup.load.scales).absolute())
    load = replace(setup.load, scales=scales)
    return replace(setup, out=str(Path(setup.out).absolute()), paths=Paths(**full), load=load)


@contextmanager
def _token(out: Path) -> Iterator[str]:
    """Leave a file in ``out`` by which workers see that theirs is the same folder, and that the driver is there."""
    path = out.absolute() / f".ray-{uuid4().hex}"
    with disk_errors(path):
        out.mkdir(parents=True, exist_ok=True)
        for old in out.glob(".ray-*"):  # of a driver that was killed
            old.unlink()
        path.touch()
    try:
        yield str(path)
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def _cluster(address: str | None) -> Iterator[ModuleType]:
    """Connect to the cluster, unless this process is connected already; leave it as it was found."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read at import: nothing is reported
    try:
        import ray
    except ImportError as error:
        raise FozoError(f"cannot import Ray ({error}); install it with pip install 'fozo[ray]'") from error
    if ray.is_initialized():
        yield ray
        return
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if host and port.isdigit():  # else auto or local; Ray itself would try for minutes
            socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise FozoError(f"no answer at {address} ({error}); give --address of a running Ray cluster") from error
    on_sigterm = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FozoError(f"cannot reach a Ray cluster at {address or 'this machine'}: {reason}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray took it, and would end this process with code 15
    try:
        yield ray
    finally:
        ray.shutdown()
