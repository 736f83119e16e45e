"""Cameras come and go, servers too: memories stay, in order, and separate."""

import itertools
import random
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

import fozo
from fozo.serve.app import InferenceServer
from fozo.serve.config import ServeConfig
from fozo.serve.limits import Refused
from fozo.serve.protocol import InferRequest
from fozo.serve.store import STATE_FILE, CameraFolder, CameraInUse, folder_name
from fozo.state import read_state
from tests.serve.conftest import NAME, Counting, config, foggy, frames, running, until
from tests.serve.test_server import ask, jpeg, new_adapter

Array = np.ndarray[Any, np.dtype[Any]]
LOGITS = {"logits": True}


def request(images: Array, camera: str = "cam", id: str = "", **changes: Any) -> InferRequest:
    return InferRequest(
        id, camera, **({"start": False, "end": False} | changes), outputs=LOGITS, reported=frozenset(), tensor=images
    )


def logits(future: Future[tuple[bytes, int | None]]) -> Array:
    data, length = future.result(30)
    assert length is not None
    return np.frombuffer(data[length:], "<f4").reshape(-1, 10)


def send(server: InferenceServer, *given: Any, **named: Any) -> Future[tuple[bytes, int | None]]:
    assert server.pool is not None
    return server.pool.submit(server.models[NAME], request(*given, **named))


@contextmanager
def pool(settings: ServeConfig) -> Iterator[Any]:
    """A server without HTTP: what sends it a request."""
    server = InferenceServer(settings)
    server.start()
    try:
        yield partial(send, server)
    finally:
        server.stop()


def post(url: str, camera: str, picture: bytes = b"x") -> httpx.Response:
    path, headers = f"http://{url}/v2/models/{NAME}/infer", {"Content-Type": "image/png"}
    return httpx.post(path, params={"sequence_id": camera}, content=picture, headers=headers)


def close(found: Array, expected: object) -> None:
    np.testing.assert_allclose(found, np.asarray(expected), rtol=5e-3, atol=5e-3)


def header(state: Path, camera: str) -> dict[str, Any]:
    """What a camera's file says of it."""
    (path,) = state.glob(f"*/{folder_name(camera)}/{STATE_FILE}")
    owner, values = read_state(path, kind="camera")
    return {"id": owner["camera"], "images": values["past.images"]}


def test_requests_of_a_camera_keep_their_order(tmp_path: Path) -> None:
    """Forty requests of four cameras at once, on eight threads: each camera's are answered as they came."""
    streams = {f"c{i}": foggy(frames(10, 20 * i), 0.2 * i) for i in range(4)}
    with pool(config(tmp_path)) as submit:
        futures = [(c, i, submit(streams[c][i : i + 1], c)) for i in range(10) for c in streams]
        found = {(c, i): logits(future) for c, i, future in futures}
    for camera, stream in streams.items():
        adapter = new_adapter()
        for i in range(10):
            close(found[camera, i], adapter(stream[i : i + 1]))


@pytest.mark.parametrize("way", ["idle", "crowded", "end", "stopped"])
def test_a_camera_that_returns_continues(tmp_path: Path, way: str, reference: Path) -> None:
    """Whatever made it leave the memory, it is found again, as if it had never left."""
    ways: dict[str, dict[str, Any]] = {"idle": {"idle": 0.05}, "crowded": {"max_cameras": 1}}
    settings = config(tmp_path, reference, **ways.get(way, {}))
    adapter, parts = new_adapter(), np.split(foggy(frames(24)), 6)
    with ExitStack() as stack:
        submit = stack.enter_context(pool(settings))
        for part in parts:
            close(logits(submit(part, end=way == "end")), adapter(part))
            line = submit.args[0].pool
            if way == "crowded":
                submit(part, "other").result(30)
                assert line.cameras <= 2
            elif way == "stopped":
                stack.close()
                submit = stack.enter_context(pool(settings))
            else:
                until(lambda line=line: not line.cameras)
    assert header(tmp_path, "cam")["images"] == 24


def test_stateless_requests_learn_nothing(tmp_path: Path) -> None:
    pixels = foggy(frames(8, 400))
    with pool(config(tmp_path, anonymous="stateless", save_every=1)) as submit:
        first, second = (logits(submit(pixels, "", end=end)) for end in (False, True))
        np.testing.assert_array_equal(first, second)
        line = submit.args[0].pool
        assert line.cameras == 0
        logits(submit(pixels, "one"))
        assert line.cameras == 1
    assert len([each for each in tmp_path.glob("*/*") if each.is_dir()]) == 1


