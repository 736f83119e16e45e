"""This installation and this machine; and worker processes that end when this one does, however it ends.

A killed parent cannot tell its workers anything, and workers that went on would hold its locks and write its files. So
each watches a pipe whose other end only the parent has: the system closes it with the parent. On Linux the kernel is
also asked to kill a worker with its parent, which works even while the worker is busy in C code.
"""

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from importlib import metadata
from multiprocessing import get_context
from multiprocessing.connection import Connection


def usable_cpus() -> int:
    """Count the processors that this process may use, which in a container are fewer than the machine's."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def installed_version() -> str:
    """fozo's version; a source tree that is only on the path has none."""
    try:
        return metadata.version("fozo")
    except metadata.PackageNotFoundError:
        return "not installed"


PR_SET_PDEATHSIG = 1  # see Linux's prctl(2)


@contextmanager
def worker_pool(workers: int, *, patient: bool) -> Iterator[ProcessPoolExecutor]:
    """Start worker processes for the time of a ``with`` block.

    They leave Ctrl-C to this process, and use one thread of OpenCV each. Where the block is left by an exception,
    ``patient`` lets each finish the piece of work that it has begun; else they end at once.
    """
    # Spawned, not forked: threads of OpenCV, BLAS or torch do not survive a fork.
    context = get_context("spawn")
    watched, held = context.Pipe(duplex=False)
    pool = ProcessPoolExecutor(workers, context, initializer=_start, initargs=(watched, os.getpid()))
    try:
        with _deaf_children():
            for _ in range(workers):  # a pool starts its processes when it is given work
                pool.submit(int)
        yield pool
    except BaseException:
        if not patient:
            held.close()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        held.close()
        watched.close()


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Have processes started here not hear Ctrl-C from their first instruction on; this one hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(watched: Connection, parent: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            os._exit(1)
    threading.Thread(target=_watch, args=(watched,), daemon=True).start()
    os.environ["OPENCV_FOR_THREADS_NUM"] = "1"  # read when OpenCV is imported, if it is


def _watch(watched: Connection) -> None:
    with suppress(EOFError, OSError):
        watched.recv_bytes()  # nothing is ever sent
    os._exit(1)
