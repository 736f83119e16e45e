"""A Ray cluster of two nodes answers as one process does, also when a server is killed.

test_ray.py runs this file in a process of its own.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from fozo.serve.router import ranked
from fozo.serve.store import folder_name
from tests.serve.conftest import NAME, config, foggy, frames
from tests.serve.test_router import Array, message
from tests.serve.test_server import own

SERVERS = 2
CAMERAS = [f"c{i}" for i in range(4)]


@pytest.fixture
def cluster() -> Iterator[None]:
    """Two nodes of one processor each, which this process is connected to."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_agent_register_timeout_ms": "60000"}
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        made.add_node(num_cpus=1)
        ray.init(address=made.address, log_to_driver=False)
        yield
        serve.shutdown()  # type: ignore[no-untyped-call]
    finally:
        ray.shutdown()
        made.shutdown()  # type: ignore[no-untyped-call]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def ask(client: httpx.Client, images: Array, camera: str, id: str) -> Array:
    """Send a request until it is taken; it has an id, so it may come twice."""
    sent = message(images, camera, id)
    for _ in range(20):
        reply = client.post(sent.path, content=sent.body, headers=dict(sent.headers))
        if reply.status_code != 503:
            break
        time.sleep(0.5)
    assert reply.status_code == 200, reply.text
    length = int(reply.headers["inference-header-content-length"])
    return np.frombuffer(reply.content[length:], "<f4").reshape(-1, 10)


def images_saved(state: Path, camera: str) -> int:
    (path,) = state.glob(f"*/{folder_name(camera)}/camera.json")
    count: int = json.loads(path.read_text())["images"]
    return count


def test_cameras_go_on_where_a_server_was_killed(cluster: None, tmp_path: Path) -> None:
    """One request at a time, so nothing is merged: the answers are those of one process, to the last bit."""
    from ray import serve

    from fozo.serve.ray import application

    settings, port = config(tmp_path, save_every=1, workers=2), free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    serve.run(application(settings, servers=SERVERS), name="fozo", route_prefix="/")
    streams = {camera: foggy(frames(12, 20 * i), 0.1 * i) for i, camera in enumerate(CAMERAS)}
    adapters = {camera: own() for camera in CAMERAS}
    homes = {camera: ranked(f"{NAME} {camera}", SERVERS)[0] for camera in CAMERAS}
    assert set(homes.values()) == {0, 1}

    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:

        def turn(i: int) -> None:
            for camera in CAMERAS:
                part = streams[camera][3 * i : 3 * i + 3]
                found = ask(client, part, camera, f"{camera}-{i}")
                np.testing.assert_array_equal(found, np.asarray(adapters[camera](part), dtype=np.float32))

        assert client.get("/v2/health/ready").status_code == 200
        assert client.post(f"/v2/models/{NAME}/infer", content=b"{").status_code == 400
        turn(0)
        turn(1)
        text = client.get("/metrics").text
        for camera, home in homes.items():  # each is where it belongs, and nowhere else
            (line,) = [
                each for each in text.splitlines() if each.startswith("fozo_images_total") and f'"{camera}"' in each
            ]
            assert f'server="{home}"' in line and line.endswith(" 6.0")

        deadline = time.monotonic() + 30
        while any(images_saved(tmp_path, camera) < 6 for camera in CAMERAS):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        victim = serve.get_deployment_handle("server-0", "fozo").ready.remote().result()
        assert victim != os.getpid()
        os.kill(victim, signal.SIGKILL)
        turn(2)
        turn(3)
