"""benchmarks/newest.py: what its tables say, against records counted by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.methods import MARKS, replaced
from benchmarks.newest import BINS, ROWS, confidences, hits, read, summary, table
from fozo.errors import FozoError
from fozo.methods.registry import method_class


def record(row: str, domain: str, right: list[int], seed: int = 0, scenario: str = "reset") -> dict[str, Any]:
    bins = np.zeros((BINS, 3))
    bins[5] = len(right), 0.4 * len(right), sum(right)
    return {
        "model": "vit", "row": row, "scenario": scenario, "domain": domain, "severity": 5, "seed": seed,
        "images": len(right), "batch": 2, "kinds": 2, "passes": 1.0, "bins": bins.tolist(),
        "right": np.packbits(np.array(right, dtype=bool)).tobytes().hex(),
    }  # fmt: skip


@pytest.fixture
def records(tmp_path: Path) -> Path:
    lines = [
        record("NoAdapt", "fog", [1, 0, 0]), record("NoAdapt", "snow", [1, 0, 0]),
        record("NEO", "fog", [1, 1, 0]), record("NEO", "snow", [0, 1, 0]),
        record("PEA", "fog", [1, 1, 1]),  # not finished
        record("NoAdapt", "fog", [0, 0, 1], seed=1), record("NoAdapt", "snow", [0, 0, 1], seed=1),
        record("NEO", "fog", [0, 0, 1], seed=1), record("NEO", "snow", [0, 0, 1], seed=1),
    ]  # fmt: skip
    path = tmp_path / "newest.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_difference_is_paired_by_image_over_all_corruptions_and_seeds(records: Path) -> None:
    rows = read([records])["vit", 2, 3]["reset"]
    assert hits(rows["NEO"]).tolist() == [[1, 1, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1]]
    top, gain, half, error = summary(rows["NEO"], rows["NoAdapt"])
    each = np.array([-0.5, 1, 0, 0, 0, 0])  # of the images: lost in snow, won in both, and as before
    assert top == pytest.approx(100 * 5 / 12) and gain == pytest.approx(100 * each.mean())
    assert half == pytest.approx(196 * each.std(ddof=1) / 6**0.5)
    assert error == pytest.approx(100 * abs(0.4 - 5 / 12))


def test_the_table_leaves_out_what_is_not_finished(records: Path) -> None:
    text = table([records])
    assert "vit, 2 corruptions, 2 x 3 images of each" in text
    assert "| NEO | 1 | 41.67 | +8.33 ± 39.34 | 1.7 |" in text and "| PEA | 1 | - | - | - |" in text


def test_confidences_are_counted_in_bins() -> None:
    found = confidences(np.log(np.array([[0.9, 0.1], [0.5, 0.5]])), np.array([True, False]))
    assert found.sum(axis=0).tolist() == pytest.approx([2, 1.4, 1]) and found[13].tolist() == pytest.approx([1, 0.9, 1])


def test_every_row_is_a_method_with_options_that_it_has() -> None:
    for method, options in ROWS.values():
        own = dict(options)
        preset = own.pop("preset", None)
        method_class(method).configure(None if preset is None else str(preset), own)


def test_a_section_is_put_where_the_old_one_was() -> None:
    page = f"by hand\n{MARKS[0]}\nold\n{MARKS[1]}\nalso by hand\n"
    assert replaced(page, "new\n") == f"by hand\n{MARKS[0]}\nnew\n{MARKS[1]}\nalso by hand\n"
    with pytest.raises(FozoError, match="has lost its comments"):
        replaced("by hand", "new")
