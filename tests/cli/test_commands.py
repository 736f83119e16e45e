"""What all commands share: exit codes, options, progress; and the small commands."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import typer

import fozo
from fozo.bench.plan import load_recipe
from fozo.cli import app, options
from fozo.cli.options import Progress
from tests.cli.conftest import Call
from tests.helpers import REPO
from tests.refusals import refuses


def test_the_version(call: Call) -> None:
    assert call("--version") == (0, f"{metadata.version('fozo')}\n", "")


def test_methods_are_listed_with_what_they_need(call: Call) -> None:
    code, out, _ = call("methods")
    head, *lines = out.splitlines()
    assert code == 0 and head.split() == ["method", "passes", "adapts", "needs", "paper"]
    assert [line.split()[0] for line in lines] == sorted(fozo.list_methods())
    needs = {line.split()[0]: line for line in lines}
    assert "fisher, gradient" in needs["eata"] and "statistics" in needs["align"] and "statistics" not in needs["tent"]


@pytest.mark.parametrize("command", ["bench", "calibrate", "adapt", "quantise", "export"])
def test_every_command_that_loads_a_model_takes_all_options_of_loading(
    command: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code, out, _ = call(command, "--help")
    assert code == 0 and all(f"--{name.replace('_', '-')} " in out for name in options.LOADING)
    assert set(options.LOADING) < set(fozo.LoadOptions.__dataclass_fields__)


def test_every_option_has_a_help_and_titles_hold_whatever_options_say() -> None:
    commands: list[Any] = [typer.main.get_command(app)]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
    assert len(commands) > 12
    bare = [(command.name, option.name) for command in commands for option in command.params if not option.help]
    assert bare == []
    assert "128 images" not in load_recipe("quick").title and "fourteen" not in load_recipe("quick").title


def test_values() -> None:
    texts = ["passes=4", "passes=auto", "weight=0.5", "schedule.decay=1e-1", "on=true", "off=false", "a=b=c"]
    values = [options.read_options([text]) for text in texts]
    assert values == [
        {"passes": 4}, {"passes": "auto"}, {"weight": 0.5}, {"schedule.decay": 0.1}, {"on": True}, {"off": False},
        {"a": "b=c"},
    ]  # fmt: skip
    for wrong in ("passes", "passes="):
        refuses("give NAME=VALUE", options.read_options, [wrong])


def test_quiet_is_asked_for_before_the_command(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Progress, "quiet", False)
    assert call("--quiet", "methods")[0] == 0 and Progress.quiet
    assert call("methods")[0] == 0 and not Progress.quiet


def test_scales_for_calibrate_and_adapt(call: Call, weights: Path, photos: Path, tmp_path: Path) -> None:
    scales, stats, out = (
        tmp_path / name for name in ("scales.safetensors", "statistics.safetensors", "predictions.csv")
    )
    code, said, errors = call(
        "quantise", weights, photos, "--bits", 6, "--count", 4, "--metric", "l2", "-o", scales
    )  # fmt: skip
    assert (code, errors) == (0, "") and "6-bit scales" in said and "over 4 images" in said
    assert call("calibrate", weights, photos, "--scales", scales, "-o", stats)[0] == 0
    assert call("adapt", weights, photos, "--scales", scales, "--statistics", stats, "-o", out)[0] == 0
    code, _, errors = call("adapt", weights, photos, "--statistics", stats, "-o", out)
    assert code == 2 and "collect them again" in errors  # statistics of the quantised model are not the plain one's
    code, _, errors = call("quantise", weights, photos, "-o", tmp_path / "no" / "scales.safetensors")
    assert code == 2 and ": there is no folder" in errors
    code, _, errors = call("quantise", weights, photos, "--count", 0, "-o", scales)
    assert code == 2 and "count is 0" in errors


def test_export(call: Call, weights: Path, tmp_path: Path) -> None:
    out, names = tmp_path / "model.onnx", tmp_path / "names.txt"
    names.write_text("".join(f"thing {i}\n" for i in range(6)))
    given = ("export", weights, "-o", out, "--mean", 0.5, "--std", 0.25, "--labels", names)
    code, said, errors = call(*given, "--int8", "dynamic")
    assert (code, errors) == (0, "") and "6 classes" in said and "-int8d" in said
    spec = fozo.load_engine(out).spec
    assert (spec.mean, spec.std, spec.labels) == ((0.5,) * 3, (0.25,) * 3, tuple(names.read_text().splitlines()))
    assert spec.fingerprint == fozo.load_engine(weights).spec.fingerprint + "-int8d"
    before = out.read_bytes()
    code, _, errors = call(*given, "--int8", "static")
    assert code == 2 and errors.count("\n") == 1 and "--calibration" in errors and out.read_bytes() == before


def test_a_model_that_the_user_quantised_is_adapted_as_it_is(weights: Path, photos: Path, tmp_path: Path) -> None:
    plain = fozo.load_engine(weights)
    fozo.export(plain, tmp_path / "model.onnx")
    script = [sys.executable, *map(str, (REPO / "examples" / "own_int8.py", tmp_path / "model.onnx", photos, photos))]
    run = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("batch ") == 4 and "MB in INT8" in run.stdout
