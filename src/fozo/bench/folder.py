"""An experiment's folder: a lock against a second process, and files that are whole or not there.

Layout of ``OUT/recipe/label-seed-hash/``:

    experiment.json   what is run, and the fingerprints of the model, the stream and the calibration images
    records.jsonl     one checksummed line a batch: all that was measured, times aside
    costs.jsonl       one checksummed line a batch: seconds and peak memory
    state-000123.npz  the method after 123 batches, while the run is unfinished
    conditions.json   machine, versions and total cost, once it is finished
    result.json       the measures, once it is finished: byte-equal however often the run was interrupted
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fozo.core.files import atomic_write
from fozo.errors import FozoError

LOCK = ".lock"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk, or any other refusal of the system to write, into one sentence."""
    try:
        yield
    except OSError as error:
        raise FozoError(
            f"cannot write {path}: {error.strerror or error}; what was written before is whole, so free some space and "
            f"give the same command again"
        ) from error


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[None]:
    """Keep a folder to this process; the system drops the lock when the process dies, however it dies.

    Where another process has it, raise, or ``wait`` for it.
    """
    try:
        import fcntl
    except ImportError as error:  # Windows
        raise FozoError("fozo bench needs the file locks of Linux or macOS; run it there") from error
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            raise FozoError(f"another process is working in {folder}; wait for it, or choose another --out") from error
        yield
    finally:
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove the temporary files that a killed process left behind."""
    for litter in folder.glob(".*.part"):
        litter.unlink(missing_ok=True)


def write_json(path: Path, facts: Mapping[str, object]) -> None:
    """Write a JSON file atomically."""
    text = json.dumps(facts, indent=1, allow_nan=False) + "\n"  # unsorted: domains keep the order of the stream
    with disk_errors(path), atomic_write(path) as stream:
        stream.write(text.encode())


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object."""
    try:
        facts = json.loads(path.read_bytes())
    except OSError as error:
        raise FozoError(f"cannot read {path}: {error.strerror}; check the path") from error
    except ValueError as error:
        raise FozoError(f"{path} is not readable JSON ({error}); remove its folder and run it again") from error
    if not isinstance(facts, dict):
        raise FozoError(f"{path} should hold a JSON object; remove its folder and run it again")
    return facts
