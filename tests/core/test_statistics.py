"""Source statistics as a file: whole or refused, and for one model only."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.io import load_arrays, save_arrays
from tests.helpers import random_vit


def test_survive_a_file_and_serve_only_their_model(
    engine: fozo.Engine, source: SourceStatistics, tmp_path: Path
) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    loaded = SourceStatistics.load(path)
    for name in SourceStatistics.PARTS:
        np.testing.assert_array_equal(getattr(loaded, name).squares, getattr(source, name).squares)
        assert getattr(loaded, name).count == getattr(source, name).count
    fozo.FOZO(engine, loaded)
    other = fozo.load_engine(random_vit(seed=1))
    with pytest.raises(FozoError, match="collect them again"):
        fozo.FOZO(other, loaded)
    with pytest.raises(FozoError, match="collect them again"):
        fozo.calibrate(other, [np.zeros((2, *other.spec.image_shape), np.float32)]).merge(source)


def test_a_broken_file_is_one_clear_error(tmp_path: Path, source: SourceStatistics) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FozoError, match="truncated"):
        SourceStatistics.load(path)
    with pytest.raises(FozoError, match="no file"):
        SourceStatistics.load(tmp_path / "none.npz")
    np.savez(path, a=np.array([{}], dtype=object))
    with pytest.raises(FozoError, match="not a readable fozo file"):
        SourceStatistics.load(path)
    with pytest.raises(FozoError, match="cannot write"):
        source.save(tmp_path / "missing" / "stats.npz")


GOOD = {"kind": SourceStatistics.KIND, "version": SourceStatistics.VERSION, "fingerprint": "f", "model": "m"}
COUNTS = dict.fromkeys(SourceStatistics.PARTS, 96)


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (GOOD, "damaged source statistics"),  # no counts
        (GOOD | {"counts": 5}, "damaged source statistics"),
        (GOOD | {"counts": dict.fromkeys(COUNTS, "many")}, "damaged source statistics"),
        (GOOD | {"counts": {"cls": 96}}, "damaged source statistics"),
        ({k: v for k, v in GOOD.items() if k != "fingerprint"} | {"counts": COUNTS}, "damaged source statistics"),
        ({k: v for k, v in GOOD.items() if k != "version"}, "version None"),
        (["source statistics"], "holds None where 'source statistics' is needed"),
        ({"kind": "state"}, "holds 'state' where 'source statistics' is needed"),
    ],
)
def test_a_damaged_header_is_one_clear_error(
    tmp_path: Path, source: SourceStatistics, header: object, sentence: str
) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    _, arrays = load_arrays(path, SourceStatistics.KIND)
    save_arrays(path, header, arrays)  # type: ignore[arg-type]
    with pytest.raises(FozoError, match=sentence):
        SourceStatistics.load(path)


def test_missing_and_foreign_arrays_are_one_clear_error(tmp_path: Path, source: SourceStatistics) -> None:
    path = tmp_path / "stats.npz"
    source.save(path)
    header, arrays = load_arrays(path, SourceStatistics.KIND)
    lacking = {name: value for name, value in arrays.items() if name != "cls.mean"}
    for broken in (lacking, {**arrays, "cls.mean": np.array(["a"])}):
        save_arrays(path, header, broken)
        with pytest.raises(FozoError, match="damaged source statistics"):
            SourceStatistics.load(path)


def test_a_file_of_an_older_fozo_is_refused(
    tmp_path: Path, source: SourceStatistics, monkeypatch: pytest.MonkeyPatch
) -> None:
    source.save(tmp_path / "stats.npz")
    monkeypatch.setattr(SourceStatistics, "VERSION", SourceStatistics.VERSION + 1)
    with pytest.raises(FozoError, match="collect them again"):
        SourceStatistics.load(tmp_path / "stats.npz")
