"""Plain values become a dataclass only if every one of them is what its field says."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from fozo.io import as_dataclass
from tests.refusals import refuses


@dataclass(frozen=True)
class Inner:
    low: float
    high: float


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    sides: tuple[int, int]
    rows: tuple[float, ...]
    shares: Mapping[str, Inner]
    note: str | None = None
    flag: bool = False


GOOD: dict[str, object] = {
    "name": "a", "count": 3, "sides": [1, 2], "rows": [1, 2.5], "shares": {"b": {"low": 0, "high": 1.5}},
}  # fmt: skip


def test_good_values_are_taken() -> None:
    expected = Outer("a", 3, (1, 2), (1, 2.5), {"b": Inner(0, 1.5)})
    assert as_dataclass(Outer, GOOD, "it") == expected
    assert as_dataclass(Outer, {**GOOD, "note": "c", "flag": True}, "it").note == "c"


@pytest.mark.parametrize(
    "change",
    [
        {"name": 5}, {"count": 2.0}, {"count": True}, {"count": 10**30}, {"sides": [1]}, {"sides": [1, 2, 3]},
        {"sides": "12"}, {"rows": [None]}, {"rows": [float("nan")]}, {"rows": [10**400]}, {"rows": {"a": 1}},
        {"shares": {"b": 5}}, {"shares": {"b": {"low": 0}}}, {"shares": []}, {"note": 5}, {"flag": 1}, {"other": 1},
    ],
)  # fmt: skip
def test_bad_values_are_named(change: dict[str, object]) -> None:
    refuses(next(iter(change)), as_dataclass, Outer, json.loads(json.dumps({**GOOD, **change})), "it")
    for text in ("null", "[]", "5", "{}"):
        refuses("it", as_dataclass, Outer, json.loads(text), "it")
