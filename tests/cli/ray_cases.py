"""Streams on a Ray cluster of two nodes, whose workers are killed: the bytes are those of one process.

test_streams.py runs this file, and gives it the cluster.
"""

import os
import random
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

from tests.cli.test_streams import STATS, files, plant, rows, start

KILLS = 5


def workers(out: Path) -> dict[int, str]:
    """Processes of Ray that write predictions below a folder, and of which stream."""
    writers = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(file.readlink()) for file in (process / "fd").iterdir()]
        except OSError:  # it has just ended
            continue
        for name in opened:
            if name.startswith(f"{out}/") and name.endswith(".csv"):
                writers[int(process.name)] = Path(name).parent.name
    return writers


def test_killed_workers_leave_the_bytes_of_one_process(cluster: str, tmp_path: Path) -> None:
    root = plant(tmp_path / "archive", 6, 80)
    command = (root, "--each", "--statistics", STATS, "--batch-size", 1, "--out-dir")
    whole = start(*command, tmp_path / "whole", "--workers", 1)
    out = tmp_path / "out"
    environment = {**os.environ, "RAY_ADDRESS": cluster}
    run = start(*command, out, "--ray", env=environment)
    draw = random.Random(0)
    killed = Counter[str]()
    goal = 20
    while killed.total() < KILLS and run.poll() is None:
        time.sleep(0.01)
        # A stream is begun three times at most.
        victims = [(pid, stream) for pid, stream in workers(out).items() if killed[stream] < 2]
        if victims and rows(out) >= goal:
            pid, stream = draw.choice(victims)
            killed[stream] += 1
            os.kill(pid, signal.SIGKILL)
            goal = rows(out) + draw.randrange(20, 60)
    said, errors = run.communicate(timeout=300)
    assert (run.returncode, killed.total()) == (0, KILLS), errors
    assert said.count(": 80 images") == 6
    assert whole.wait(200) == 0
    assert files(out) == files(tmp_path / "whole")
    again = subprocess.run(run.args, cwd=Path.cwd(), env=environment, capture_output=True, text=True, timeout=300)
    assert again.returncode == 0 and again.stdout.count(": 80 images") == 6  # all is finished
    assert files(out) == files(tmp_path / "whole")
