"""What is said of the machine, and that no machine is too strange to say it."""

from pathlib import Path

import pytest

from fozo.bench import store as module
from fozo.bench.store import environment, peak_memory
from fozo.io.system import usable_cpus


def test_processors_are_those_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment(3, "cpu").cores == usable_cpus() and environment(3, "cpu").threads == 3
    monkeypatch.setattr(module, "usable_cpus", lambda: 7)
    assert environment(1, "cpu").cores == 7
    assert "numpy" in environment(1, "cpu").packages


def test_memory_is_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1e7 < peak_memory("cpu") < 1e11
    monkeypatch.setattr(module, "STATUS", Path("nowhere"))
    assert 1e7 < peak_memory("cpu") < 1e11
