"""Tables and charts are those of the records, and records are those of the runs."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from benchmarks import records, tables
from fozo.bench.plan import Experiment, Recipe, StreamPlan
from fozo.bench.store import Run, collect
from tests.bench.invented import invent
from tests.helpers import REPO
from tests.refusals import refuses

KINDS = ("gaussian_noise", "fog")


def test_no_table_and_no_chart_is_stale() -> None:
    command = [sys.executable, "-m", "benchmarks.tables", "--check"]
    run = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def test_a_changed_table_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for page in tables.TABLES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text((REPO / page).read_text(encoding="utf-8").replace("+17.5", "+18.5"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert {"README.md", "docs/results.md"} <= tables.stale().keys()
    (tmp_path / "README.md").write_text("<!-- table: losses -->\n<!-- end -->\n")
    refuses(r"README.md and benchmarks/tables.py do not agree on the tables gains, losses", tables.stale)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Records of invented runs: two corruptions and clean images, 192 of each."""
    plan = StreamPlan(kinds=(*KINDS, "clean"), images=192)
    column = "continual, severity 5"
    rows = [
        Experiment("NoAdapt", "noadapt", {}, plan, column),
        Experiment("Align", "align", {"slots": 2}, plan, column),
        Experiment("NEO", "neo", {}, plan, column),
    ]
    invent(tmp_path, Recipe("evidence", "Mine", tuple(rows)))
    records.write([tmp_path], tmp_path)
    return tmp_path


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def recognised(run: Run, domain: str) -> np.ndarray:
    hits = np.zeros(192)
    for record in run.records():
        if record.domain.startswith(domain):
            hits[list(record.right)] = 1
    return 100 * hits


def test_records_are_those_of_the_runs(written: Path) -> None:
    """The interval of a gain is that of SciPy's paired test over images, each with both corruptions."""
    (group,) = collect(written)
    runs = {run.experiment.label: run for run in group.runs}
    rows = {row["row"]: row for row in read(written / "gains.csv")}
    assert list(rows) == ["NoAdapt", "Align", "NEO"] and rows["NoAdapt"]["gain"] == ""
    for base, column in (
        ("NoAdapt", ("gain", "gain_low", "gain_high")),
        ("NoAdapt", ("clean_gain", "clean_low", "clean_high")),
    ):
        domains = ("clean",) if "clean" in column[0] else KINDS
        images = np.mean([recognised(runs["Align"], name) - recognised(runs[base], name) for name in domains], axis=0)
        within = ttest_1samp(images, 0).confidence_interval(0.95)
        expected = [images.mean(), within.low, within.high]
        assert [float(rows["Align"][key]) for key in column] == pytest.approx(expected, abs=1e-3)
    top = np.mean([recognised(runs["NEO"], name) for name in KINDS])
    assert float(rows["NEO"]["top1"]) == pytest.approx(top, abs=1e-3)
    by_domain = {(row["row"], row["domain"]): row for row in read(written / "domains.csv")}
    assert by_domain["Align", "all"]["gain"] == rows["Align"]["gain"] and len(by_domain) == 2 * 4
    lead = recognised(runs["Align"], "fog") - recognised(runs["NEO"], "fog")
    assert float(by_domain["NEO", "fog"]["lead"]) == pytest.approx(lead.mean(), abs=1e-3)
