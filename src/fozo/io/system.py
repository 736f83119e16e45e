"""This installation and this machine."""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from importlib import metadata
from pathlib import Path
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

PR_SET_PDEATHSIG = 1  # see Linux's prctl(2)
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OPENCV_FOR_THREADS_NUM")
"""Variables of the environment that libraries read when they are imported."""


def usable_cpus() -> int:
    """Count the processors that this process may use, which in a container are fewer than the machine's."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def processor_name() -> str:
    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def installed_version() -> str:
    """fozo's version; a source tree that is only on the path has none."""
    try:
        return metadata.version("fozo")
    except metadata.PackageNotFoundError:
        return "not installed"


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function run as it is where ``torch.compile`` meets it, without importing torch."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        dynamo = sys.modules.get("torch._dynamo")  # there as soon as something is compiled
        eager: Callable[P, R] = function if dynamo is None else dynamo.disable(function)
        return eager(*args, **kwargs)

    return call


@contextmanager
def starting_workers(threads: int) -> Iterator[None]:
    """Have processes started here use few threads, and not hear Ctrl-C from their first instruction on."""
    before = dict(os.environ)
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    is_posix = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if is_posix else set()
    try:
        yield
    finally:
        if is_posix:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.environ.clear()
        os.environ.update(before)


def die_with(parent: int) -> None:
    """Have Linux kill this process with its parent, even while it is busy in C code."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before that
            os._exit(1)
