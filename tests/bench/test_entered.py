"""How far it is from the command to the first batch, for somebody who reads along."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from tests.helpers import REPO

MOST = 166
"""Before the rebuild benchmarks/entered.py counted 155, 59 of them in bench and cli. Those of io come on top: it judges
every file that is read or written, whatever is done with it. Some 25 came with
``fozo.data.inputs``: any form of
images, normalisations recognised, folders matched to classes by name."""


def test_the_way_to_the_first_batch_gets_no_longer() -> None:
    script = [sys.executable, str(REPO / "benchmarks" / "entered.py")]
    run = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    functions = [line for line in run.stdout.splitlines() if ".py: " in line]
    rooms = Counter(line.split("/")[0].split(".")[0] for line in functions)
    assert rooms["bench"] + rooms["cli"] <= 40, rooms
    assert rooms["io"] <= 28, rooms
    assert len(functions) - rooms["io"] <= MOST, rooms
