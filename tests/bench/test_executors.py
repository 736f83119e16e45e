"""Several processes give the same bytes as one, and outlive a killed one."""

import multiprocessing
import os
import signal
import threading
import time
from functools import partial
from pathlib import Path

from fozo import cluster
from fozo.bench.plan import Experiment, StreamPlan
from fozo.bench.resources import Paths
from fozo.bench.run import Setup, run_one
from fozo.bench.store import Run
from fozo.data import sample


def work(weights: Path, photos: Path, out: Path) -> tuple[list[Experiment], Setup]:
    plan = StreamPlan(data="clean", kinds=("brightness", "contrast"), images=20, batch_size=1)
    experiments = [
        Experiment(method, method, stream=plan, model=str(weights), seed=seed, calibration=16)
        for method in ("align", "noadapt")
        for seed in (0, 1)
    ]
    return experiments, Setup(str(out / "recipe"), Paths({"imagenet": str(photos)}))


def run(experiments: list[Experiment], setup: Setup, workers: int | None = None) -> list[str]:
    names = []
    for _, result in cluster.run(partial(run_one, setup=setup), experiments, workers=workers):
        assert isinstance(result, Run), result
        names.append(result.folder.name)
    return names


def timeless(out: Path) -> dict[str, bytes]:
    files = (path for path in out.rglob("*") if path.is_file() and path.name not in ("costs.jsonl", "conditions.json"))
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def test_workers_give_the_same_bytes_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    model, images = sample.MODELS["float32"], sample.IMAGES  # ONNX: workers need not import torch
    alone = run(*work(model, images, tmp_path / "one"))
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
    together = run(*work(model, images, tmp_path / "two"), workers=2)
    killer.join()
    assert len(killed) == 1 and sorted(together) == sorted(alone) and len(alone) == 4
    assert timeless(tmp_path / "one") == timeless(tmp_path / "two")
