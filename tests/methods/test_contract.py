"""What the base class promises beside predictions: observers, freezing, journals, and arguments as users have them."""

import copy
import logging
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.data import sample
from fozo.engines.blackbox import black_box
from fozo.io import encode
from fozo.methods import registry
from fozo.methods.observer import Observation, Observer
from fozo.state import State, diff, leaves, same
from fozo.testing import check_method
from tests.helpers import random_images
from tests.methods.test_every_method import create
from tests.refusals import refuses

SAMPLE = sample.MODELS["float32"]


@dataclass(frozen=True)
class Count(State):
    """Batches seen."""

    batches: int = 0


class Counting(Observer[Count]):
    """Counts its batches, or fails; it sees no drift."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails

    def init(self) -> Count:
        return Count()

    def update(self, state: Count, observation: Observation) -> tuple[Count, Any]:
        if self.fails:
            raise RuntimeError("no disk")
        drift = SimpleNamespace(drift_detected=False, warning_detected=False)
        seen = state.batches + 1
        return Count(seen), SimpleNamespace(drift=drift, metrics=lambda: {"watched": float(seen)})


def test_a_method_has_one_observer_which_is_reset_with_it() -> None:
    method = create("neo")
    first = Counting()
    method.attach(first)
    refuses("is watched by a Counting already", method.attach, Counting())
    method(random_images(2))
    assert method.metrics()["watched"] == 1 and not method.drift.drift_detected
    method.reset()
    method(random_images(2))
    assert method.metrics()["watched"] == 1
    method.detach(Counting())
    method(random_images(2))
    assert method.metrics()["watched"] == 2
    assert method.clone().reading is None
    method.detach()
    with pytest.raises(fozo.FozoError, match="neo has no monitor"):
        method.drift  # noqa: B018 - the attribute is what is asked about


def test_what_an_observer_remembers_is_saved_with_the_method(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    method = create("neo")
    method.attach(Counting())
    for seed in range(3):
        method(random_images(2, seed=seed))
    method.save(tmp_path / "state")
    other = create("neo")
    other.restore(tmp_path / "state")  # without an observer, what one remembered is left out
    assert same(other.state(), method.state())
    other.attach(Counting())
    other.restore(tmp_path / "state")
    other(random_images(2))
    assert other.metrics()["watched"] == 4 and not caplog.records

    class Another(Counting):
        """Of another reference."""

    third = create("neo")
    third.attach(Another())
    third.restore(tmp_path / "state")
    third(random_images(2))
    assert third.metrics()["watched"] == 1 and "has no memory of this monitor" in caplog.text


def test_a_batch_that_raises_was_not_observed() -> None:
    method = create("neo")
    method.attach(Counting())
    method(random_images(2))
    with pytest.raises(fozo.FozoError):
        method(np.full((2, *method.engine.spec.image_shape), np.nan, np.float32))
    method(random_images(2))
    assert method.metrics()["watched"] == 2


def test_an_observer_that_keeps_failing_is_logged_once_and_then_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 4: there were 600 lines for 50 frames."""
    now = [0.0]
    monkeypatch.setattr("fozo.methods.observer.time.monotonic", lambda: now[0])
    method = create("noadapt")
    method.attach(Counting(fails=True))
    with caplog.at_level(logging.ERROR):
        for _ in range(50):
            logits = method(random_images(1))
        assert len(caplog.records) == 1 and caplog.records[0].exc_info
        now[0] = 61.0
        method(random_images(1))
    np.testing.assert_array_equal(logits, create("noadapt")(random_images(1)))
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
    assert not method.clone().frozen


def test_a_journal_takes_a_path_and_the_model_as_a_file(tmp_path: Path) -> None:
    """Defect 1: 'str' object has no attribute 'spec'."""
    statistics = SAMPLE.with_suffix(".statistics.safetensors")
    method = fozo.FOZO(str(SAMPLE), str(statistics), journal=str(tmp_path / "journal"))
    images = np.random.default_rng(0).random((8, 1, 28, 28), dtype=np.float32)
    prompts = [method.prompts, *((method(images), method.prompts)[1] for _ in range(3))]
    np.testing.assert_array_equal(fozo.replay_prompts(tmp_path / "journal", batches=2), prompts[2])
    other = fozo.FOZO(SAMPLE, statistics)
    other.replay(tmp_path / "journal")
    assert same(other.state().spsa, method.state().spsa)


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
    refuses("holds 5 batches, not 6", other.replay, path, batches=6)
    size = path.stat().st_size
    assert size < 5 * 6 * 3 * 9 * 8 * 2 + 4000  # only rows that changed are written