def test_hostile_names_stay_in_the_folder(tmp_path: Path) -> None:
    names = ["../../x", "/etc/passwd", "a/b", "\x00", "..", ".", "x" * 256, "\U0001f4f7", "A", "a"]
    state = tmp_path / "inner" / "state"
    with pool(config(state)) as submit:
        for name in names:
            logits(submit(frames(1), name))
    assert [each.name for each in tmp_path.iterdir()] == ["inner"] and len(list((tmp_path / "inner").iterdir())) == 1
    (model,) = (each for each in state.iterdir() if each.is_dir())
    folders = [each for each in model.iterdir() if each.is_dir()]
    assert len(folders) == len(names) and all(re.fullmatch(r"[\w-]+", each.name, re.ASCII) for each in folders)
    assert {read_state(each / STATE_FILE, kind="camera")[0]["camera"] for each in folders} == set(names)


def test_one_server_for_a_state(tmp_path: Path) -> None:
    with pool(config(tmp_path)), pytest.raises(fozo.FozoError, match="another server keeps its cameras"):
        InferenceServer(config(tmp_path))
    with running(config(tmp_path, shared=True)) as (url, _), pool(config(tmp_path, shared=True)) as submit:
        logits(submit(frames(1), "theirs"))
        reply = post(url, "theirs")
        assert reply.status_code == 503 and "Retry-After" in reply.headers and "another server" in reply.json()["error"]
        assert ask(url, frames(1), sequence_id="ours").as_numpy("logits").shape == (1, 10)


def test_two_servers_on_one_folder_are_safe_under_any_routing(tmp_path: Path) -> None:
    """Requests go to either at random: a camera is in one of them at a time, and goes on where the other saved it."""
    choices, settings = random.Random(0), config(tmp_path, shared=True, workers=2)
    refused, cameras = 0, {f"c{i}": (new_adapter(), foggy(frames(12, 20 * i), 0.2 * i)) for i in range(2)}
    with pool(settings) as one, pool(settings) as other:
        for i, (camera, (adapter, stream)) in itertools.product(range(12), cameras.items()):
            part, end = stream[i : i + 1], choices.random() < 0.4  # where it ends, the other server may have it next
            first, second = choices.sample([one, other], 2)
            try:
                found = logits(first(part, camera, end=end))
            except CameraInUse:
                refused += 1
                found = logits(second(part, camera, end=end))
            np.testing.assert_array_equal(found, np.asarray(adapter(part), dtype=np.float32))
            until(lambda camera=camera, end=end: not end or _is_free(tmp_path, camera))
    assert refused > 3 and all(header(tmp_path, camera)["images"] == 12 for camera in cameras)


def _is_free(state: Path, camera: str) -> bool:
    (path,) = state.glob(f"*/{folder_name(camera)}")
    try:
        CameraFolder(path, camera).close()
        return True
    except CameraInUse:
        return False


def test_the_camera_that_was_idle_for_longest_leaves_the_memory(tmp_path: Path) -> None:
    with pool(config(tmp_path, max_cameras=2)) as submit:
        line = submit.args[0].pool
        for name in "abac":
            logits(submit(frames(1), name))
            until(lambda: not line.queued)
        assert line.cameras == 2 and header(tmp_path, "b")["images"] == 1
        assert len(list(tmp_path.rglob(STATE_FILE))) == 1  # only a camera that leaves was saved


def test_a_camera_is_saved_every_few_images_and_stays_while_it_is_used(tmp_path: Path) -> None:
    with pool(config(tmp_path, save_every=4, idle=1000.0)) as submit:
        line = submit.args[0].pool
        logits(submit(frames(4)))
        until(lambda: list(tmp_path.rglob(STATE_FILE)))
        sweeps = iter([False, True])  # one look for idle cameras, now
        line._stop, stop = SimpleNamespace(wait=lambda seconds: next(sweeps)), line._stop
        line._evict_idle()
        line._stop = stop
        assert line.cameras == 1


def test_a_camera_is_released_to_another_server(tmp_path: Path) -> None:
    settings = config(tmp_path, shared=True)
    with pool(settings) as one, pool(settings) as other:
        logits(one(frames(1)))
        one.args[0].pool.release(NAME, "unknown")
        with pytest.raises(CameraInUse):
            logits(other(frames(1)))
        one.args[0].pool.release(NAME, "cam")
        logits(other(frames(1)))
    assert header(tmp_path, "cam")["images"] == 2
    with held(workers=1) as (_, server, hold, go):  # but not while it is busy
        assert server.pool is not None
        future = send(server, frames(1))
        until(lambda: hold.begun)
        server.pool.release(NAME, "cam", patience=0.01)
        go.set()
        logits(future)
        until(lambda: not server.pool.queued)
        assert server.pool.cameras == 1
        server.pool.release(NAME, "cam")
        assert server.pool.cameras == 0


