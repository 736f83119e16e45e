"""The results page: its numbers against the runs, its verdicts, and what it keeps."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from scipy.stats import spearmanr

from fozo.bench.measures import BatchRecord, measure, score
from fozo.bench.plan import load_recipe
from fozo.bench.report.tables import table_of
from fozo.bench.store import collect
from fozo.errors import FozoError
from tests.bench.invented import invent
from tests.helpers import REPO


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", REPO / "benchmarks" / "results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    for severity in (3, 5):
        invent(out / f"vit_-s{severity}", "rivals", batches=3, severity=severity)
    invent(out / "vit_-s3", "vs_noadapt", batches=3, severity=3)
    invent(out / "vit_-s5", "tableD1", batches=2)
    invent(out / "vit_-s5", load_recipe("table5").at_passes(4), batches=2)
    invent(out / "vit_-s5", load_recipe("figure1").at_passes(4), batches=4)
    invent(out / "vit_", "streams", batches=3)
    invent(out / "vit_", "passes", batches=3)
    return out


def test_the_page(results: ModuleType, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    results.write(Namespace(runs=runs, page=page))
    text = page.read_text()
    assert text.count("### All fifteen methods") == 2 and "severity 3" in text and "severity 5" in text
    group = next(group for group in collect(runs) if group.recipe.name == "rivals")
    fozo, base = group.first("FOZO (paper)"), group.first("NoAdapt")
    line = next(line for line in text.splitlines() if line.startswith("| FOZO (paper) |"))
    gain, within = results.paired(fozo.records(), base.records())
    assert within is not None and within.low < gain < within.high
    assert gain == pytest.approx(fozo.measures.average - base.measures.average)
    assert f"{gain:+.2f} ({within.low:+.2f} to {within.high:+.2f})" in line
    assert ("**" in line.split("|")[18]) == (within.low > 0 or within.high < 0)
    widths = {row.count("|") for row in text.split("### All fifteen")[1].splitlines() if row.startswith("|")}
    assert widths == {21}  # between: name, 15 corruptions, average, difference, passes, memory
    assert "Entropy only at 4 passes" in text and "instead of 28" in text and "FOZO at 4 passes" in text
    table = table_of(next(group for group in collect(runs) if group.recipe.name == "tableD1"))
    ours, paper = zip(*((row[15].ours, row[15].paper) for _, row in table.rows if row[15] is not None), strict=True)
    assert f"alpha: Spearman's rho {spearmanr(ours, paper).statistic:+.2f} over 9 points" in text
    assert "1400 s: Spearman" in text  # the reduced Table C.1 keeps its budgets
    assert "nan" not in text and str(runs) not in text and text.startswith("# Results")


def test_gains_by_severity_and_by_stream(results: ModuleType, runs: Path) -> None:
    groups = collect(runs)
    compared = next(group for group in groups if group.recipe.name == "vs_noadapt")
    own, base = (compared.first(label).measures for label in ("Align", "NoAdapt"))
    gains = {name: own.domains[name] - base.domains[name] for name in own.domains}
    line = results.never_worse([compared]).splitlines()[2]
    assert f"{base.average:.2f} | {own.average:.2f} | " in line
    assert f" {min(gains.values()):+.1f} | {sum(gain < -0.5 for gain in gains.values())} |" in line
    streams = next(group for group in groups if group.recipe.name == "streams")
    fozo, plain = streams.of("FOZO", "mixed")[0], streams.of("NoAdapt", "mixed")[0]
    gain, within = results.paired(fozo.records(), plain.records())
    assert within is not None
    lines = results.streams_table(streams).splitlines()
    column = lines[0].split(" | ").index("mixed")
    cell = next(line for line in lines if line.startswith("| FOZO |")).split(" | ")[column]
    text = f"{fozo.measures.average:.1f} {gain:+.1f} ({within.low:+.1f} to {within.high:+.1f})"
    assert cell.strip("* |") == text


def test_what_was_written_by_hand_is_kept(results: ModuleType, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "results.md"
    for _ in range(2):
        results.write(Namespace(runs=runs, page=page))
    before = page.read_text()
    page.write_text(before.replace(results.HAND[0] + "\n", results.HAND[0] + "\nWe see this.\n\nAnd that.\n"))
    results.write(Namespace(runs=runs, page=page))
    assert "\nWe see this.\n\nAnd that.\n" in page.read_text() and page.read_text() != before
    page.write_text("# Somebody's own page\n")
    with pytest.raises(FozoError, match="has lost its comments"):
        results.write(Namespace(runs=runs, page=page))
    assert page.read_text() == "# Somebody's own page\n"


def test_the_commands(results: ModuleType) -> None:
    given = Namespace(
        size=["table5=32@6"], recipe=["rivals", "table5"], model=["w/vit_a.safetensors", "w/deit_b.safetensors"],
        severity=[3, 5], imagenet="D", out=Path("R"), calibration=512, threads=1,
    )  # fmt: skip
    made = [" ".join(command) for command in results.commands(given)]
    assert (
        len(made) == 4 + 2 and "rivals --model w/vit_a.safetensors --imagenet D --severity 3 --images 128 " in made[0]
    )
    assert "table5" in made[4] and "--severity 5 --images 32 --passes 6" in made[4] and made[4].endswith("R/vit_-s5")
    alike = results.folder("vit_tiny.x.safetensors", ["vit_tiny.x.safetensors", "vit_base.x.safetensors"])
    assert alike == "vit_tiny"
    (own,) = results.commands(Namespace(**{**vars(given), "recipe": ["streams"], "model": ["w/vit_a.safetensors"]}))
    assert "--seeds 0,1,2 --calibration" in " ".join(own) and "--images" not in own and own[-1] == "R/vit_"
    for change in ({"size": ["table9=1"]}, {"size": ["table5=many"]}, {"recipe": ["table9"], "size": []}):
        with pytest.raises(FozoError, match=r"table9|many"):
            list(results.commands(Namespace(**{**vars(given), **change})))


def test_nothing_of_the_machine_is_shown(results: ModuleType) -> None:
    typed = "fozo bench x --model /a/b/vit.safetensors --imagenet /c/d --out /e/f --imagenet-c /g --threads 1"
    assert results.public(typed) == "fozo bench x --model vit.safetensors --imagenet DIR --imagenet-c DIR --threads 1"
    assert results.public("fozo bench /a/b/mine.toml --out /e") == "fozo bench mine.toml"


def test_the_script_runs_a_small_recipe(weights: Path, photos: Path, tmp_path: Path) -> None:
    command = [
        sys.executable, str(REPO / "benchmarks" / "results.py"), "run", "--imagenet", str(photos), "--model",
        str(weights), "--out", str(tmp_path / "runs"), "--recipe", "table5", "--size", "table5=2@2", "--severity", "5",
        "--calibration", "8",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^table5-2passes .*: [\d.]+ % ", done.stdout, re.M)) == 4
    assert (tmp_path / "runs" / "vit_-s5" / "table5-2passes" / "recipe.json").exists()
    done = subprocess.run([*command, "--recipe", "table9"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "no recipe 'table9' on the page" in done.stderr and done.stdout == ""


def test_no_rank_correlation_of_too_little(results: ModuleType) -> None:
    assert results.correlation([1, 3, 2], [1, 2, 3]) == pytest.approx(0.5)
    assert results.correlation([1, 2], [1, 2]) is None and results.correlation([1, 1, 1], [1, 2, 3]) is None


# --- paired intervals -------------------------------------------------------------------------------------------------


TEMPLATE = score(np.eye(6), np.arange(6))


def batch(index: int, domain: str, correct: int, images: int) -> BatchRecord:
    return replace(TEMPLATE, index=index, domain=domain, correct=correct, images=images)


def test_paired_intervals_cover_the_truth(results: ModuleType) -> None:
    """Two batches a domain, 15 domains: in simulation the interval holds the true difference about 95 % of the time."""
    generator = np.random.default_rng(1)
    held, times = 0, 200
    for _ in range(times):
        ours, theirs = [], []
        for index in range(30):
            hard = generator.random(64)  # how hard an image is, for both
            domain = f"kind{index // 2}/5"
            theirs.append(batch(index, domain, int((hard < 0.4).sum()), 64))
            flips = generator.random(64)
            ours.append(batch(index, domain, int((np.where(flips < 0.2, generator.random(64), hard) < 0.4).sum()), 64))
        gain, within = results.paired(ours, theirs)
        assert within is not None
        held += within.low <= 0 <= within.high
    assert 0.88 < held / times < 0.99 and within is not None
    loose = measure(ours).average_interval
    assert within.high - within.low < loose.high - loose.low  # which is what pairing is for
    assert gain == pytest.approx(measure(ours).average - measure(theirs).average)


def test_what_cannot_be_paired(results: ModuleType) -> None:
    one = [batch(0, "fog/5", 3, 8), batch(1, "fog/5", 4, 8), batch(2, "snow/5", 5, 8)]
    assert results.paired(one, one) == (0.0, None)  # snow has a single batch
    assert results.paired(one[:2], one[:2]) == results.paired(one[:2], one[:2])
    with pytest.raises(FozoError, match="the same batches"):
        results.paired(one, [*one[:2], replace(one[2], images=7)])
