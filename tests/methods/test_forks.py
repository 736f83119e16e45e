"""A fork after a call: FINDINGS A3, where the child hung for ever."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.methods.forking import KINDS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("kind", KINDS)
def test_a_forked_child_goes_on(kind: str, tmp_path: Path) -> None:
    if kind == "openvino":
        pytest.importorskip("openvino")
    run = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("forking.py")), kind, str(tmp_path)],
        env=os.environ | {"OMP_NUM_THREADS": "2"}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert run.returncode == 0 and run.stdout.strip() not in ("hung", "died"), run.stdout + run.stderr
    # torch adds up in another order on one thread than on two; all others compute the same bits.
    assert float(run.stdout) <= (1e-4 if kind in ("torch", "gradient") else 0), run.stdout + run.stderr
