"""A monitor that is restarted goes on as if it never stopped."""

from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.monitor import Event
from fozo.state import leaves, rebuild, same
from fozo.types import Floats
from tests.monitor.conftest import BATCH, Material, guarded, run, watched


def reports(adapter: fozo.Method[Any, Any], monitor: fozo.Monitor, images: Floats) -> list[object]:
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


@pytest.mark.parametrize("guard", [False, True])
@pytest.mark.parametrize("cut", [0, 2, 5, 8, 10])
def test_what_is_said_is_the_same_to_the_bit(
    material: Material, stream: Floats, tmp_path: Path, cut: int, guard: bool
) -> None:
    """One file keeps the adapter's state and the monitor's memory."""
    seconds = count()
    options: dict[str, Any] = {"clock": lambda: float(next(seconds)), "shadow": 0.3}
    adapter, monitor = (guarded if guard else watched)(material, **options)
    reports(adapter, monitor, stream[: cut * BATCH])
    before = monitor.status
    adapter.save(tmp_path / "state")
    expected = reports(adapter, monitor, stream[cut * BATCH :])
    all_events = monitor.events
    seconds = count(cut)
    adapter, monitor = (guarded if guard else watched)(material, **options)
    adapter.restore(tmp_path / "state")
    assert monitor.status == before
    assert reports(adapter, monitor, stream[cut * BATCH :]) == expected
    assert monitor.events == all_events and {"drift", "frozen"} <= {event.name for event in all_events}
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_the_memory_of_another_reference_is_left_out(
    material: Material, stream: Floats, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    adapter, _ = watched(material)
    run(adapter, stream[:64])
    adapter.save(tmp_path / "state")
    clean = replace(material.reference.clean, images=material.reference.clean.images + 1)
    other = material.adapter.clone()
    begun = fozo.Monitor(replace(material.reference, clean=clean)).watch(other)
    other.restore(tmp_path / "state")
    assert "has no memory of this monitor" in caplog.text and begun.status.images == 0
    assert same(other.state(), adapter.state())
    guard, _ = guarded(material)
    guard.save(tmp_path / "guarded")
    different = fozo.Guarded(adapter.clone(), fozo.Monitor(replace(material.reference, clean=clean)))
    with pytest.raises(FozoError, match=r"saved with monitor\.reference"):
        different.restore(tmp_path / "guarded")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"images": -1}, "counts start at 0"),
        ({"images": 3}, "fewer images than"),
        ({"drift.seen": 1}, "fewer images than"),
        ({"drift.drift.since": 500}, "fewer images than it remembers"),
        ({"drift.drift.since": None}, "a drift without a date"),
        ({"drift.drift.drift_detected": False}, "a date without a drift"),
        ({"pairs": ...}, "lacks 'pairs'"),
        ({"more": np.zeros(3)}, "holds 'more'"),
        ({"features": lambda rows: rows[1:]}, "'predictions' is float64 of shape"),
        ({"faults.previous": np.zeros((1, 9, 9), np.float32)}, "'faults.previous' is float32"),
        ({"faults.began": lambda began: began + 10_000}, "faults of frames that were never seen"),
        ({"drift.features": lambda rows: np.inf * rows}, "not finite"),
        ({"due": 1.5}, "its monitor has"),
        ({"reported_kinds.0": 7}, "'reported_kinds.0' is 7"),
        ({"events.length": 10**9}, "lacks 'events"),
        ({"events.0.name": 3}, "'events.0.name' is 3"),
        ({"guarding": 1}, "'guarding' is 1"),
    ],
)
def test_what_does_not_fit_is_refused(material: Material, stream: Floats, damage: dict[str, Any], message: str) -> None:
    adapter, monitor = guarded(material, shadow=0.3)
    run(adapter, stream[: 6 * BATCH])
    values: dict[str, Any] = dict(leaves(adapter.state().monitor))
    assert values["drift.drift.drift_detected"] and values["events.length"]
    for path, change in damage.items():
        if change is ...:
            del values[path]
        else:
            values[path] = change(values[path]) if callable(change) else change
    with pytest.raises(FozoError, match=message):
        rebuild(monitor.init(), values)


def remembered(adapter: fozo.Method[Any, Any], monitor: fozo.Monitor, path: Path) -> list[object]:
    adapter.save(path)
    return [path.read_bytes(), adapter.metrics(), monitor.status, monitor.status.passes_per_image]


@pytest.mark.parametrize("guard", [False, True])
def test_a_batch_that_the_monitor_failed_on_raises_no_event_again(
    material: Material, stream: Floats, caplog: pytest.LogCaptureFixture, guard: bool
) -> None:
    raised: list[Event] = []
    adapter, monitor = (guarded if guard else watched)(material, on_event=raised.append)
    run(adapter, stream[: 4 * BATCH])
    assert [event.name for event in raised] == ["drift"] and monitor.status.raised == tuple(raised)
    monitor.clock = lambda: 1 / 0
    assert adapter(stream[4 * BATCH : 5 * BATCH]).shape == (BATCH, 10)
    assert len(raised) == 1 and f"the monitor of {adapter.info.name} failed" in caplog.text
    assert monitor.drift.drift_detected and monitor.status.images == 4 * BATCH


def test_a_frozen_guard_gathers_no_evidence(material: Material, stream: Floats) -> None:
    adapter, monitor = guarded(material, shadow=1.0)
    run(adapter, stream[:64])
    state = adapter.state()
    status = monitor.status
    adapter.freeze()
    assert adapter(stream[64:80]).shape == (16, 10) and adapter.passes_per_image == 1
    assert same(adapter.state(), state) and monitor.status is status
    assert adapter.predict(stream[64:80]).shape == (16, 10) and monitor.status is status
