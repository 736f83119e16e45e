"""A kill of every command of kill.py, and one at every file operation; ``tests/kill.py --kills 1000`` does more."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPO
from tests.kill import COMMANDS, FULL, KILLS, OFTEN

NEEDS_PROC = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")


def killed(*options: str) -> str:
    """What kill.py prints, once it has found no fault."""
    script = [sys.executable, str(REPO / "tests" / "kill.py"), *options]
    run = subprocess.run(
        script, env={**os.environ, "PYTHONPATH": str(REPO / "src")}, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


@NEEDS_PROC
def test_killed_commands_go_on_and_end_with_the_same_bytes() -> None:
    said = killed("--kills", "1")
    assert all(f"\n{name} " in said for name in (*COMMANDS, FULL)), said
    assert re.search(rf"\n{OFTEN} +{KILLS} ", said), said


@NEEDS_PROC
def test_no_file_operation_is_a_bad_moment_to_be_killed() -> None:
    said = killed("--every", "--only", "adapt --resume")
    assert re.search(r"\nadapt --resume +1\d ", said), said
