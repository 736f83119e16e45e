"""A monitor that is restarted goes on as if it never stopped."""

import json
import math
import os
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays
from fozo.types import Floats
from tests.monitor.conftest import BATCH, Material, run, watched


def reports(adapter: fozo.Method[Any], monitor: fozo.Monitor, images: Floats) -> list[object]:
    """All that is reported after each batch, and what is returned."""
    found: list[object] = []
    for start in range(0, len(images), BATCH):
        found += [adapter(images[start : start + BATCH]).tobytes(), monitor.status]
    return found


@pytest.fixture(scope="module")
def stream(material: Material) -> Floats:
    """Clean, then fog, then a frozen frame: something begins before and ends after each cut."""
    parts = [material.images(slice(400, 448)), material.images(slice(448, 512), "fog", 4)]
    frozen = np.repeat(material.images(slice(512, 513)), 2 * BATCH, axis=0)
    return np.concatenate([*parts, frozen, material.images(slice(520, 552))])


@pytest.fixture(scope="module")
def saved(material: Material, stream: Floats, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "monitor.npz"
    adapter, monitor = watched(material, clock=map(float, count()).__next__, shadow=0.3)
    reports(adapter, monitor, stream[: 8 * BATCH])
    monitor.save(path)
    assert path.stat().st_size < 200_000
    return path


@pytest.mark.parametrize("cut", [0, 2, 5, 8, 10])
def test_what_is_said_is_the_same_to_the_bit(material: Material, stream: Floats, tmp_path: Path, cut: int) -> None:
    seconds = count()
    options: dict[str, Any] = {"clock": lambda: float(next(seconds)), "shadow": 0.3}
    adapter, monitor = watched(material, **options)
    reports(adapter, monitor, stream[: cut * BATCH])
    before, events = monitor.status, list(monitor.events)
    monitor.save(tmp_path / "monitor.npz")
    adapter.save(tmp_path / "state.npz")
    expected = reports(adapter, monitor, stream[cut * BATCH :])
    all_events = list(monitor.events)
    seconds = count(cut)
    adapter, monitor = watched(material, **options)
    adapter.restore(tmp_path / "state.npz")
    monitor.restore(tmp_path / "monitor.npz")
    assert monitor.status == before and list(monitor.events) == events
    assert reports(adapter, monitor, stream[cut * BATCH :]) == expected
    assert list(monitor.events) == all_events and {"drift", "frozen"} <= {event.name for event in all_events}


Damage = Callable[[dict[str, Any], dict[str, Any]], object]


def with_log(**changes: object) -> Damage:
    def damage(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        log = json.loads(arrays["log"].tobytes()) | changes
        arrays["log"] = np.frombuffer(json.dumps(log).encode(), np.uint8)

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda header, arrays: header.update(version=2), "of version 2"),
        (lambda header, arrays: header.update(kind="answers"), "where 'state' is needed"),
        (lambda header, arrays: header.update(method="align"), "saved with method='align'"),
        (lambda header, arrays: header.update(fingerprint="x"), "saved with fingerprint='x'"),
        (lambda header, arrays: header.update(reference=[3, 4.0]), r"saved with reference=\[3, 4.0\]"),
        (lambda header, arrays: arrays.update(images=np.array(-1)), "counts start at 0"),
        (lambda header, arrays: arrays.update(seen=np.array(1)), "fewer images than it remembers"),
        (lambda header, arrays: arrays.update(since=np.array([500.0, 0.0])), "fewer images than it remembers"),
        (lambda header, arrays: arrays.update(since=np.array([5.0])), "damaged"),
        (lambda header, arrays: arrays.pop("pairs"), "lacks 'pairs'"),
        (lambda header, arrays: arrays.update(more=np.zeros(3)), "holds 'more'"),
        (lambda header, arrays: arrays.update(features=arrays["features"][1:]), "'predictions' is float64 of shape"),
        (lambda header, arrays: arrays.update(previous=np.zeros((1, 9, 9), np.float32)), "'previous' is float32"),
        (lambda header, arrays: arrays.update(rows=np.inf * arrays["rows"]), "not finite"),
        (lambda header, arrays: arrays.update(log=np.zeros(3, np.uint8)), "damaged"),
        (with_log(reported=7), "reported of the log"),
        (with_log(events=[{"name": "drift"}]), "lacks 'image'"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    material: Material, stream: Floats, saved: Path, tmp_path: Path, damage: Damage, message: str
) -> None:
    header, arrays = load_arrays(saved, "state")
    damage(header, arrays)
    save_arrays(tmp_path / "damaged.npz", header, arrays)
    adapter, monitor = watched(material)
    adapter(stream[:BATCH])
    before, state = monitor.status, monitor.state()
    with pytest.raises(FozoError, match=message):
        monitor.restore(tmp_path / "damaged.npz")
    assert monitor.status is before and all(np.array_equal(state[name], a) for name, a in monitor.state().items())


def remembered(adapter: fozo.Method[Any], monitor: fozo.Monitor) -> list[object]:
    arrays = {**adapter.state(), **{f"monitor.{name}": array for name, array in monitor.state().items()}}
    numbers = adapter.metrics(), monitor.status, list(monitor.events), monitor.passes_per_image
    return [{name: array.tobytes() for name, array in arrays.items()}, *numbers]


def interrupted(adapter: fozo.Method[Any], images: Floats, after: float) -> int | None:
    """Call an adapter and raise as Ctrl-C does after so many lines of fozo; the lines, if it was done before."""
    lines = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if f"{os.sep}fozo{os.sep}" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        if lines > after:
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        adapter(images)
        return lines
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(None)


@pytest.mark.parametrize("guard", [False, True])
def test_a_call_that_is_interrupted_has_changed_nothing(material: Material, stream: Floats, guard: bool) -> None:
    """Wherever Ctrl-C comes: neither the adapter nor its monitor, and both go on as if it had never been called."""
    made = [watched(material, shadow=0.3, clock=lambda: 1.0) for _ in range(2)]
    (adapter, monitor), (other, untouched) = (
        (fozo.Guarded(method, its), its) if guard else (method, its) for method, its in made
    )
    for method in (adapter, other):
        run(method, stream[:32])
    total = interrupted(adapter, stream[32:48], math.inf)
    other(stream[32:48])
    assert total is not None and total > 200
    before = remembered(adapter, monitor)
    points = np.random.default_rng(0).choice(total, 60, replace=False).tolist()
    for after in [*points, *range(total - 20, total)]:
        assert interrupted(adapter, stream[48:64], after) is None, after
        assert remembered(adapter, monitor) == before, after
    np.testing.assert_array_equal(adapter(stream[48:64]), other(stream[48:64]))
    assert remembered(adapter, monitor) == remembered(other, untouched)


@pytest.mark.parametrize("where", ["_compare", "_update_status", "_raise"])
def test_a_monitor_that_is_interrupted_undoes_the_batch(
    material: Material, stream: Floats, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    adapter, monitor = watched(material, shadow=0.3)
    run(adapter, stream[:48])
    before, real = remembered(adapter, monitor), getattr(fozo.Monitor, where)

    def interrupt(*given: Any) -> None:
        real(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fozo.Monitor, where, interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(adapter, stream[48:64])
    assert remembered(adapter, monitor) == before
