"""The command line, called in this process."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from fozo.cli import app, main
from tests.bench.conftest import photos, weights

__all__ = ["photos", "weights"]

Call = Callable[..., tuple[int, str, str]]
COMMAND = typer.main.get_command(app)
RECIPE = """
title = "Small"
calibration = 16
[stream]
kinds = ["brightness", "contrast"]
images = 12
batch_size = 6
[[row]]
label = "plain"
method = "noadapt"
paper = { Avg = 50.0, contrast = 40.0 }
[[row]]
label = "Align"
method = "align"
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``fozo ...`` and give its exit code, output and errors."""
    monkeypatch.setattr(typer.main, "get_command", lambda _: COMMAND)  # made once: it takes 30 ms

    def run_it(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fozo", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        out, errors = capsys.readouterr()
        return int(stop.value.code or 0), out, errors

    return run_it


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(RECIPE)
    return path
