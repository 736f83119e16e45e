"""The soak test, for twenty batches: garbage is refused, pictures are not, and a broken run goes on to the same."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak import DOMAINS, stretches
from fozo.io import read_log
from tests.helpers import REPO


def soak(out: Path, batches: int, *options: str) -> subprocess.CompletedProcess[str]:
    sizes = ["--batches", str(batches), "--every", "5", "--longest", "4", "--images", "24", "--seed", "1"]
    command = [sys.executable, "-m", "benchmarks.soak", "--out", str(out), *sizes, *options]
    return subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=120)


def figures(out: Path) -> list[dict[str, Any]]:
    """The records without what the machine decides."""
    return [
        {name: value for name, value in record.items() if name not in ("mebibytes", "milliseconds")}
        for record in read_log(out / "soak.log")
    ]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("soak")
    run = soak(out, 20)
    assert run.returncode == 0, run.stderr
    return out, run.stdout


def test_garbage_is_refused_and_pictures_are_not(unbroken: tuple[Path, str]) -> None:
    out, printed = unbroken
    records = figures(out)[1:]
    assert [record["batches"] for record in records] == [5, 10, 15, 20]
    counts = [record["counts"] for record in records]
    assert sum(count["frames"] for count in counts) == 160
    assert sum(count.get("refused", 0) for count in counts) > 0 and not any("lost" in count for count in counts)
    assert "all genuine" in printed and "after garbage" in printed
    lines = printed.split("\n\n")[0].splitlines()
    assert len({len(line) for line in lines}) == 1 and len(lines) == 5  # aligned
    texts = [element.text for element in ElementTree.parse(out / "soak.svg").iter() if element.tag.endswith("text")]
    assert {"batches", "memory, MiB", "processor time a batch of 8, ms", "Align", "NoAdapt"} <= set(texts)


def test_a_run_goes_on_where_it_was(unbroken: tuple[Path, str], tmp_path: Path) -> None:
    assert soak(tmp_path, 10).returncode == 0
    with (tmp_path / "soak.log").open("ab") as log:
        log.write(b"half a li")
    assert soak(tmp_path, 20).returncode == 0
    assert figures(tmp_path) == figures(unbroken[0])
    assert [file.name for file in tmp_path.glob("state-*")] == ["state-20.npz"]
    other = soak(tmp_path, 20, "--longest", "9")
    assert other.returncode == 2 and "other settings" in other.stderr and "Traceback" not in other.stderr


def test_domains_come_and_go_and_garbage_in_between() -> None:
    planned = list(islice(stretches(seed=0, longest=50), 400))
    for before, after in pairwise(planned):
        assert before.stop == after.start < after.stop
        assert after.domain is None or after.domain != before.domain
        assert after.garbage_before == (before.domain is None)
    assert {stretch.domain for stretch in planned} == {None, *range(len(DOMAINS))}
