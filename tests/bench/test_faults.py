"""Faults that really happen, in real processes: kill -9 and a full disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bench.test_executors import timeless
from tests.helpers import REPO

KILLS = 22
BATCHES = 4 * 44


class Driver:
    """Starts runs of one method in processes of their own, see drive.py."""

    def __init__(self, weights: Path, photos: Path, method: str) -> None:
        self.method = method
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("drive.py")), str(weights), str(photos)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPO / "src"), "OMP_NUM_THREADS": "1"},
        )

    def start(self, out: Path, limit: int | None = None) -> int:
        assert self.process.stdin is not None and self.process.stdout is not None
        task = {"out": str(out), "method": self.method, "limit": limit}
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def wait(self) -> int:
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def run(self, out: Path, limit: int | None = None) -> int:
        self.start(out, limit)
        return self.wait()


@pytest.fixture(scope="module", params=["align", "fozo"])
def driver(weights: Path, photos: Path, request: pytest.FixtureRequest) -> Iterator[Driver]:
    """The default method, whose memory grows, and the paper's."""
    made = Driver(weights, photos, request.param)
    yield made
    made.process.communicate(timeout=30)


@pytest.fixture(scope="module")
def whole(driver: Driver, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    out = tmp_path_factory.mktemp("whole")
    assert driver.run(out) == 0
    return out


def folder(out: Path) -> Path:
    (found,) = (out / "runs").glob("run-s0-*")
    return found


def recorded(out: Path) -> int:
    files = list(out.glob("runs/*/records.jsonl"))
    return files[0].read_bytes().count(b"\n") if files else 0


def test_killed_at_random_moments(driver: Driver, whole: Path, tmp_path: Path) -> None:
    """At least 20 times by SIGKILL, at random numbers of records and at random instants after them."""
    generator = np.random.default_rng(0)
    reached = []
    for _ in range(KILLS):
        goal = recorded(tmp_path) + int(generator.integers(0, 6))
        pid = driver.start(tmp_path)
        deadline = time.monotonic() + 30
        while recorded(tmp_path) < min(goal, BATCHES - 1) and time.monotonic() < deadline:
            time.sleep(0.0005)
        time.sleep(generator.uniform(0, 0.005))
        os.kill(pid, signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL, "it had ended before it was killed"
        reached.append(recorded(tmp_path))
    assert len(set(reached)) > KILLS // 3 and 0 < max(reached) < BATCHES, reached
    assert driver.run(tmp_path) == 0
    assert timeless(folder(tmp_path)) == timeless(folder(whole))
    assert sorted(timeless(folder(whole))) == [".lock", "experiment.json", "records.jsonl", "result.json"]


def test_a_full_disk_is_one_sentence_and_the_run_goes_on_afterwards(
    driver: Driver, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole / "cache", tmp_path / "cache")  # which needs more room than the limit leaves
    assert driver.run(tmp_path, limit=20_000) == 2
    sentence = (tmp_path / "error.txt").read_text()
    # Where the limit cuts a line in two, the system writes the first half and reports no error of its own.
    assert "File too large" in sentence or "no space left" in sentence
    assert "cannot write" in sentence and "\n" not in sentence
    left = folder(tmp_path)
    assert 0 < recorded(tmp_path) < BATCHES and (left / "records.jsonl").read_bytes().endswith(b"\n")
    assert not list(left.glob(".*.part")) and not (left / "result.json").exists()
    assert driver.run(tmp_path) == 0
    assert timeless(folder(tmp_path)) == timeless(folder(whole))
