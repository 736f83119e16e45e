"""A kill of every command of kill.py; ``python tests/kill.py --kills 1000`` does more."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers import REPO
from tests.kill import COMMANDS, FULL, KILLS, OFTEN


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_killed_commands_go_on_and_end_with_the_same_bytes() -> None:
    script = [sys.executable, str(REPO / "tests" / "kill.py"), "--kills", "1"]
    run = subprocess.run(
        script, env={**os.environ, "PYTHONPATH": str(REPO / "src")}, capture_output=True, text=True, timeout=280
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert all(f"\n{name} " in run.stdout for name in (*COMMANDS, FULL)), run.stdout
    assert re.search(rf"\n{OFTEN} +{KILLS} ", run.stdout), run.stdout
