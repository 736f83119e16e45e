"""Jobs in other processes: results as they end, deaths, threads. Ray is tried in tests/cli/ray_cases.py."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from fozo.cluster import run
from fozo.errors import FozoError
from fozo.io import atomic_write
from fozo.io.system import THREADS


def half(number: int) -> float:
    if number == 3:
        raise ValueError("three")
    return number / 2


def die_until_there(file: Path) -> str:
    """Be killed at first, and find later what was left."""
    if not file.exists():
        file.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return file.name


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def settings(_: object) -> dict[str, str]:
    return {name: os.environ[name] for name in THREADS}


def write_for_ever(file: Path) -> None:
    if file.name != "begun":
        with atomic_write(file) as stream:
            stream.write(b"half")
            time.sleep(600)


@pytest.mark.parametrize("workers", [None, 2])
def test_an_exception_is_a_result_and_ends_no_other_job(workers: int | None) -> None:
    results = dict(run(half, range(8), workers=workers))
    error = results.pop(3)
    assert isinstance(error, ValueError) and str(error) == "three"
    assert results == {number: number / 2 for number in range(8) if number != 3}


def test_a_job_whose_worker_dies_is_begun_again_but_not_for_ever(tmp_path: Path) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    assert dict(run(die_until_there, files, workers=2)) == {file: file.name for file in files}
    ((_, error),) = run(die, ["poison"], workers=1, tries=1)
    assert isinstance(error, FozoError) and "died 1 times, perhaps for lack of memory" in str(error)
    with pytest.raises(FozoError, match="died"):
        list(run(die, range(40), workers=2, tries=1))  # all of them: it is no job's own fault


def test_workers_use_no_more_threads_than_their_share() -> None:
    before = dict(os.environ)
    ((_, found),) = run(settings, [0], workers=1, cpus=3)
    assert found == dict.fromkeys(THREADS, "3") and dict(os.environ) == before


def test_a_worker_that_is_ended_removes_what_it_has_half_written(tmp_path: Path) -> None:
    jobs = run(write_for_ever, [tmp_path / "slow", tmp_path / "begun"], workers=2)
    next(jobs)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".slow.*")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert list(tmp_path.glob(".slow.*"))
    jobs.close()
    assert list(tmp_path.iterdir()) == []


def test_counts_are_checked() -> None:
    for name in ("workers", "cpus", "tries"):
        wrong: dict[str, Any] = {name: 0}
        with pytest.raises(FozoError, match="is 0; give a whole number"):
            run(half, [1], **wrong)
