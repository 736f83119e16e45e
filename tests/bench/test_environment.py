"""What is said of the machine, and that no machine is too strange to say it."""

import subprocess
import sys
from pathlib import Path

import pytest

from fozo.bench import store as module
from fozo.bench.store import environment, peak_memory
from fozo.io.system import usable_cpus


def test_the_benchmark_can_be_imported_where_there_is_no_resource_module() -> None:
    """Windows has neither ``resource`` nor ``fcntl``: `fozo demo` was an ImportError there."""
    code = (
        "import sys; sys.modules.update(resource=None, fcntl=None); "
        "import fozo.cli, fozo.cli.demo_run, fozo.bench.run, fozo.bench.store as e; "
        "e.STATUS = e.Path('nowhere'); print(e.peak_memory('cpu'))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.stdout.strip(), run.stderr) == ("0", "")


def test_processors_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(3, "cpu").cores == usable_cpus() and environment(3, "cpu").threads == 3
    monkeypatch.setattr(module, "usable_cpus", lambda: 7)
    assert environment(1, "cpu").cores == 7
    assert "numpy" in environment(1, "cpu").packages


def test_memory_is_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1e7 < peak_memory("cpu") < 1e11
    monkeypatch.setattr(module, "STATUS", Path("nowhere"))
    assert 1e7 < peak_memory("cpu") < 1e11
