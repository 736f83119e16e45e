"""Which precision is faster: measured once for each machine and model, and kept in the user's cache."""

import json
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from fozo.errors import FozoError
from fozo.io import atomic_write, read_json
from fozo.io.system import processor_name, usable_cpus
from fozo.types import LOG

CANDIDATES = ("float32", "bfloat16")
RUNS = 3  # of which the fastest counts


def faster_dtype(model: str, make: Callable[[str], Callable[[], object]]) -> str:
    """Name the faster of the precisions; ``make`` gives a run of the model in one of them.

    ``model`` names all that the answer depends on beside the machine. A cache that cannot be read is measured again,
    and one that cannot be written is left as it is.
    """
    key = f"{processor_name()}, {usable_cpus()} processors, {model}"
    known: dict[str, object] = {}
    path = cache_file()
    with suppress(FozoError):
        known = read_json(path)
    kept = known.get(key)
    if isinstance(kept, str) and kept in CANDIDATES:
        return kept
    runs = {dtype: make(dtype) for dtype in CANDIDATES}
    seconds = dict.fromkeys(CANDIDATES, math.inf)
    for _ in range(RUNS):
        for dtype, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[dtype] = min(seconds[dtype], time.perf_counter() - start)
    fastest = min(seconds, key=lambda dtype: seconds[dtype])
    LOG.info("%s is faster here: %s", fastest, ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items()))
    with suppress(FozoError, OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as file:
            file.write(json.dumps({**known, key: fastest}, indent=1).encode())
    return fastest


def cache_file() -> Path:
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - never raises
    return Path(folder) / "fozo" / "precision.json"
