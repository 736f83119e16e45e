"""State as a value: what is saved is read back bit for bit, what is damaged is refused in one sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from fozo import FozoError, Statistics
from fozo.data import sample
from fozo.state import (
    Measured,
    State,
    derived,
    diff,
    leaves,
    load,
    patch,
    ragged,
    rebuild,
    same,
    save,
    seal,
)
from fozo.types import Array
from tests.refusals import refuses

OWNER = {"method": "tree", "config": {"passes": 2, "schedule": {"rate": 0.5}}}


@dataclass(frozen=True)
class Leafy(State):
    """Numbers, texts and arrays of a fixed shape."""

    point: Array
    count: int
    rate: float
    loss: float | None
    started: bool
    name: str

    def __post_init__(self) -> None:
        """Refuse a rate that no run has."""
        if self.rate < 0:
            raise ValueError(f"a rate of {self.rate}")


@dataclass(frozen=True)
class Tree(State):
    """One field of every kind."""

    leaf: Leafy
    range: tuple[tuple[float, ...], tuple[float, ...]] | None
    by_name: Mapping[str, Array]
    kinds: tuple[str, ...]
    flags: npt.NDArray[np.bool_]
    window: Array
    rows: npt.NDArray[np.float32] = ragged("images")
    codes: npt.NDArray[np.uint8] = ragged("images")
    cache: list[int] | None = derived()


finite = st.floats(-1e20, 1e20)
words = st.text("abc xyz.é", max_size=6)


def array(dtype: Any, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    elements = {"elements": st.floats(-1e6, 1e6, width=32)} if np.dtype(dtype).kind == "f" else {}
    return arrays_of.arrays(dtype, shape, **elements)  # type: ignore[call-overload, no-any-return]


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    images = draw(st.integers(0, 5))
    leaf = Leafy(
        point=draw(array(np.float64, (2, 3))),
        count=draw(st.integers(0, 2**53)),
        rate=draw(st.floats(0, 1e20)),
        loss=draw(st.none() | finite),
        started=draw(st.booleans()),
        name=draw(words),
    )
    pair = st.tuples(st.tuples(finite, finite), st.tuples(finite, finite))
    return Tree(
        leaf=leaf,
        range=draw(st.none() | pair),
        by_name={name: draw(array(np.float64, (2,))) for name in ("cls", "blocks.0.norm")},
        kinds=tuple(draw(st.lists(words, max_size=3))),
        flags=draw(array(np.bool_, (4,))),
        rows=draw(array(np.float32, (images, 3))),
        codes=draw(array(np.uint8, (images, 2, 2))),
        window=draw(array(np.float64, (3,))),
        cache=[1, 2, 3],
    )


@settings(max_examples=60, deadline=None)
@given(trees(), trees())
def test_what_was_saved_is_read_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, tree: Tree, like: Tree
) -> None:
    path = tmp_path_factory.mktemp("state") / "state"
    save(path, tree, OWNER)
    read = load(path, like, OWNER)
    assert same(read, tree) and read.cache is None
    assert path.stat().st_mode & 0o777 == 0o600


@settings(max_examples=60, deadline=None)
@given(trees(), trees())
def test_a_difference_leads_from_one_value_to_the_other(old: Tree, new: Tree) -> None:
    changes = json.loads(json.dumps(diff(old, new)))
    after = patch(old, changes)
    assert same(after, new)
    assert not diff(new, new)


@given(st.integers(1, 6), st.integers(0, 9), st.integers(1, 6))
def test_of_a_window_only_the_rows_that_came_in_are_written(kept: int, new: int, width: int) -> None:
    numbers = np.random.default_rng(0).standard_normal((20, width)).astype(np.float32)
    old = _windowed(numbers[:kept])
    moved = _windowed(numbers[min(new, kept) : kept + new][:kept])
    change = diff(old, moved).get("rows", {"at": []})
    assert len(change["at"]) <= new
    assert same(patch(old, diff(old, moved)), moved)


def _windowed(rows: npt.NDArray[np.float32]) -> Tree:
    codes = np.zeros((len(rows), 2, 2), np.uint8)
    leaf = Leafy(np.zeros((2, 3)), 0, 0.0, None, False, "")
    return Tree(leaf, None, {}, (), np.zeros(4, np.bool_), np.zeros(3), rows, codes)


def test_the_fields_viewers_open_a_file(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    tree = _windowed(np.ones((2, 3), np.float32))
    save(tmp_path / "state.safetensors", tree, OWNER)
    tensors = numpy.load_file(tmp_path / "state.safetensors")
    assert set(tensors) == {"leaf.point", "flags", "rows", "codes", "window"}
    np.testing.assert_array_equal(tensors["rows"], tree.rows)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"leaf.count": -1}, "counts start at 0"),
        ({"leaf.count": 2**60}, "end at 2[*][*]53"),
        ({"leaf.count": 1.0}, "wrong type"),
        ({"leaf.count": True}, "wrong type"),
        ({"leaf.rate": -1.0}, "a rate of -1.0"),
        ({"leaf.rate": float("nan")}, "not finite"),
        ({"leaf.rate": 1e300}, "not finite"),
        ({"leaf.loss": "much"}, "wrong type"),
        ({"leaf.name": None}, "wrong type"),
        ({"leaf.point": 1.0}, "not an array"),
        ({"leaf.point": np.zeros((3, 2))}, r"of shape \[3, 2\], where float64 of shape \[2, 3\]"),
        ({"leaf.point": np.full((2, 3), np.inf)}, "not finite"),
        ({"rows": np.zeros((3, 3), np.float32)}, r"'codes' is uint8 of shape \[2, 2, 2\]"),
        ({"rows": np.zeros((2, 3))}, "float64 of shape"),
        ({"by_name.names": "cls"}, "lacks 'by_name.cls'"),
        ({"by_name.names": 5}, "wrong type"),
        ({"kinds.length": 10**9}, "lacks 'kinds.0'"),
        ({"more": 1}, "holds 'more'"),
        ({"range": 5}, "lacks 'range.length'"),
    ],
)
def test_values_that_no_state_has_are_refused_in_one_sentence(values: dict[str, Any], what: str) -> None:
    tree = _windowed(np.ones((2, 3), np.float32))
    refuses(what, rebuild, tree, {**dict(leaves(tree)), **values})
    refuses("lacks 'window'", rebuild, tree, {path: leaf for path, leaf in leaves(tree) if path != "window"})


def test_thousands_of_damaged_files_are_refused(tmp_path: Path) -> None:
    """Bytes changed, cut off and repeated: a file is read whole, or refused in one sentence."""
    tree = _windowed(np.ones((2, 3), np.float32))
    path = tmp_path / "state"
    save(path, tree, OWNER)
    whole = path.read_bytes()
    numbers = np.random.default_rng(0)
    for _ in range(2000):
        data = bytearray(whole)
        kind = numbers.integers(3)
        where = int(numbers.integers(len(data)))
        if kind == 0:
            data[where] ^= int(numbers.integers(1, 256))
        elif kind == 1:
            del data[where:]
        else:
            data[where:where] = data[where : where + int(numbers.integers(1, 64))]
        path.write_bytes(data)
        try:
            assert same(load(path, tree, OWNER), tree)
        except FozoError as error:
            assert "\n" not in str(error) and str(path) in str(error)


def test_thousands_of_forged_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a checksum that is right: names, types, sizes and places that no run writes."""
    monkeypatch.setattr("fozo.state._checksum", lambda about, tensors, chunks: 0)
    tree = _windowed(np.ones((2, 3), np.float32))
    path = tmp_path / "state"
    save(path, tree, OWNER)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    numbers = np.random.default_rng(1)
    junk: list[Any] = [
        None,
        -1,
        0,
        10**30,
        1e308,
        float("nan"),
        "",
        "F64",
        [],
        [0],
        [-1, 2],
        [1 << 60],
        {},
        {"a": 1},
        True,
    ]
    refused = 0
    for _ in range(3000):
        header = json.loads(whole[8:end])
        about = json.loads(header["__metadata__"]["fozo"])
        target = [header, about, about["values"], *(header[name] for name in tree_arrays(header))][numbers.integers(7)]
        key = list(target)[numbers.integers(len(target))]
        if numbers.integers(4):
            target[key] = junk[numbers.integers(len(junk))]
        else:
            del target[key]
        if isinstance(header.get("__metadata__"), dict) and target is not header:
            header["__metadata__"]["fozo"] = json.dumps(about)
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + whole[end:])
        try:
            load(path, tree, OWNER)
        except FozoError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 2000


