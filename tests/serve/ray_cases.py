"""A Ray cluster of two nodes answers as one process does, also when a replica is killed.

test_ray.py runs this file, and gives it the cluster.
"""

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import ray
from ray import serve
from ray.util import list_named_actors

from fozo.serve.ray import application
from tests.serve.conftest import NAME, config, foggy, frames, until
from tests.serve.test_cameras import header
from tests.serve.test_server import Array, new_adapter

PATH = f"/v2/models/{NAME}/infer"


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("state")


@pytest.fixture(scope="module")
def client(cluster: str, state: Path) -> Iterator[httpx.Client]:
    """Two replicas on two nodes."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ray.init(address=cluster, log_to_driver=False)
    serve.start(http_options={"host": "127.0.0.1", "port": port}, proxy_location="HeadOnly")
    settings = config(state, save_every=1, workers=2, token="secret")
    serve.run(application(settings, servers=2), name="fozo", route_prefix="/")
    headers = {"Authorization": "Bearer secret"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=headers) as client:
        yield client
    ray.shutdown()


def ask(client: httpx.Client, images: Array, camera: str, id: str, **headers: str) -> Array:
    """Send a request until it is taken; it has an id, so it may come twice."""
    given = {"name": "images", "datatype": "UINT8", "shape": list(images.shape)}
    payload = {
        "id": id, "parameters": {"sequence_id": camera},
        "inputs": [{**given, "parameters": {"binary_data_size": images.nbytes}}],
        "outputs": [{"name": "logits", "parameters": {"binary_data": True}}],
    }  # fmt: skip
    text = json.dumps(payload).encode()
    headers["Inference-Header-Content-Length"] = str(len(text))
    for _ in range(40):
        reply = client.post(PATH, content=text + images.tobytes(), headers=headers)
        if reply.status_code < 500:
            break
        time.sleep(0.5)
    assert reply.status_code == 200, reply.text
    length = int(reply.headers["inference-header-content-length"])
    return np.frombuffer(reply.content[length:], "<f4").reshape(-1, 10)


def replicas() -> dict[str, str]:
    """Names of the replicas' actors, by their ids."""
    names = [each["name"] for each in list_named_actors(all_namespaces=True)]
    return {name.rpartition("#")[2]: name for name in names if "#server#" in name}


def counts(client: httpx.Client, camera: str) -> dict[str, float]:
    """Images of a camera that each replica has counted, by its rank."""
    lines = client.get("/metrics").text.splitlines()
    of_camera = [line for line in lines if line.startswith("fozo_images_total") and f'stream="{camera}"' in line]
    return {line.partition('server="')[2].partition('"')[0]: float(line.split()[-1]) for line in of_camera}


def test_the_protocol_is_as_on_one_server(client: httpx.Client) -> None:
    assert client.get("/v2/health/ready").status_code == 200
    assert client.get(f"/v2/models/{NAME}").json()["name"] == NAME
    assert client.post(PATH, content=b"{").status_code == 400
    assert client.get("/metrics", headers={"Authorization": "no"}).status_code == 401
    images = {"name": "images", "datatype": "FP32", "shape": [3, 9, 9], "data": [0.0] * 243}
    # Refused by the replica that has the camera, through the one that parsed it.
    refused = client.post(PATH, json={"parameters": {"sequence_id": "wrong"}, "inputs": [images]})
    assert refused.status_code == 400 and "has shape [1, 3, 9, 9]" in refused.json()["error"]


def test_cameras_continue_where_a_replica_was_killed(client: httpx.Client, state: Path) -> None:
    """One request at a time, so nothing is merged: the responses are those of one process, to the last bit.

    Half of the cameras are named in the header and routed by Ray's proxy; the others are handed on by a replica.
    """
    cameras = [f"c{i}" for i in range(16)]  # each replica has some: all on one happens once in some ten thousand times
    streams = {camera: foggy(frames(12, 20 * i), 0.1 * i) for i, camera in enumerate(cameras)}
    adapters = {camera: new_adapter() for camera in cameras}

    def turn(i: int) -> None:
        for number, camera in enumerate(cameras):
            images = streams[camera][3 * i : 3 * i + 3]
            routed = {"X-Sequence-Id": camera} if number % 2 else {}
            logits = ask(client, images, camera, f"{camera}-{i}", **routed)
            np.testing.assert_array_equal(logits, np.asarray(adapters[camera](images), dtype=np.float32))

    turn(0)
    turn(1)
    seen = [counts(client, camera) for camera in cameras]
    assert all(list(images.values()) == [6.0] for images in seen)  # each on one replica, and on no other
    assert {rank for images in seen for rank in images} == {"0", "1"}
    until(lambda: all(header(state, camera)["images"] == 6 for camera in cameras), 120)
    before = replicas()
    victim = min(before)
    ray.kill(ray.get_actor(before[victim], namespace="serve"))
    turn(2)
    until(lambda: len(replicas()) == 2 and victim not in replicas(), 120)
    until(lambda: client.get("/metrics").text.count("\nfozo_streams{") == 2, 120)  # the others know the new one
    turn(3)  # some cameras belong to the new replica, and are released by the one that took them over


def test_rays_routing_alone_is_no_guarantee_but_the_locks_are(client: httpx.Client) -> None:
    """Ray sends a request wherever its header says, to two replicas in turn: the camera moves, and nothing is lost."""
    stream = frames(8, 300)
    adapter = new_adapter()
    keys: dict[str, str] = {}  # one that leads to each replica
    for i in range(40):
        if len(keys) < 2:
            ask(client, stream[:1], f"key-{i}", f"key-{i}", **{"X-Sequence-Id": f"key-{i}"})
            (rank,) = counts(client, f"key-{i}")
            keys.setdefault(rank, f"key-{i}")
    for i in range(8):
        key = list(keys.values())[i % 2]
        logits = ask(client, stream[i : i + 1], "moved", f"moved-{i}", **{"X-Sequence-Id": key})
        np.testing.assert_array_equal(logits, np.asarray(adapter(stream[i : i + 1]), dtype=np.float32))
    assert counts(client, "moved") == {"0": 4.0, "1": 4.0}


def test_cameras_are_saved_at_shutdown(client: httpx.Client, state: Path) -> None:
    ask(client, frames(4), "last", "last-0")
    serve.delete("fozo")
    until(lambda: header(state, "last")["images"] == 4, 120)
