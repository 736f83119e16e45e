"""Running on Ray: what needs no cluster; ray_cases.py has the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fozo.bench import executors, ray_executor
from fozo.bench.plan import Experiment
from fozo.bench.ray_executor import run_on_ray
from fozo.bench.resources import Show
from fozo.bench.store import Run
from fozo.errors import FozoError
from tests.bench.test_executors import nothing, work


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
    with ray_executor._token(Path(setup.out)) as token:

        def leaving(experiment: Experiment, setup: executors.Setup, show: Show) -> Run:
            def watch(doing: str, done: int, total: int) -> None:
                if done == 5 and "seed" in doing:
                    Path(token).unlink()
                show(doing, done, total)

            return run_one(experiment, setup, watch)

        monkeypatch.setattr(ray_executor, "run_one", leaving)
        with pytest.raises(FozoError, match=r"the driver of .* has ended"):
            ray_executor._run(experiments[0], setup, token)
    (records,) = tmp_path.rglob("records.jsonl")
    assert len(records.read_bytes().splitlines()) == 5
    with pytest.raises(FozoError, match="is not the driver's"):
        ray_executor._run(experiments[0], setup, token)