@pytest.mark.parametrize("name", ["neo", "t3a", "tent", "foa", "fozo", "align"])
def test_a_journal_follows_resets_restores_failures_and_restarts(name: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    method = create(name)
    method.open_journal(path)
    method(random_images(4))
    method.save(tmp_path / "state")
    method.reset()
    fresh = method.clone()
    fresh.replay(path)
    assert not diff(fresh.state(), method.journaled(method.state()))
    method.restore(tmp_path / "state")  # of a batch that the journal has gone back from
    refuses("holds 0 batches", method, random_images(4, seed=1))
    method.reset()
    method(random_images(4, seed=1))
    state = method.state()
    with pytest.raises(fozo.FozoError):
        method(np.full((2, *method.engine.spec.image_shape), np.nan, np.float32))
    fresh.replay(path)
    assert not diff(fresh.state(), method.journaled(state))
    method(random_images(4, seed=2))
    method.close()
    fresh.replay(path, batches=1)
    fresh.open_journal(path)  # as after a restart
    fresh(random_images(4, seed=2))
    other = method.clone()
    other.replay(path)
    assert not diff(other.state(), fresh.journaled(fresh.state()))


def test_a_journal_follows_a_state_that_was_loaded(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    for name in ("neo", "fozo"):
        with create(name, journal=path) as method:
            method(random_images(4))
            early = method.state()
            method(random_images(4, seed=1))
            method.load_state(early)
            method(random_images(4, seed=2))
        other = method.clone()
        other.replay(path)
        assert not diff(other.state(), method.journaled(method.state()))
        path.unlink()


def test_a_journal_of_the_last_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(encode({"kind": "fozo journal", "method": "neo"}))
    refuses(r"is of fozo 0.2, which this version does not read", create, "neo", journal=path)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("align", "slots.0.images", -1.0), ("equalise", "memory.variance", -1.0),
        ("fozo", "spsa.schedule.epsilon", 0.0), ("foa", "search.sigma", -1.0),
        ("foa", "search.lengths", 0.0), ("t3a", "labels", 7), ("t3a", "labels", -1), ("gain", "mass", -1.0),
        ("tent", "norms", 1e35), ("deyo", "batches", -1),
    ],
)  # fmt: skip
def test_a_state_that_means_nothing_is_refused(tmp_path: Path, name: str, path: str, value: float) -> None:
    method = create(name)
    method(random_images(6))
    before = method.state()
    values = dict(leaves(before))
    known = values[path]
    values[path] = np.full_like(known, value) if isinstance(known, np.ndarray) else value
    forged = _unchecked(before, values)
    with pytest.raises(fozo.FozoError):
        method.load_state(forged)
    assert same(method.state(), before)


def _unchecked(value: Any, values: dict[str, Any], path: str = "") -> Any:
    """The same state with other values, however wrong."""
    if isinstance(value, tuple):
        return tuple(_unchecked(item, values, f"{path}.{index}") for index, item in enumerate(value))
    if not isinstance(value, State):
        return values.get(path, value)
    forged = copy.copy(value)
    for field in fields(value):
        inner_path = f"{path}.{field.name}".removeprefix(".")
        object.__setattr__(forged, field.name, _unchecked(getattr(value, field.name), values, inner_path))
    return forged


def test_the_examples_of_the_documentation_keep_every_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    text = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
    own, combined = (block.partition("```")[0] for block in text.split("```python\n")[1:3])
    names: dict[str, Any] = {}
    exec(own, names)
    check_method(lambda: names["Balance"](create("noadapt").engine))
    exec(combined, names)
    assert names["adapter"].inner.info.name == "fozo"
