"""This installation and this machine, as far as the rest asks about them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from typing import TypeVar

T = TypeVar("T")


def usable_cpus() -> int:
    """Count the processors that this process may use, which in a container are fewer than the machine's."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def installed_version() -> str:
    """Tell fozo's version; a source tree on the path that nobody installed has none."""
    try:
        return metadata.version("fozo")
    except metadata.PackageNotFoundError:
        return "not installed"


@dataclass
class Threads:
    """So many threads at most, for work that lets go of Python's lock; started when there is work for several."""

    count: int
    _pool: tuple[int, ThreadPoolExecutor] | None = field(default=None, init=False, repr=False)
    """A process, and its threads."""

    def each(self, call: Callable[[T], object], parts: Sequence[T]) -> None:
        """Call a function with every part, as many at a time as there are threads; raises what a call raised."""
        if self.count == 1 or len(parts) == 1:
            for part in parts:
                call(part)
            return
        process, pool = os.getpid(), self._pool
        if pool is None or pool[0] != process:  # threads do not survive a fork
            self._pool = pool = process, ThreadPoolExecutor(self.count, thread_name_prefix="fozo")
        for _ in pool[1].map(call, parts):
            pass
