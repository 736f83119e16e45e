"""Several processes give the same bytes as one, and outlive a killed one; ray_cases.py is the same on a cluster."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from fozo.bench import executors
from fozo.bench.executors import Setup, run_local, run_on_ray
from fozo.bench.plan import Experiment, StreamPlan
from fozo.bench.resources import Paths, Show
from fozo.bench.store import Run
from fozo.data import sample
from fozo.errors import FozoError


def work(weights: Path, photos: Path, out: Path) -> tuple[list[Experiment], Setup]:
    plan = StreamPlan(data="clean", kinds=("brightness", "contrast"), images=20, batch_size=1)
    experiments = [
        Experiment(method, method, stream=plan, model=str(weights), seed=seed, calibration=16)
        for method in ("align", "noadapt")
        for seed in (0, 1)
    ]
    return experiments, Setup(str(out / "recipe"), Paths(imagenet=str(photos)))


def nothing(run: Run) -> None:
    """Ignore a finished run."""


def timeless(out: Path) -> dict[str, bytes]:
    files = (path for path in out.rglob("*") if path.is_file() and path.name not in ("costs.jsonl", "conditions.json"))
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def test_workers_give_the_same_bytes_and_a_killed_one_is_replaced(tmp_path: Path) -> None:
    alone: list[str] = []
    model, images = sample.MODELS["float32"], sample.IMAGES  # ONNX: workers need not import torch
    run_local(*work(model, images, tmp_path / "one"), finished=lambda run: alone.append(run.folder.name))
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
    run_local(*work(model, images, tmp_path / "two"), workers=2, finished=lambda run: together.append(run.folder.name))
    killer.join()
    assert len(killed) == 1 and sorted(together) == sorted(alone) and len(alone) == 4
    assert timeless(tmp_path / "one") == timeless(tmp_path / "two")


def test_without_ray_one_sentence_says_how_to_install_it(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FozoError, match=r"pip install 'fozo\[ray\]'"):
        run_on_ray(*work(weights, photos, tmp_path), finished=nothing)


def test_a_worker_stops_when_the_driver_is_gone(
    weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks were cancelled through Ray, which aborted the driver when one of them was just ending."""
    experiments, setup = work(weights, photos, tmp_path)
    run_one = executors.run_one
    with executors._token(Path(setup.out)) as token:

        def leaving(experiment: Experiment, setup: executors.Setup, show: Show) -> Run:
            def watch(doing: str, done: int, total: int) -> None:
                if done == 5 and "seed" in doing:
                    Path(token).unlink()
                show(doing, done, total)

            return run_one(experiment, setup, watch)

        monkeypatch.setattr(executors, "run_one", leaving)
        with pytest.raises(FozoError, match=r"the driver of .* has ended"):
            executors._run(experiments[0], setup, token)
    (records,) = tmp_path.rglob("records.jsonl")
    assert len(records.read_bytes().splitlines()) == 5
    with pytest.raises(FozoError, match="is not the driver's"):
        executors._run(experiments[0], setup, token)