def tree_arrays(header: dict[str, Any]) -> list[str]:
    return [name for name in header if name != "__metadata__"][:4]


def test_the_first_difference_of_the_owner_is_named(tmp_path: Path) -> None:
    tree = _windowed(np.ones((2, 3), np.float32))
    save(tmp_path / "state", tree, OWNER)
    other = {"method": "tree", "config": {"passes": 2, "schedule": {"rate": 0.25}}}
    refuses(r"was saved with config.schedule.rate=0.5, but this run has 0.25", load, tmp_path / "state", tree, other)
    refuses("holds 'state' where 'scales' is needed", load, tmp_path / "state", tree, OWNER, kind="scales")


def test_a_sealed_state_is_not_written_into() -> None:
    tree = _windowed(np.ones((2, 3), np.float32))
    seal(tree)
    with pytest.raises(ValueError, match="read-only"):
        tree.rows[0] = 2


@dataclass(frozen=True)
class Scales(Measured):
    """A file of its own."""

    steps: Array
    model: str = ""

    KIND: ClassVar = "scales"


def test_what_is_measured_is_a_file_of_its_own(tmp_path: Path) -> None:
    Scales(np.arange(3.0), "vit").save(tmp_path / "scales")
    assert same(Scales.load(tmp_path / "scales"), Scales(np.arange(3.0), "vit"))
    refuses("holds 'scales' where 'source statistics' is needed", Statistics.load, tmp_path / "scales")
    (tmp_path / "empty").write_bytes(b"")
    refuses(r"empty is not a whole file.*; collect them again", Scales.load, tmp_path / "empty")


def test_statistics_of_the_last_version_are_read_with_advice(tmp_path: Path) -> None:
    """A file that fozo 0.2 wrote of the bundled model."""
    old = Path(__file__).parent / "golden" / "statistics-0.2.npz"
    with pytest.warns(FutureWarning, match=r"statistics-0.2.npz is a file of fozo 0.2"):
        read = Statistics.load(old)
    assert same(read, sample.statistics(sample.MODELS["float32"]))
    refuses("'source statistics' where 'scales' is needed", Scales.load, old)
    (tmp_path / "cut").write_bytes(old.read_bytes()[:5000])
    refuses("cut", Statistics.load, tmp_path / "cut")
