"""A Ray cluster of two nodes gives the same bytes as one process, also when a worker is killed.

tests/serve/test_ray.py runs this file, and gives it the cluster.
"""

import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from fozo.bench import executors
from fozo.bench.executors import Setup, run_local, run_on_ray
from fozo.bench.plan import Experiment
from fozo.bench.store import Run
from fozo.errors import FozoError
from tests.bench.test_executors import nothing, timeless, work


def mortal(tombstone: Path) -> Callable[[Experiment, Setup, str], Run]:
    """Make what a node runs instead: the same, but the first process to reach ten images kills itself with SIGKILL."""

    def run(experiment: Experiment, setup: Setup, token: str) -> Run:  # nested: Ray sends its code, not its address
        import os
        import signal

        def watch(doing: str, done: int, total: int) -> None:
            if done == 10 and "seed" in doing:
                try:
                    tombstone.open("x").close()
                except FileExistsError:
                    return
                tombstone.write_text(str(os.getpid()))
                os.kill(os.getpid(), signal.SIGKILL)

        return executors.run_one(experiment, setup, watch)

    return run


def test_a_cluster_gives_the_same_bytes_and_a_killed_worker_is_replaced(
    cluster: str, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    run_local(*work(weights, photos, tmp_path / "one"), finished=nothing)
    monkeypatch.setattr(executors, "_run", mortal(tmp_path / "tombstone"))
    done: list[tuple[str, int]] = []
    on_sigterm, seen = signal.getsignal(signal.SIGTERM), []

    def note(run: Run) -> None:
        seen.append(signal.getsignal(signal.SIGTERM))
        done.append((run.experiment.hash, run.experiment.seed))

    monkeypatch.chdir(tmp_path)  # paths may be relative to where the driver is
    experiments, setup = work(weights, photos, tmp_path / "two")
    setup = replace(setup, out="two/recipe", paths=replace(setup.paths, imagenet=os.path.relpath(photos)))
    run_on_ray(experiments, setup, address=cluster, finished=note)
    assert set(seen) == {on_sigterm}  # Ray replaces it by one that ends the process with code 15
    assert int((tmp_path / "tombstone").read_text()) != os.getpid() and not ray.is_initialized()
    assert sorted(done) == sorted((experiment.hash, experiment.seed) for experiment in experiments)
    assert timeless(tmp_path / "one") == timeless(tmp_path / "two")

    with pytest.raises(FozoError, match="threads is 2, but no node of the cluster has more than 1"):
        run_on_ray(experiments[:1], replace(setup, threads=2), address=cluster, finished=nothing)
    assert not list(tmp_path.rglob(".ray-*"))


def test_a_node_that_does_not_share_the_folder_refuses(
    cluster: str, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executors, "_token", lambda out: nullcontext(str(tmp_path / "elsewhere")))
    experiments, setup = work(weights, photos, tmp_path)
    with pytest.raises(FozoError, match=r"^[^\n]* give an --out that all nodes share$"):  # not a page of Ray's
        run_on_ray(experiments[:1], setup, address=cluster, finished=nothing)


def test_an_address_without_an_answer_is_reported_at_once(weights: Path, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(FozoError, match=r"no answer at 127\.0\.0\.1:1 "):
        run_on_ray(*work(weights, photos, tmp_path), address="127.0.0.1:1", finished=nothing)
    assert not list(tmp_path.iterdir())
