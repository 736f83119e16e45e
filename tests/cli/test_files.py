"""Commands and files: outputs that are none, names in no encoding, and what a kill leaves behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fozo.data import sample
from tests.cli.conftest import Call


@pytest.mark.parametrize("command", ["calibrate", "quantise", "adapt", "export"])
def test_a_folder_for_a_file_is_refused_before_the_work(
    call: Call, weights: Path, photos: Path, tmp_path: Path, command: str
) -> None:
    out = tmp_path / "out.onnx"
    out.mkdir()
    images = [] if command == "export" else [photos]
    code, said, errors = call(command, weights, *images, "-o", out, *(["--method", "noadapt"] * (command == "adapt")))
    assert (code, said) == (2, "") and f"cannot write {out}: it is a folder; give a regular file" in errors
    assert "space" not in errors and not list(out.iterdir()) and list(tmp_path.iterdir()) == [out]


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no names that are not UTF-8")
def test_names_that_are_not_utf8_come_out_as_they_are(call: Call, photos: Path, tmp_path: Path) -> None:
    folder, out = tmp_path / "photos", tmp_path / "predictions.csv"
    folder.mkdir()
    for number, path in enumerate(sorted(photos.rglob("*.*"))[:3]):
        shutil.copy(path, folder / os.fsdecode(b"%d-caf\xe9.png" % number))
    code, _, errors = call("adapt", sample.MODELS["float32"], folder, "--method", "noadapt", "-o", out)
    assert (code, errors) == (0, "")
    lines = out.read_bytes().splitlines()
    assert [line.split(b",")[0] for line in lines[1:]] == [b"%d-caf\xe9.png" % number for number in range(3)]


KILLED = """
import os, signal, sys
import fozo.io.files as files

left = int(sys.argv.pop(1))
replace = files.Path.replace

def dies(self, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)

files.Path.replace = dies
from fozo.cli import main
sys.argv[0] = "fozo"
main()
"""
"""Runs a command that is killed at its n-th file, written and not yet renamed: the worst moment."""


@pytest.mark.parametrize("command", ["calibrate", "corrupt", "export", "int8"])
def test_the_next_run_sweeps_what_a_kill_left(weights: Path, photos: Path, tmp_path: Path, command: str) -> None:
    out = tmp_path / "out"
    out.mkdir()
    pictures = tmp_path / "pictures" / "a"
    shutil.copytree(photos, pictures)
    arguments: dict[str, list[object]] = {
        "calibrate": ["calibrate", weights, photos, "-o", out / "stats.npz"],
        "corrupt": ["corrupt", pictures.parent, out / "tree", "--kinds", "contrast", "--size", 32, "--workers", 1],
        "export": ["export", weights, "-o", out / "model.onnx"],
        "int8": ["export", weights, "-o", out / "model.onnx", "--int8", "dynamic"],
    }

    def run(files: int) -> int:
        script = [sys.executable, "-c", KILLED, str(files), *map(str, arguments[command])]
        return subprocess.run(script, capture_output=True, timeout=120).returncode

    assert run(2 if command == "corrupt" else 0) == -signal.SIGKILL
    litter = [path for path in out.rglob(".*") if ".part" in path.name]
    assert litter, "a kill that leaves nothing tests nothing"
    for path in litter:
        os.utime(path, (0, 0))  # as if the kill was long ago
    assert run(10**6) == 0
    assert not list(out.rglob(".*"))


def test_two_commands_on_one_file_leave_each_other_alone(weights: Path, photos: Path, tmp_path: Path) -> None:
    """One is stopped in the middle of writing; the other may not take its file away."""
    out = tmp_path / "stats.npz"
    script = KILLED.replace("os.kill(os.getpid(), signal.SIGKILL)", "os.kill(os.getpid(), signal.SIGSTOP)")
    arguments = ["calibrate", str(weights), str(photos), "-o", str(out)]
    slow = subprocess.Popen([sys.executable, "-c", script, "0", *arguments], stdout=subprocess.PIPE, text=True)
    try:
        until = time.monotonic() + 100
        while not list(tmp_path.glob(".*.part")) and time.monotonic() < until:
            time.sleep(0.05)
        done = subprocess.run([sys.executable, "-m", "fozo", *arguments], capture_output=True, timeout=120)
        assert done.returncode == 0
        content = out.read_bytes()
        assert len(list(tmp_path.glob(".*.part"))) == 1
        # It may stop a moment after the other looked: it is woken until it has ended.
        while slow.poll() is None and time.monotonic() < until:
            slow.send_signal(signal.SIGCONT)
            time.sleep(0.05)
        assert slow.returncode == 0
        assert out.read_bytes() == content and [path.name for path in tmp_path.iterdir()] == ["stats.npz"]
    finally:
        slow.kill()
        slow.communicate()


def test_labels_in_another_encoding_are_a_sentence(call: Call, weights: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_bytes("Möwe\n".encode("latin-1") * 10)
    code, _, errors = call("export", weights, "-o", tmp_path / "model.onnx", "--labels", labels)
    assert code == 2 and "labels.txt is not text in UTF-8" in errors and len(errors.splitlines()) == 1
    labels.unlink()
    os.mkfifo(labels)
    code, _, errors = call("export", weights, "-o", tmp_path / "model.onnx", "--labels", labels)
    assert code == 2 and "it is a FIFO" in errors