def test_a_full_disk_loses_nothing_that_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves that fail are logged; predictions go on, and the next save has it all."""
    adapter, parts = new_adapter(), np.split(foggy(frames(24)), 6)
    failed = list[int]()

    def full(folder: CameraFolder, *given: object) -> None:
        failed.append(1)
        raise fozo.FozoError("the disk is full")

    with pool(config(tmp_path, save_every=4, idle=0.05)) as submit:
        with monkeypatch.context() as patch:
            patch.setattr(CameraFolder, "save", full)
            for part in parts[:5]:
                close(logits(submit(part)), adapter(part))
            until(lambda: len(failed) > 6)
        close(logits(submit(parts[5])), adapter(parts[5]))
    assert header(tmp_path, "cam")["images"] == 24


@contextmanager
def held(**settings: Any) -> Iterator[tuple[str, InferenceServer, Counting, threading.Event]]:
    """A server whose model waits."""
    with running(config(**settings)) as (url, server):
        engine: Any = server.models[NAME].engine
        go = threading.Event()
        engine.engine = counting = Counting(engine.engine, go)
        try:
            yield url, server, counting, go
        finally:
            go.set()


def test_full_queues_are_refused(tmp_path: Path) -> None:
    with held(workers=1, max_camera_queue=2, max_queue=8) as (url, server, hold, go):
        futures = [send(server, frames(1))]
        until(lambda: hold.begun)
        futures += [send(server, frames(1)) for _ in range(2)]
        slow = post(url, "cam")
        assert slow.status_code == 429 and "send more slowly" in slow.json()["error"]
        assert slow.headers["Retry-After"] == "1"
        futures.append(send(server, frames(1), "other"))
        futures += [send(server, frames(1), f"theirs-{i}", client="127.0.0.1") for i in range(2)]
        full = post(url, "third")
        assert full.status_code == 503 and full.headers["Retry-After"] == "1" and "6 requests" in full.json()["error"]
        go.set()
        assert all(logits(each).shape == (1, 10) for each in futures)
        metrics = httpx.get(f"http://{url}/metrics").text
        assert f'fozo_requests_total{{code="429",model="{NAME}"}} 1.0' in metrics


def test_clients_take_turns_and_so_do_their_cameras() -> None:
    """A flood of one client, under many names, is answered in turn with the camera of another."""
    with held(workers=1, max_queue=64) as (_, server, hold, go):
        order = list[str]()

        def ask(camera: str, client: str) -> None:
            future = send(server, frames(1), camera, client=client)
            future.add_done_callback(lambda _: order.append(camera))

        ask("first", "flood")
        until(lambda: hold.begun)
        for i in range(8):
            ask(f"flood-{i % 4}", "flood")
        for _ in range(3):
            ask("polite", "other")
        go.set()
        until(lambda: len(order) == 12)
    assert order[:7] == ["first", "flood-0", "polite", "flood-1", "polite", "flood-2", "polite"]
    assert order[7:] == ["flood-3", "flood-0", "flood-1", "flood-2", "flood-3"]


def test_a_flood_leaves_room_for_other_clients() -> None:
    with held(workers=1, max_queue=16) as (_, server, _, go):
        taken = list[Any]()
        with pytest.raises(Refused, match="waiting already"):
            for i in range(16):
                taken.append(send(server, frames(1), f"flood-{i}", client="flood"))
        assert len(taken) == 8
        for name in ("one", "two", "three"):
            taken.append(send(server, frames(1), name, client=name))
        go.set()
        for future in taken:
            logits(future)
        until(lambda: server.pool is not None and not server.pool.queued)
        assert server.pool is not None and not server.pool._waiting


def test_a_request_that_waits_too_long_is_refused(tmp_path: Path) -> None:
    with held(workers=1, timeout=0.2) as (url, *_):
        reply = post(url, "late", jpeg(frames(1)[0], "PNG"))
        assert reply.status_code == 504 and "within 0.2 s" in reply.json()["error"]


def test_a_client_that_has_gone_is_not_worked_for() -> None:
    """A request that waits is dropped when its client hangs up; one that is under way is finished."""
    with held(workers=1) as (url, server, hold, go):
        line = server.pool
        assert line is not None
        host, port = url.split(":")
        picture = jpeg(frames(1)[0], "PNG")
        head = f"POST /v2/models/{NAME}/infer?sequence_id=%s HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
        clients = []
        for number, name in enumerate(("first", "second")):
            client = socket.create_connection((host, int(port)), timeout=20)
            client.sendall((head % name).encode() + b"Content-Length: %d\r\n\r\n" % len(picture) + picture)
            clients.append(client)
            until(lambda wanted=number + 1: hold.begun and line.queued == wanted)
        clients[1].close()
        until(lambda: line._slots[NAME, "second"].jobs[0][1].cancelled())
        go.set()
        assert b"200 OK" in clients[0].recv(100)
        clients[0].close()
        until(lambda: line.queued == 0)
        metrics = httpx.get(f"http://{url}/metrics").text
        assert 'stream="first"} 1.0' in metrics and 'stream="second"' not in metrics
