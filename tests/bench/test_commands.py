"""The command line, in this process."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import fozo
from fozo.bench import run
from fozo.bench.commands import duration
from fozo.bench.folder import locked, read_json
from fozo.bench.workshop import preparing
from fozo.cli import main
from fozo.data.images import read_image

Call = Callable[..., tuple[int, str, str]]
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
label = "FOZO"
method = "fozo"
"""


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``fozo ...`` and give its exit code, output and errors."""

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


def test_the_list(call: Call) -> None:
    code, out, _ = call("bench", "list")
    assert code == 0 and "table1" in out and "figureE1" in out and "59.5 %" in out and "\x1b" not in out


def test_a_recipe_from_the_command_line(call: Call, recipe: Path, weights: Path, photos: Path, tmp_path: Path) -> None:
    command = ("bench", recipe, "--model", weights, "--imagenet", photos, "--out", tmp_path / "runs", "--threads", 1)
    code, out, errors = call(*command, "--seeds", "0,3", "--severity", 2)
    assert code == 0 and errors == ""  # quiet into a pipe: one line for each experiment
    assert [line.split(":")[0] for line in out.splitlines()] == [
        "small plain seed 0", "small plain seed 3", "small FOZO seed 0", "small FOZO seed 3",
    ]  # fmt: skip
    folders = [path for path in (tmp_path / "runs" / "small").iterdir() if path.is_dir()]
    assert len(folders) == 4 and all((folder / "result.json").exists() for folder in folders)
    results = [read_json(folder / "result.json") for folder in folders]
    assert {str(result["stream"]["severity"]) for result in results if isinstance(result["stream"], dict)} == {"2"}
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    assert call(*command, "--seeds", "0,3", "--severity", 2) == (0, out, "")  # all found finished
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").rglob("result.json")}
    code, out, _ = call(*command, "--methods", "noadapt", "--images", 6)
    assert code == 0 and out.startswith("small plain seed 0") and "12 images" in out and len(out.splitlines()) == 1


def test_bad_input_is_one_sentence_and_code_2(
    call: Call, recipe: Path, weights: Path, photos: Path, tmp_path: Path
) -> None:
    given = (recipe, "--model", weights, "--imagenet", photos, "--out", tmp_path / "runs")
    for arguments, sentence in (
        (("bench", "table9"), "no recipe 'table9'"),
        (("bench", recipe), "which model?"),
        (("bench", recipe, "--model", weights), "give --imagenet DIR"),
        (("bench", *given, "--seeds", "one"), "--seeds is 'one'"),
        (("bench", *given, "--seeds", "-1"), "the seed is -1"),
        (("bench", *given, "--workers", 0), "workers is 0"),
        (("bench", *given, "--threads", 0), "threads is 0"),
        (("bench", *given, "--executor", "slurm"), "--executor is 'slurm'"),
        (("bench", *given, "--executor", "ray", "--workers", 2), "the cluster decides"),
        (("bench", *given, "--address", "auto"), "give --executor ray"),
        (("bench", *given, "--images", 61), "cannot take 61 of 60"),
        (("bench", *given, "--images", 60), "none is left to calibrate on"),
        (("bench", *given, "--methods", "magic"), "no row of the method 'magic'"),
        (("bench", *given, "--only", "plain", "--only", "Magic"), "no row of the label 'Magic'"),
        (("bench", "table4", "--model", weights), "nothing to run without --imagenet-r"),
        (("bench", recipe, "--model", "none.safetensors", "--imagenet", photos, "--out", tmp_path / "r"), "none.safe"),
        (("adapt", weights, photos), "needs --stats"),
        (("adapt", weights, tmp_path / "nowhere"), "is no folder"),
        (("calibrate", weights, weights.parent), "holds no images"),
    ):
        code, _, errors = call(*arguments)
        lines = [line for line in errors.splitlines() if "leaving out" not in line]
        assert code == 2 and len(lines) == 1 and sentence in lines[0], (arguments, errors)


def test_a_second_command_in_the_same_folder_is_refused(
    call: Call, recipe: Path, weights: Path, photos: Path, tmp_path: Path
) -> None:
    with locked(tmp_path / "runs" / "small"):
        code, out, errors = call("bench", recipe, "--model", weights, "--imagenet", photos, "--out", tmp_path / "runs")
    assert (code, out) == (2, "") and "another process is working in" in errors


def test_control_c_says_how_to_go_on(
    call: Call, recipe: Path, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("bench", recipe, "--model", weights, "--imagenet", photos, "--out", tmp_path / "runs")
    with monkeypatch.context() as patch:

        def interrupt(*_: object) -> int:
            raise KeyboardInterrupt

        patch.setattr(run, "peak_memory", interrupt)
        code, out, errors = call(*command)
    assert (code, out) == (130, "") and "the same command goes on" in errors
    assert call(*command)[0] == 0


def test_progress_on_a_terminal(
    call: Call, recipe: Path, weights: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    command = ("bench", recipe, "--model", weights, "--imagenet", photos, "--out", tmp_path / "runs")
    _, _, errors = call(*command)
    if "isatty" in errors:  # pragma: no cover
        pytest.fail(errors)
    assert "images/s" in errors and "left" in errors and errors.endswith("\r\x1b[K")
    assert [duration(s) for s in (4, 99, 120, 7200)] == ["4 s", "99 s", "2 min", "2.0 h"]


def test_preparations_are_told_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = preparing("calibrating")
    tell(3, 8)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    tell(3, 8)
    assert capsys.readouterr().err == "\r\x1b[Kcalibrating: 3/8"
    tell(8, 8)
    assert capsys.readouterr().err == "\r\x1b[K"  # and the line is free for the next


def test_calibrate_and_adapt(call: Call, weights: Path, photos: Path, tmp_path: Path) -> None:
    stats, out = tmp_path / "stats.npz", tmp_path / "predictions.csv"
    code, said, _ = call("calibrate", weights, photos / "class0", "-o", stats)
    assert code == 0 and "over 10 images" in said
    code, said, _ = call("adapt", weights, photos, "--stats", stats, "--passes", 4, "--batch-size", 16, "-o", out)
    assert code == 0 and "60 images" in said
    with out.open() as stream:
        header, *rows = list(csv.reader(stream))
    assert header[:3] == ["image", "class1", "probability1"] and len(header) == 11
    assert [row[0] for row in rows] == sorted(p.relative_to(photos).as_posix() for p in photos.rglob("*.png"))
    engine = fozo.load_engine(weights)
    adapter = fozo.FOZO(engine, fozo.SourceStatistics.load(stats), passes=4)
    pixels = np.stack([read_image(photos / row[0]) for row in rows])
    for start in range(0, 60, 16):  # the same by hand
        logits = adapter(engine.spec.normalise(pixels[start : start + 16])).astype(np.float64)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        for row, own in zip(rows[start : start + 16], p, strict=True):
            assert [int(value) for value in row[1::2]] == np.argsort(-own)[:5].tolist()
            assert [float(value) for value in row[2::2]] == pytest.approx(np.sort(own)[::-1][:5], abs=1e-6)
    code, _, errors = call("adapt", weights, photos, "--method", "noadapt", "--passes", 4, "-o", out)
    assert code == 2 and "does not take these options" in errors
    code, _, errors = call("adapt", weights, photos, "--stats", stats, "-o", tmp_path / "no" / "file.csv")
    assert code == 2 and "choose a folder that exists" in errors


def test_the_report(call: Call, recipe: Path, weights: Path, photos: Path, tmp_path: Path) -> None:
    runs, page = tmp_path / "runs", tmp_path / "page.html"
    code, _, errors = call("report", runs)
    assert code == 2 and "is no folder" in errors and len(errors.splitlines()) == 1
    runs.mkdir()
    code, _, errors = call("report", runs, "-o", page)
    assert code == 2 and "holds no results" in errors and not page.exists()
    assert call("bench", recipe, "--model", weights, "--imagenet", photos, "--out", runs, "--threads", 1)[0] == 0
    code, out, errors = call("report", runs, "-o", page)
    names = [page.with_suffix(suffix) for suffix in (".html", ".md", ".csv", ".tex")]
    assert (code, out, errors) == (0, ", ".join(map(str, names)) + "\n", "") and all(name.exists() for name in names)
    assert "plain" in page.read_text() and "(paper 50.00" in names[1].read_text()
    code, _, errors = call("report", runs, "-o", tmp_path / "no" / "page.html")
    assert code == 2 and "choose a folder that exists" in errors
