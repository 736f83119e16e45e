"""Properties of this installation and this machine."""

import os
from importlib import metadata


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
