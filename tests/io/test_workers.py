"""Workers end with the process that started them, and the same command then goes on at once."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fozo import cluster
from fozo.data import sample
from tests.data.conftest import plant_noise

RECIPE = """
calibration = 16
[stream]
kinds = ["brightness", "contrast"]
images = 120
batch_size = 2
[[row]]
label = "Align"
method = "align"
"""
PROC = Path("/proc")


def command(name: str, folder: Path) -> tuple[list[str], str]:
    """A command with two workers, and the files that show that they work."""
    if name == "bench":
        (folder / "mine.toml").write_text(RECIPE)
        given = ["--model", str(sample.MODELS["float32"]), "--data", f"imagenet={sample.IMAGES}", "--seeds", "0,1"]
        return ["bench", "mine.toml", *given, "--threads", "1", "--workers", "2"], "runs/mine/*/records.jsonl"
    plant_noise(folder / "photos", {f"{number % 2}/{number}.png": (96, 96) for number in range(24)})
    kinds = ["--kinds", "gaussian_noise,contrast,brightness", "--severity", "1-5", "--size", "96"]
    return ["corrupt", "photos", "out", *kinds, "--workers", "2"], "out/*/*/*/*.JPEG"


def of_session(session: int) -> list[str]:
    """Processes of a session that are still alive."""
    found = []
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            state, _, _, own = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:  # it has just ended
            continue
        if own == str(session) and state != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.skipif(not PROC.is_dir(), reason="looks for processes in /proc")
@pytest.mark.parametrize("name", ["corrupt", "bench"])
def test_a_killed_command_takes_its_workers_along(name: str, tmp_path: Path) -> None:
    """They wrote on and slept, or held the locks of the experiments, so that the same command was refused."""
    arguments, files = command(name, tmp_path)
    program = [sys.executable, "-m", "fozo", *arguments]
    first = subprocess.Popen(program, cwd=tmp_path, start_new_session=True, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 100
    while len(list(tmp_path.glob(files))) < 2 and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    assert len(of_session(first.pid)) >= 3
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL, "it had ended before it was killed"
    again = subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while of_session(first.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert of_session(first.pid) == []
    said, errors = again.communicate(timeout=200)
    assert (again.returncode, errors) == (0, "") and len(said.splitlines()) == (2 if name == "bench" else 1)


def test_workers_do_not_hear_control_c(tmp_path: Path) -> None:
    """A terminal sends it to all; each worker of ``fozo bench`` showed a traceback."""
    jobs = cluster.run(interrupt_this_process, range(2), workers=1)
    pids, masks = zip(*(answer for _, answer in jobs if isinstance(answer, tuple)), strict=True)
    assert pids[0] == pids[1] != os.getpid()
    assert all(signal.SIGINT in mask for mask in masks)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def interrupt_this_process(_: int) -> tuple[int, set[int]]:
    os.kill(os.getpid(), signal.SIGINT)
    return os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
