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
        (tmp_path / page).write_text((REPO / page).read_text(encoding="utf-8").replace("**+8.0 ±", "**+9.0 ±"))
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert {"README.md", "docs/results.md"} <= tables.stale().keys()
    (tmp_path / "README.md").write_text("<!-- table: losses -->\n<!-- end -->\n")
    refuses("README.md and .* do not agree on the tables headline, losses", tables.stale)


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
    kinds = [(recognised(runs["Align"], name) - recognised(runs["NoAdapt"], name)).mean() for name in KINDS]
    over_kinds = ttest_1samp(kinds, 0).confidence_interval(0.95)
    ends = [float(rows["Align"][key]) for key in ("kinds_low", "kinds_high")]
    assert ends == pytest.approx([over_kinds.low, over_kinds.high], abs=1e-3)
    lead = recognised(runs["Align"], "fog") - recognised(runs["NEO"], "fog")
    assert float(by_domain["NEO", "fog"]["lead"]) == pytest.approx(lead.mean(), abs=1e-3)


def test_an_image_that_comes_twice_is_one_observation(tmp_path: Path) -> None:
    """In a stream of rounds a domain is seen several times; what counts is how often an image was recognised."""
    plan = StreamPlan(scenario="recurring", kinds=(*KINDS, "clean"), images=192)
    methods = {"NoAdapt": "noadapt", "Align": "align", "NEO": "neo"}
    rows = [Experiment(label, method, {}, plan, "recurring days") for label, method in methods.items()]
    invent(tmp_path, Recipe("streams", "Mine", tuple(rows)))
    records.write([tmp_path], tmp_path)
    (group,) = collect(tmp_path)
    runs = {run.experiment.label: run for run in group.runs}
    differences = []
    for kind in KINDS:
        counts = []
        for label in ("Align", "NoAdapt"):
            named = [
                image for record in runs[label].records() if record.domain == f"{kind}/5" for image in record.right
            ]
            counts.append(10 * np.bincount(named, minlength=192))  # percent of ten rounds
        differences.append(counts[0] - counts[1])
    (line,) = (row for row in read(tmp_path / "gains.csv") if row["row"] == "Align")
    within = ttest_1samp(np.mean(differences, axis=0), 0).confidence_interval(0.95)
    assert [float(line[key]) for key in ("gain_low", "gain_high")] == pytest.approx([within.low, within.high], abs=1e-3)
    assert line["stream"] == "recurring days" and line["images"] == "192"
