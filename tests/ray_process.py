"""Tests of Ray clusters run in a process of their own, because Ray may end the process that it is used in.

They share one cluster: starting and stopping it takes longer than most of them.
"""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.helpers import REPO

BREAKDOWNS = (
    "You have likely discovered a bug in Ray",
    "node timed out during startup",
    "ray.exceptions.ActorDiedError",
    "ray.exceptions.ActorUnavailableError",
    "ray.exceptions.RaySystemError",
    "ray.exceptions.NodeDiedError",
    "ray.exceptions.RpcError",
    "GcsRpcError",
    "Failed to connect to GCS",
    "was unable to register",
)
"""What Ray says where it broke down itself: at start, or under load."""
LIMIT, PER_START = 300.0, 60.0
"""Seconds that the cases may take at least, and for each second that ``import ray`` takes now: 1 to 2 when idle."""


def run_cases(paths: Sequence[Path], passed: int, home: Path) -> None:
    """Run files of cases and expect them to pass; only where Ray itself broke down are they tried again."""
    # On a busy machine a proxy needs more than the five seconds after which Ray Serve kills it and begins again.
    patience = {f"RAY_SERVE_PROXY_{check}_CHECK_TIMEOUT_S": "120" for check in ("READY", "HEALTH")}
    header = {"RAY_SERVE_SESSION_ID_HEADER_KEY": "x-sequence-id"}
    environment = {**os.environ, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0", **header, **patience}
    options = ["-n", "0", "-p", "no:cacheprovider", "-p", __name__, "--timeout", "0"]  # the limit below scales
    cases = [sys.executable, "-m", "pytest", *options, *map(str, paths)]
    for _ in range(3):
        start = time.monotonic()
        subprocess.run([sys.executable, "-c", "import ray"], check=True, env=environment)
        limit = max(LIMIT, PER_START * (time.monotonic() - start))
        try:
            run = subprocess.run(cases, cwd=REPO, env=environment, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired as error:
            pytest.fail(f"no end within {limit:.0f} s, which scale with the machine's load: {error.output}")
        output = run.stdout + run.stderr
        failed_assertion = re.search(r"^E +(AssertionError|assert )", output, re.M)
        if failed_assertion or (run.returncode >= 0 and not any(sentence in output for sentence in BREAKDOWNS)):
            break
    assert run.returncode == 0 and f"{passed} passed" in output, output


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The address of a cluster of two nodes of one processor each on this machine."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_agent_register_timeout_ms": "120000"}
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        yield made.address
    finally:
        made.shutdown()  # type: ignore[no-untyped-call]
