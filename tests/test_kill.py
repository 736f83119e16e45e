"""A few of the kills of kill.py; ``python tests/kill.py --kills 1000`` does them all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPO

KILLS = 10


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_killed_commands_go_on_and_end_with_the_same_bytes() -> None:
    script = [sys.executable, str(REPO / "tests" / "kill.py"), "--kills", str(KILLS)]
    run = subprocess.run(
        script, env={**os.environ, "PYTHONPATH": str(REPO / "src")}, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0 and f"{KILLS} kills in " in run.stdout, run.stdout + run.stderr
