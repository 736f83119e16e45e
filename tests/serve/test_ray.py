"""Serving on a Ray cluster, in a process of its own; and what needs none."""

import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers import REPO
from tests.ray_process import run_cases
from tests.refusals import refuses
from tests.serve.conftest import MODEL, NAME, STATS, config

NEEDED = ("ray", "fastapi", "grpc", "mmh3")
"""What Ray Serve cannot be imported without."""


@pytest.fixture(autouse=True)
def _ray_serve() -> None:
    for name in NEEDED:
        pytest.importorskip(name, reason="needs Ray Serve: pip install 'fozo[ray-serve]'")


@pytest.mark.ray
def test_a_cluster(tmp_path: Path) -> None:
    run_cases([REPO / "tests" / "serve" / "ray_cases.py"], 4, tmp_path)


def test_an_application_is_made_of_a_file(tmp_path: Path) -> None:
    from fozo.serve.ray import application, from_file

    path = tmp_path / "serve.toml"
    path.write_text(f'state = "cameras"\n[models.fashion]\nmodel = "{MODEL}"\nstatistics = "{STATS}"\n')
    assert from_file({"config": str(path), "servers": "3", "cpus": "0.5"}) is not None
    for wrong in ({}, {"config": str(path), "server": "3"}, {"config": str(path), "servers": "three"}):
        refuses("give", from_file, wrong)
    refuses("give state", application, config())
    refuses("servers is 0", application, config(tmp_path), servers=0)


def test_a_replica_reads_nothing_before_it_has_checked_the_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fozo.serve.ray import Replica

    monkeypatch.setattr("ray.serve.get_replica_context", lambda: SimpleNamespace(deployment="server", app_name="fozo"))
    monkeypatch.setattr("ray.serve.get_deployment_handle", lambda *_: None)
    replica, sent = Replica(config(tmp_path, token="secret")), list[Any]()

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": f"/v2/models/{NAME}/infer", "headers": [], "query_string": b""}
    asyncio.run(replica.__serve_build_asgi_app__()(scope, receive, send))
    replica.stop()
    assert sent[0]["status"] == 401


def test_without_ray_one_sentence_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "fozo.serve.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    refuses(r"pip install 'fozo\[ray-serve\]'", __import__, "fozo.serve.ray")
