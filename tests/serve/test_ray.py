"""Serving on Ray: ray_cases.py in a process of its own, because Ray may end it; and what needs no cluster."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fozo.errors import FozoError
from tests.bench.test_ray_executor import OF_RAY
from tests.helpers import REPO
from tests.serve.conftest import MODEL, STATS, config

NEEDED = ("ray", "fastapi", "grpc")
"""What Ray Serve cannot be imported without."""


@pytest.fixture(autouse=True)
def _ray_serve() -> None:
    for name in NEEDED:
        pytest.importorskip(name, reason="needs Ray Serve: pip install 'fozo[ray-serve]'")


def test_a_cluster() -> None:
    """Tried again only where Ray itself broke down; what fails in our tests fails here."""
    cases = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__).with_name("ray_cases.py"))]
    for _ in range(3):
        run = subprocess.run(cases, cwd=REPO, capture_output=True, text=True, timeout=250)
        said = run.stdout + run.stderr
        if run.returncode >= 0 and OF_RAY not in said and "node timed out during startup" not in said:
            break
    assert run.returncode == 0 and "1 passed" in said, said


def test_an_application_is_made_of_a_file(tmp_path: Path) -> None:
    from fozo.serve.ray import application, from_file

    path = tmp_path / "serve.toml"
    path.write_text(f'state = "cameras"\n[models.fashion]\nmodel = "{MODEL}"\nstats = "{STATS}"\n')
    assert from_file({"config": str(path), "servers": "3", "cpus": "0.5"}) is not None
    for wrong in ({}, {"config": str(path), "server": "3"}, {"config": str(path), "servers": "three"}):
        with pytest.raises(FozoError, match="give"):
            from_file(wrong)
    with pytest.raises(FozoError, match="give state"):
        application(config())
    with pytest.raises(FozoError, match="servers is 0"):
        application(config(tmp_path), servers=0)


def test_without_ray_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fozo.serve.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FozoError, match=r"pip install 'fozo\[ray-serve\]'"):
        __import__("fozo.serve.ray")
