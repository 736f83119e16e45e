"""Many jobs in worker processes of this machine, or on a Ray cluster.

A stream has an order and a state, so a whole stream is one job, which goes on from its own files after any kill.
"""

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from queue import SimpleQueue
from typing import Any, TypeVar

from fozo.errors import FozoError, check_counts
from fozo.io.system import die_with, starting_workers

Job = TypeVar("Job")
Result = TypeVar("Result")
Work = Callable[[Job], Result]
Answers = Generator[tuple[Job, Result | Exception], None, None]

GRACE = 5.0  # seconds that an interrupted worker has to remove what it has half-written
LOOK = 60.0  # seconds after which a wait for Ray begins again: one without a limit gives up after 10^6
DEATH = "its worker process died {} times, perhaps for lack of memory; give the same command with fewer workers"


def run(
    function: Work[Job, Result], jobs: Iterable[Job], *, workers: int | None = None, ray: bool = False,
    cpus: int = 1, gpus: float = 0.0, tries: int = 3,
) -> Answers[Job, Result]:  # fmt: skip
    """Call ``function(job)`` for every job; give each job with its result, in the order in which they end.

    An exception is a result, too, so that one job does not end the others. Worker processes end with the iterator.

    Args:
        function: a function of a module, or a ``partial`` of one: it is sent to other processes, as jobs are.
        jobs: what it is called with.
        workers: processes of this machine; without them and without ``ray`` all happens in this one.
        ray: run on the cluster that ``RAY_ADDRESS`` names, or else on a new one of this machine.
        cpus: processors of a job, and threads of the libraries that work for it.
        gpus: graphics processors of a job, for Ray.
        tries: how often a job is begun whose worker dies.
    """
    check_counts(cpus=cpus, tries=tries, workers=1 if workers is None else workers)
    if ray:
        return _on_ray(function, jobs, cpus, gpus, tries)
    if workers is None:
        return ((job, _answer(function, job)) for job in jobs)
    return _locally(function, jobs, workers, cpus, tries)


def _answer(function: Work[Job, Result], job: Job) -> Result | Exception:
    try:
        return function(job)
    except Exception as error:
        return error


def _locally(work: Work[Job, Result], jobs: Iterable[Job], workers: int, cpus: int, tries: int) -> Answers[Job, Result]:
    waiting = deque((job, 1) for job in jobs)
    processes: dict[Any, Any] = {}
    busy: dict[Any, tuple[Job, int]] = {}
    deaths = 0  # in a row
    try:
        while waiting or busy:
            while len(processes) < min(workers, len(waiting) + len(busy)):
                processes.update([_start(work, cpus)])
            for pipe in [pipe for pipe in processes if pipe not in busy][: len(waiting)]:
                busy[pipe] = waiting.popleft()
                with suppress(OSError):  # it has died, which is noticed below
                    pipe.send(busy[pipe][0])
            for pipe in list[Any](wait(list(busy))):
                job, attempt = busy.pop(pipe)
                try:
                    answer: Result | Exception = pipe.recv()
                    deaths = 0
                except (EOFError, OSError):
                    del processes[pipe]
                    deaths += 1
                    answer = death = FozoError(DEATH.format(attempt))
                    if deaths > workers * tries:  # that is no job's own fault
                        raise death from None
                    if attempt < tries:
                        waiting.append((job, attempt + 1))
                        continue
                yield job, answer
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.join(GRACE)
            process.kill()


def _start(function: Work[Job, object], cpus: int) -> tuple[Any, Any]:
    context = get_context("spawn")  # not forked: threads of OpenCV, BLAS or torch do not survive a fork
    pipe, other = context.Pipe()
    process = context.Process(target=_work, args=(function, other, os.getpid()), daemon=True)
    with starting_workers(cpus):
        process.start()
    other.close()  # so that the pipe ends with the process
    return pipe, process


def _work(function: Work[Job, object], pipe: Connection, parent: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # unwinds, so that temporary files are removed
    die_with(parent)
    jobs: SimpleQueue[Job] = SimpleQueue()

    def receive() -> None:
        with suppress(EOFError, OSError):
            while True:
                jobs.put(pipe.recv())
        os._exit(1)

    # The pipe ends with a killed parent, whose locks this process must not hold.
    threading.Thread(target=receive, daemon=True).start()
    while True:
        pipe.send(_answer(function, jobs.get()))


def _on_ray(work: Work[Job, Result], jobs: Iterable[Job], cpus: int, gpus: float, tries: int) -> Answers[Job, Result]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    heard = signal.getsignal(signal.SIGTERM)
    try:
        import ray

        if not ray.is_initialized():
            ray.init(log_to_driver=False, logging_level=logging.WARNING)
    except ImportError as error:
        raise FozoError("this needs Ray; install it with pip install 'fozo[ray]'") from error
    except ConnectionError as error:
        raise FozoError(f"cannot reach the Ray cluster ({error}); start it, or correct RAY_ADDRESS") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, heard)  # Ray takes it
    # Deaths alone are tried again: what the function raises is its answer.
    task: Any = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=tries - 1, retry_exceptions=False)(_answer)
    pending = {task.remote(work, job): job for job in jobs}
    while pending:
        for reference in ray.wait(list(pending), timeout=LOOK)[0]:
            job = pending.pop(reference)
            try:
                yield job, ray.get(reference)
            except ray.exceptions.RayError:
                yield job, FozoError(DEATH.format(tries))
