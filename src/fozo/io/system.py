"""This installation and this machine."""

import os
import platform
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path


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


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Have processes started here not hear Ctrl-C from their first instruction on; this one hears it afterwards."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
