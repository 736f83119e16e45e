"""A monitor that is restarted goes on as if it never stopped."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays
from fozo.types import Floats
from tests.monitor.conftest import BATCH, Material, watched


def told(adapter: fozo.Method[Any], monitor: fozo.Monitor, images: Floats) -> list[object]:
    """All that is said after each batch, and what is returned."""
    said: list[object] = []
    for start in range(0, len(images), BATCH):
        said += [adapter(images[start : start + BATCH]).tobytes(), monitor.status, monitor.metrics()]
    return said


@pytest.fixture(scope="module")
def stream(material: Material) -> Floats:
    """Clean, then fog, then a frozen frame: something begins before and ends after each place it is cut at."""
    parts = [material.images(slice(400, 448)), material.images(slice(448, 512), "fog", 4)]
    frozen = np.repeat(material.images(slice(512, 513)), 2 * BATCH, axis=0)
    return np.concatenate([*parts, frozen, material.images(slice(520, 552))])


@pytest.fixture(scope="module")
def saved(material: Material, stream: Floats, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("memory") / "monitor.npz"
    adapter, monitor = watched(material, clock=map(float, count()).__next__, shadow=0.3)
    told(adapter, monitor, stream[: 8 * BATCH])
    monitor.save(path)
    return path


@pytest.mark.parametrize("cut", [0, 2, 5, 8, 10])
def test_what_is_said_is_the_same_to_the_bit(material: Material, stream: Floats, tmp_path: Path, cut: int) -> None:
    seconds = count()
    options: dict[str, Any] = {"clock": lambda: float(next(seconds)), "shadow": 0.3}
    adapter, monitor = watched(material, **options)
    told(adapter, monitor, stream[: cut * BATCH])
    before, events = monitor.status, list(monitor.events)
    monitor.save(tmp_path / "monitor.npz")
    adapter.save(tmp_path / "state.npz")
    expected = told(adapter, monitor, stream[cut * BATCH :])
    all_events = list(monitor.events)
    seconds = count(cut)
    adapter, monitor = watched(material, **options)
    adapter.restore(tmp_path / "state.npz")
    monitor.restore(tmp_path / "monitor.npz")
    assert monitor.status == before and list(monitor.events) == events
    assert told(adapter, monitor, stream[cut * BATCH :]) == expected
    assert list(monitor.events) == all_events and {"drift", "frozen"} <= {event.name for event in all_events}


Damage = Callable[[dict[str, Any], dict[str, Any]], object]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda header, arrays: header.update(version=99), "of version 99"),
        (lambda header, arrays: header.update(kind="state"), "where 'monitor state' is needed"),
        (lambda header, arrays: header.update(fingerprint="x"), "of another monitor"),
        (lambda header, arrays: header.update(clean=[3, 4.0]), "of another monitor"),
        (lambda header, arrays: header.update(due=2.0), "its counts are not valid"),
        (lambda header, arrays: header.update(images=-1), "its counts are not valid"),
        (lambda header, arrays: header.update(guarding=1), "its counts are not valid"),
        (lambda header, arrays: header.update(told=7), "damaged monitor state"),
        (lambda header, arrays: header.update(events=[{"name": "drift"}]), "damaged monitor state"),
        (lambda header, arrays: header["drift"].update(seen=1), "fewer images than it remembers"),
        (lambda header, arrays: header["drift"]["drift"].update(drift_detected=False, since=3), "no beginning"),
        (lambda header, arrays: header["drift"]["drift"].update(distance=1e999), "which is not JSON"),
        (lambda header, arrays: header["faults"].update(faults={"rain": 1}), "other faults"),
        (lambda header, arrays: header.pop("faults"), "damaged monitor state"),
        (lambda header, arrays: arrays.pop("pairs"), "not a readable fozo file"),
        (lambda header, arrays: arrays.update(pairs=np.zeros((1000, 7))), "the limit is 128"),
        (lambda header, arrays: arrays.update(more=np.zeros(3)), "not a readable fozo file"),
        (lambda header, arrays: arrays.update(features=arrays["features"][1:]), "not a readable fozo file"),
        (lambda header, arrays: arrays.update(previous=np.zeros((9, 9))), "not a readable fozo file"),
        (lambda header, arrays: arrays.update(rows=np.inf * arrays["rows"]), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(
    material: Material, stream: Floats, saved: Path, tmp_path: Path, damage: Damage, message: str
) -> None:
    header, arrays = load_arrays(saved, "monitor state")
    damage(header, arrays)
    save_arrays(tmp_path / "damaged.npz", header, arrays)
    adapter, monitor = watched(material)
    adapter(stream[:BATCH])
    before, state = monitor.status, monitor.state()
    with pytest.raises(FozoError, match=message):
        monitor.restore(tmp_path / "damaged.npz")
    assert monitor.status is before and monitor.state().header == state.header


def test_a_file_that_was_saved_is_small(saved: Path) -> None:
    assert saved.stat().st_size < 200_000
