"""A state that does not fit is refused and changes nothing, also one of impossible values in the right shapes.

What every method has to refuse (names, shapes, precisions, NaN) :func:`fozo.testing.check_method` checks.
"""

import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fozo
from fozo.io import load_arrays, save_arrays
from fozo.testing import same
from fozo.types import State
from tests.helpers import random_images
from tests.methods.test_every_method import create

OPTIONS: dict[str, dict[str, Any]] = {
    "align": {"retrieval.capacity": 16},
    "fozo": {"window": 8},
    "foa": {"window": 8},
    "zoa": {"window": 8, "capacity": 2},
}
Damage = Callable[[State], dict[str, Any]]


def used(name: str) -> fozo.Method[Any]:
    """A method that has adapted to three batches."""
    method = create(name, **OPTIONS.get(name, {}))
    for seed in range(3):
        method((1 + 0.5 * seed) * random_images(6, seed=seed).astype(np.float64))
    return method


def rows(count: int, *names: str) -> Damage:
    """Give some arrays ``count`` rows."""
    return lambda state: {name: np.resize(state[name], (count, *state[name].shape[1:])) for name in names}


def value(name: str, place: int, number: float) -> Damage:
    """Put a number somewhere."""

    def damage(state: State) -> dict[str, Any]:
        array = state[name].copy()
        array.flat[place] = number
        return {name: array}

    return damage


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("align", value("variance", 3, -1.0)),
        ("align", value("variance", 3, 0.0)),
        ("align", rows(17, "mean", "variance", "descriptor", "codes", "scales", "contents")),
        ("align", rows(5, "codes")),
        ("align", value("scales", 3, -1.0)),
        ("align", lambda state: {"seen": state["seen"] + 10_000}),
        ("align", lambda state: {"mean": state["mean"].astype("float64")}),
        ("fozo", rows(2, "average")),
        ("fozo", rows(9, "window")),
        ("fozo", value("pace", 0, -1.0)),
        ("fozo", value("pace", 0, 0.5)),
        ("fozo", value("pace", 1, 0.0)),
        ("foa", rows(2, "shift")),
        ("foa", rows(9, "window")),
        ("foa", value("lengths", 0, 0.0)),
        ("foa", lambda state: {"sigma": np.array(-1.0)}),
        ("foa", lambda state: {"mirrored": np.array(2.0)}),
        ("fozo", value("point", 0, 1e200)),
        ("tent", value("norms", 0, -1e200)),
        ("zoa", rows(4, "offsets")),
        ("zoa", rows(2, "domain")),
        ("zoa", rows(9, "window")),
        ("zoa", lambda state: {"point": state["point"][1:]}),
        ("tent", lambda state: {"norms": state["norms"][:-2]}),
        ("tent", value("velocity", 0, np.inf)),
        ("sar", rows(2, "average")),
        ("eata", rows(3, "average")),
        ("deyo", lambda state: {"index": np.array(-1)}),
        ("t3a", value("labels", 0, 7)),
        ("t3a", value("labels", 0, -1)),
        ("t3a", rows(2, "labels")),
    ],
)
def test_a_state_that_means_nothing_is_refused_and_changes_nothing(tmp_path: Path, name: str, damage: Damage) -> None:
    method, untouched = used(name), used(name)
    before, metrics, spent = method.state(), method.metrics(), method.passes_per_image
    broken = before | damage(before)
    assert not same(broken, before)
    with pytest.raises(fozo.FozoError):
        method.load_state(broken)
    assert same(method.state(), before)
    path = tmp_path / "state.npz"
    method.save(path)
    header, _ = load_arrays(path, "state")
    save_arrays(path, header, broken)
    with pytest.raises(fozo.FozoError):
        method.restore(path)
    assert same(method.state(), before)
    assert method.metrics() == metrics and method.passes_per_image == spent
    for seed in range(3, 5):
        images = random_images(6, seed=seed)
        np.testing.assert_array_equal(method(images), untouched(images))


def test_a_file_without_an_array_or_with_another_header_is_refused(tmp_path: Path) -> None:
    method, path = used("align"), tmp_path / "state.npz"
    method.save(path)
    header, arrays = load_arrays(path, "state")
    before = method.state()
    save_arrays(path, header, {key: array for key, array in arrays.items() if key != "seen"})
    with pytest.raises(fozo.FozoError, match="the state lacks 'seen'"):
        method.restore(path)
    config: Any = header["config"]
    changes: list[dict[str, Any]] = [
        {"version": 1}, {"version": None}, {"config": None}, {"config": []}, {"config": {**config, "more": None}},
        {"config": {**config, "retrieval": 5}}, {"fingerprint": ["a"]}, {"classes": [1]}, {"method": {"a": 1}},
    ]  # fmt: skip
    for wrong in changes:
        save_arrays(path, {**header, **wrong}, arrays)
        with pytest.raises(fozo.FozoError, match=r"state\.npz"):
            method.restore(path)
        assert same(method.state(), before)


def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path) -> None:
    """Rows may be of any number; deflated zeros of 100 MB are not."""
    method, path = used("align"), tmp_path / "state.npz"
    method.save(path)
    _, arrays = load_arrays(path, "state")
    width = arrays["contents"].shape[1]
    with zipfile.ZipFile(path) as file:
        kept = {name: file.read(name) for name in file.namelist() if name != "contents.npy"}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in kept.items():
            file.writestr(name, data)
        with file.open("contents.npy", "w") as stream:
            shape = (25_000_000 // width, width)
            np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": shape})
            left = 4 * shape[0] * shape[1]
            while left:
                left -= stream.write(bytes(min(left, 1 << 20)))
    assert path.stat().st_size < 2e6
    before = method.state()
    tracemalloc.start()
    try:
        with pytest.raises(fozo.FozoError, match="would unpack to"):
            method.restore(path)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert same(method.state(), before)


def test_a_state_of_an_older_version_is_refused_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As fozo 0.1.0 wrote them: version 3."""
    method = used("fozo")
    with monkeypatch.context() as before:
        before.setattr("fozo.methods.common.stateful.VERSION", 3)
        method.save(tmp_path / "old.npz")
    before_state = method.state()
    with pytest.raises(fozo.FozoError, match=r"old\.npz is a state of version 3, but this fozo reads .*; remove it"):
        method.restore(tmp_path / "old.npz")
    assert same(method.state(), before_state)
