"""What a monitor remembers of its stream, in a file: after a restart it goes on as if nothing had been.

The file holds features and scores of the last images, counts, events and the last frame in gray. What the monitor says
follows from these, so it is not kept.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.io import ArraySpec, load_arrays
from fozo.monitor.drift import DriftDetector
from fozo.monitor.event import EVENTS, Event
from fozo.monitor.faults import FaultDetector, thumbnail_shape
from fozo.monitor.shadow import PAIRS, Shadow
from fozo.types import Array

if TYPE_CHECKING:
    from fozo.monitor.monitor import Monitor

KIND, VERSION = "monitor state", 2
LONGEST = 1 << 16
"""Images that may be remembered: as many as a batch may have."""
LARGEST = 1e12

Arrays = dict[str, npt.NDArray[np.generic]]


def owner(monitor: Monitor) -> dict[str, object]:
    """Say what has to be the same for a memory to be gone on from."""
    reference = monitor.reference
    clean = [reference.clean.images, reference.clean.length]
    return {"fingerprint": reference.fingerprint, "method": reference.method, "clean": clean}


def memory_of(monitor: Monitor) -> tuple[dict[str, object], Arrays]:
    """Put it into JSON and arrays."""
    drift, drift_arrays = monitor.detector.memory()
    faults, fault_arrays = monitor.faults.memory()
    due, pairs = monitor.shadow.memory()
    header: dict[str, object] = {
        "kind": KIND, "version": VERSION, "model": monitor.reference.model, **owner(monitor),
        "images": monitor.status.images, "guarding": monitor.status.guarding, "told": monitor._told,
        "drift": drift, "faults": faults, "due": due,
        "events": [asdict(replace(event, thumbnails={})) for event in monitor.events],
    }  # fmt: skip
    arrays: Arrays = {"features": monitor._features, "shown": monitor._shown, "pairs": pairs}
    return header, arrays | drift_arrays | fault_arrays


def recall(monitor: Monitor, path: str | os.PathLike[str]) -> None:
    """Read it, check it, and put it in force: all of it or nothing."""
    try:
        header, found = load_arrays(path, KIND, partial(_check, monitor, os.fspath(path)))
        facts: Any = header
        arrays: dict[str, Array] = {name: array.astype(np.float64) for name, array in found.items()}
        for name, array in arrays.items():
            # Who gives no clock has no times.
            if not (np.abs(array) <= LARGEST).all() and not (name == "times" and np.isnan(array).all()):
                raise ValueError(f"{name} has values that are not finite")
        detector = DriftDetector(monitor.reference.clean, monitor.detector.rate, monitor.detector.content)
        detector.recall(facts["drift"], arrays)
        faults, shadow = FaultDetector(), Shadow(monitor.shadow_rate)
        faults.recall(facts["faults"], arrays)
        due, images, guarding = float(facts["due"]), facts["images"], facts["guarding"]
        if not 0 <= due < 1 or type(images) is not int or images < 0 or type(guarding) is not bool:
            raise ValueError("its counts are none")
        shadow.recall(due, arrays["pairs"])
        told = None if facts["told"] is None else tuple(map(str, facts["told"]))
        events = [_event(each) for each in facts["events"]]
    except FozoError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise FozoError(
            f"{os.fspath(path)} holds a damaged memory of a monitor ({type(error).__name__}: {error}); go on without it"
        ) from error
    monitor.detector, monitor.faults, monitor.shadow = detector, faults, shadow
    monitor._features, monitor._shown, monitor._told = arrays["features"], arrays["shown"], told
    monitor.events.clear()
    monitor.events.extend(events[-EVENTS:])
    monitor.status = monitor._say(images, guarding)


def _event(facts: Mapping[str, Any]) -> Event:
    numbers = {str(name): float(value) for name, value in facts["facts"].items()}
    return Event(str(facts["name"]), int(facts["image"]), float(facts["time"]), str(facts["text"]), numbers)


def _check(monitor: Monitor, path: str, header: Mapping[str, object], specs: Mapping[str, ArraySpec]) -> None:
    """Refuse another version, owner, or shapes that do not go together, before an array is read."""
    if header.get("version") != VERSION:
        raise FozoError(f"{path} is a monitor's memory of version {header.get('version')!r}, where {VERSION} is needed")
    for name, value in owner(monitor).items():
        if header.get(name) != value:
            raise FozoError(
                f"{path} is the memory of another monitor ({name} is {header.get(name)!r}, not {value!r}); restore it "
                f"into one with the same model, method and reference"
            )
    size = monitor.adapter.engine.spec.image_size
    width, count = monitor.looker.width, specs["features"].shape[:1]
    rows = specs["rows"].shape[:1]
    wanted = {
        "features": (*count, width), "shown": (*count, 3), "pairs": (*specs["pairs"].shape[:1], 7),
        "rows": (*rows, width), "times": rows, "drifted": (width,), "previous": size, "scene": thumbnail_shape(size),
    }  # fmt: skip
    for name, spec in specs.items():
        if spec.shape != wanted.get(name) or spec.dtype.kind != "f" or spec.shape[0] > LONGEST:
            raise ValueError(f"{name} is {spec.dtype} of shape {list(spec.shape)}")
    if specs["pairs"].shape[0] > PAIRS:
        raise ValueError(f"it has {specs['pairs'].shape[0]} pairs, where {PAIRS} are remembered")
