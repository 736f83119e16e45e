"""How commands end: signals, outputs that cannot be written, kills, faults; a documented code, never a traceback."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fozo.data import sample
from fozo.errors import FozoError
from fozo.methods import registry
from tests.cli.conftest import Call
from tests.helpers import REPO

STOPS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


def hear() -> None:
    """Hear all signals, whatever nohup, or the shell that put this in the background, has these tests ignore."""
    for name in STOPS:
        signal.signal(getattr(signal, name), signal.SIG_DFL)


def program(folder: Path, *arguments: object, before: Callable[[], object] = hear) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder``, whose modules go before all others."""
    path = os.pathsep.join((str(folder), str(REPO / "src")))
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env={**os.environ, "PYTHONPATH": path}, text=True,
        capture_output=True, timeout=120, preexec_fn=before,
    )  # fmt: skip


WORK = """
import os, signal, sys, time
from pathlib import Path
import fozo.methods.registry as registry
from fozo.__main__ import main
from fozo.io import atomic_write

def work():
    with atomic_write(Path("file")):
        os.kill(os.getpid(), signal.{name})
        time.sleep(60)

registry.list_methods = work
sys.argv = ["fozo", "methods"]
main()
"""


@pytest.mark.parametrize("name", STOPS)
def test_a_signal_at_work(name: str, tmp_path: Path) -> None:
    """A file that is being written is removed."""
    done = program(tmp_path, "-c", WORK.format(name=name))
    assert (done.returncode, done.stdout, done.stderr) == (STOPS[name], "", "fozo: interrupted\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (FozoError("no such thing"), 2, "fozo: no such thing"),
        (PermissionError(13, "Permission denied", "x.npz"), 2, "fozo: cannot use x.npz: Permission denied; check"),
        (MemoryError("8 GB"), 2, "fozo: not enough memory (8 GB); give smaller"),
        (KeyError("a\nb"), 70, r"fozo: a fault of fozo itself (KeyError: 'a\nb'); set FOZO_TRACEBACK=1"),
        (RecursionError("too deep\nby far"), 70, "fozo: a fault of fozo itself (RecursionError: too deep); set"),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
    ],
)
def test_every_error_is_one_sentence_and_a_code(
    error: Exception, code: int, sentence: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(registry, "list_methods", fail)
    found, out, errors = call("methods")
    assert (found, out, errors.count("\n")) == (code, "", bool(sentence)) and errors.startswith(sentence)
    monkeypatch.setenv("FOZO_TRACEBACK", "1")
    assert f"in fail\n    raise error\n{type(error).__name__}" in re.sub(r"\n +\^+", "", call("methods")[2]).replace(
        "fozo.errors.", ""
    )


def test_images_whose_names_are_not_utf8(call: Call, weights: Path, photos: Path, tmp_path: Path) -> None:
    """All the work was done, and then there was a traceback and no file."""
    name = os.fsdecode(b"gr\xfcn.png")
    (tmp_path / name).write_bytes((photos / "class0" / "image0.png").read_bytes())
    out = tmp_path / os.fsdecode(b"\xfc.csv")
    code, said, errors = call("adapt", weights, tmp_path, "--method", "noadapt", "-o", out)
    assert (code, errors) == (0, "") and said.endswith("udcfc.csv: predictions of 1 images by noadapt\n")
    assert out.read_bytes().splitlines()[1].startswith(b"gr\xfcn.png,")


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


@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["calibrate", sample.MODELS["float32"], "pictures", "-o", "out/statistics.safetensors"], 0),
        (["corrupt", "pictures", "out/tree", "--kinds", "contrast", "--size", 32, "--workers", 1], 2),
        (["export", "vit.safetensors", "-o", "out/model.onnx"], 0),
        (["export", "vit.safetensors", "-o", "out/model.onnx", "--int8", "dynamic"], 0),
    ],
)
def test_the_next_run_sweeps_what_a_kill_left(
    arguments: list[object], files: int, call: Call, weights: Path, photos: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    out = tmp_path / "out"
    out.mkdir()
    shutil.copytree(photos, tmp_path / "pictures" / "a")
    given = [weights if argument == "vit.safetensors" else argument for argument in arguments]
    assert program(tmp_path, "-c", KILLED, files, *given).returncode == -signal.SIGKILL
    litter = [path for path in out.rglob(".*") if ".part" in path.name]
    assert litter, "a kill that leaves nothing tests nothing"
    for path in litter:
        os.utime(path, (0, 0))  # as if the kill was long ago
    monkeypatch.chdir(tmp_path)
    assert call(*given)[0] == 0 and not list(out.rglob(".*"))
