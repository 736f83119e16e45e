"""What the base class promises beside predictions: observers, freezing, journals, and arguments as users have them."""

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fozo.methods.base import Method, Observation

import fozo
from fozo.data import sample
from fozo.engines.blackbox import black_box
from fozo.engines.load import Model
from fozo.methods import registry
from fozo.methods.common import stateful
from fozo.testing import check_method, same
from tests.helpers import random_images
from tests.methods.test_every_method import create

SAMPLE = sample.MODELS["float32"]


class Observer:
    """Counts its batches, or fails; it sees no drift."""

    drift = SimpleNamespace(drift_detected=False, warning_detected=False)

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.batches = fails, 0

    def observe(self, observation: Observation) -> None:
        self.batches += 1
        if self.fails:
            raise RuntimeError("no disk")

    def metrics(self) -> dict[str, float]:
        return {"watched": float(self.batches)}

    def reset(self) -> None:
        self.batches = 0


def test_a_method_has_one_observer_which_is_reset_with_it() -> None:
    method, first, second = create("neo"), Observer(), Observer()
    method.attach(first)
    with pytest.raises(fozo.FozoError, match="is watched by a Observer already"):
        method.attach(second)
    method(random_images(2))
    assert method.metrics()["watched"] == 1 and second.batches == 0
    method.reset()
    assert first.batches == 0
    method.detach(second)
    assert method.observer is first
    assert method.sibling().observer is None
    method.detach()
    with pytest.raises(fozo.FozoError, match="neo has no monitor"):
        method.drift  # noqa: B018 - the attribute is what is asked about


def test_what_an_observer_returns_changes_no_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    method, observer = create("noadapt"), Observer()
    monkeypatch.setattr(observer, "observe", lambda observation: np.zeros_like(observation.logits))
    method.attach(observer)
    np.testing.assert_array_equal(method(random_images(2)), create("noadapt")(random_images(2)))


def test_an_observer_that_keeps_failing_is_logged_once_and_then_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 4: there were 600 lines for 50 frames."""
    now = [0.0]
    monkeypatch.setattr("fozo.methods.base.time.monotonic", lambda: now[0])
    method = create("noadapt")
    method.attach(Observer(fails=True))
    with caplog.at_level(logging.ERROR):
        for _ in range(50):
            method(random_images(1))
        assert len(caplog.records) == 1 and caplog.records[0].exc_info
        now[0] = 61.0
        method(random_images(1))
    assert caplog.records[1].getMessage() == "the monitor of noadapt has failed on 51 batches"


@pytest.mark.parametrize("name", ["align", "cazo", "deyo", "foa", "fozo", "neo", "sar", "t3a", "zoa"])
def test_a_frozen_method_costs_one_pass(name: str) -> None:
    method = create(name)
    method(random_images(6))
    method.freeze()
    learnt = method(random_images(6, seed=1))
    assert method.passes_per_image == 1
    method.unfreeze()
    method.reset()
    method.freeze()
    assert not np.array_equal(method(random_images(6, seed=1)), learnt)  # what was learnt is used
    assert not method.sibling().frozen and not method.clone().frozen


def test_a_journal_takes_a_path_and_the_model_as_a_file(tmp_path: Path) -> None:
    """Defect 1: 'str' object has no attribute 'spec'."""
    statistics = SAMPLE.with_suffix(".statistics.safetensors")
    method = fozo.FOZO(str(SAMPLE), str(statistics), journal=str(tmp_path / "journal"))
    images = np.random.default_rng(0).random((8, 1, 28, 28), dtype=np.float32)
    prompts = [method.prompts, *((method(images), method.prompts)[1] for _ in range(3))]
    np.testing.assert_array_equal(fozo.replay(tmp_path / "journal", batches=2), prompts[2])
    other = fozo.FOZO(SAMPLE, statistics)
    other.replay(tmp_path / "journal")
    assert all(np.array_equal(other.state()[name], method.state()[name]) for name in ("point", "pace", "average"))


def test_arguments_are_typed_as_the_docstring_offers_them(tmp_path: Path) -> None:
    """Defect 17: mypy, which reads this file, accepts a path for every argument that takes one."""

    def make(model: Model, source: str | Path) -> list[Method[Any]]:
        return [
            fozo.FOZO(model, source, journal=tmp_path / "a"),
            fozo.Align(model, source, journal=str(tmp_path / "b")),
            fozo.create("neo", model, source, journal=tmp_path / "c"),
        ]

    assert all(
        method.engine.spec.classes == 10 for method in make(SAMPLE, SAMPLE.with_suffix(".statistics.safetensors"))
    )


def test_a_black_box_has_a_journal(tmp_path: Path) -> None:
    """Defect 6: fozo.adapter(black_box, clean, journal=...) was refused."""
    path, clean = tmp_path / "journal", random_images(32)
    engine = black_box(lambda images: np.asarray(images).mean(axis=(2, 3)), name="means")
    adapter = fozo.adapter(engine, [clean], journal=path)
    states = []
    for seed in range(5):
        adapter(0.2 * random_images(6, seed=seed))
        states.append(adapter.state())
    other = adapter.clone()
    for batches in (2, 5, 1):
        other.replay(path, batches=batches)
        assert same(other.state(), states[batches - 1])
    with pytest.raises(fozo.FozoError, match="holds 5 batches, not 6"):
        other.replay(path, batches=6)
    size = path.stat().st_size
    assert size < 5 * 6 * 3 * 9 * 8 * 2 + 4000  # only rows that changed are written


@pytest.mark.parametrize("name", ["neo", "t3a", "tent", "foa"])
def test_a_journal_follows_resets_restores_failures_and_restarts(name: str, tmp_path: Path) -> None:
    path, method = tmp_path / "journal", create(name)
    method.open_journal(path)
    method(random_images(4))
    method.save(tmp_path / "state.npz")
    method.reset()
    fresh = method.sibling()
    fresh.replay(path)
    assert same(fresh.state(), method.state())
    method.restore(tmp_path / "state.npz")
    method(random_images(4, seed=1))
    state = method.state()
    with pytest.raises(fozo.FozoError):
        method(np.full((2, *method.engine.spec.image_shape), np.nan, np.float32))
    fresh.replay(path)
    assert same(fresh.state(), state)
    method(random_images(4, seed=2))
    assert method.journal is not None
    method.journal.close()
    fresh.open_journal(path)  # as after a restart
    fresh.replay(path, batches=1)  # the batches since the reset are two
    fresh(random_images(4, seed=2))
    assert same(fresh.state(), method.state()) and fresh.journal is not None and fresh.journal.batches == 2


def test_a_fork_waits_for_all_busy_methods_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 14: it waited for each of them as long."""
    methods, waits = [create("neo") for _ in range(4)], list[float]()
    busy = SimpleNamespace(acquire=lambda timeout: waits.append(timeout))
    for method in methods:
        monkeypatch.setattr(method, "lock", busy)
    monkeypatch.setattr(stateful, "time", SimpleNamespace(monotonic=lambda: sum(waits)))
    child = os.fork()
    if child == 0:
        os._exit(0 if all(method.lock.acquire(timeout=1) for method in methods) else 1)
    assert os.waitpid(child, 0)[1] == 0 and waits == [stateful.WAIT, 0, 0, 0]


def test_the_examples_of_the_documentation_keep_every_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    own, combined = (block.partition("```")[0] for block in text.split("```python\n")[1:3])
    names: dict[str, Any] = {}
    exec(own, names)
    check_method(lambda: names["Balance"](create("noadapt").engine))
    exec(combined, names)
    assert names["adapter"].inner.info.name == "foa"
