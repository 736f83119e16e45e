"""Several processes give the same bytes as one, and outlive a killed one."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

from fozo.bench.experiment import Experiment, StreamPlan
from fozo.bench.pool import Job, run_jobs
from fozo.bench.workshop import Places


def jobs(weights: Path, photos: Path, out: Path) -> list[Job]:
    plan = StreamPlan(data="imagenet", kinds=("brightness", "contrast"), images=20, batch_size=1)
    return [
        Job(Experiment(str(weights), method, {}, plan, seed, 16), Places(imagenet=str(photos)), str(out / "recipe"))
        for method in ("fozo", "noadapt")
        for seed in (0, 1)
    ]


def timeless(out: Path) -> dict[str, bytes]:
    files = (path for path in out.rglob("*") if path.is_file() and path.name not in ("costs.jsonl", "conditions.json"))
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def test_workers_give_the_same_bytes_and_a_killed_one_is_replaced(weights: Path, photos: Path, tmp_path: Path) -> None:
    alone: list[str] = []
    run_jobs(jobs(weights, photos, tmp_path / "one"), finished=lambda job, _: alone.append(job.experiment.folder))
    together: list[str] = []
    killed: list[int] = []

    def kill_one() -> None:
        deadline = time.monotonic() + 60
        while not list((tmp_path / "two").rglob("records.jsonl")) and time.monotonic() < deadline:
            time.sleep(0.002)
        for child in multiprocessing.active_children()[:1]:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            killed.append(child.pid)

    killer = threading.Thread(target=kill_one)
    killer.start()
    run_jobs(
        jobs(weights, photos, tmp_path / "two"),
        workers=2,
        finished=lambda job, _: together.append(job.experiment.folder),
    )
    killer.join()
    assert len(killed) == 1 and sorted(together) == sorted(alone) and len(alone) == 4
    assert timeless(tmp_path / "one") == timeless(tmp_path / "two")
