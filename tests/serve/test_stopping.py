"""A server that is stopped: idle cameras first, busy ones within a deadline, and the exit code tells."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fozo.serve.app import InferenceServer
from fozo.serve.limits import Refused
from fozo.serve.protocol import InferRequest
from fozo.serve.store import CameraInUse, folder_name
from fozo.state import read_state
from tests.serve.conftest import MODEL, NAME, STATS, config, foggy, frames, until
from tests.serve.test_cameras import close, header, logits, send
from tests.serve.test_limits import connect, head
from tests.serve.test_server import ask, new_adapter

# `fozo serve` where one camera's requests never end: in the decoder, or in the model.
HANGING = """
import sys, time, fozo.serve.pool, fozo.serve.protocol, fozo.serve.run
from pathlib import Path
from fozo.methods.align import Align
from fozo.__main__ import main
fozo.serve.run.STOP_SECONDS, fozo.serve.pool.Pool.close.__defaults__ = 1, (1.0,)
owner, name = (fozo.serve.protocol.InferRequest, "images") if sys.argv.pop(1) == "decode" else (Align, "step")
begun, real = Path(sys.argv.pop(1)), getattr(owner, name)
def hang(self, *given, **named):
    request = self if name == "images" else given[-1]
    if (request.tensor[0, 0, 0, 0] == 77) if name == "images" else len(request) == 2:
        begun.touch()
        time.sleep(1000)
    return real(self, *given, **named)
setattr(owner, name, hang)
main()
"""


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Requests of two images are decoded only once the event is set."""
    go, real = threading.Event(), InferRequest.images

    def images(request: InferRequest, *given: Any, **named: Any) -> Any:
        assert len(request.tensor) != 2 or go.wait(30)
        return real(request, *given, **named)

    monkeypatch.setattr(InferRequest, "images", images)
    yield go
    go.set()


def test_cameras_whose_requests_are_not_decoded_in_time_are_saved(tmp_path: Path, stuck: Any) -> None:
    """As they were before; the requests are refused, and learn nothing afterwards."""
    server = InferenceServer(config(tmp_path))
    server.start()
    assert server.pool is not None
    for name in ("idle", "busy"):
        logits(send(server, frames(3), name))
    late, queued = (send(server, frames(2), "busy") for _ in range(2))
    new = send(server, frames(2), "new")
    assert server.pool.close(0.2) == (3, [])
    assert [header(tmp_path, name)["images"] for name in ("idle", "busy")] == [3, 3]
    stuck.set()
    for future in (late, queued, new):
        with pytest.raises((CameraInUse, Refused), match="stopped"):
            future.result(30)
    server.stop()
    assert header(tmp_path, "busy")["images"] == 3 and not list(tmp_path.glob(f"*/{folder_name('new')}/camera.state"))


@contextmanager
def process(state: Path, *program: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """``fozo serve``, or a program that begins it, as a process of its own."""
    command = [
        sys.executable,
        *(program or ("-m", "fozo")),
        "serve",
        str(MODEL),
        "--statistics",
        str(STATS),
        "--name",
        NAME,
    ]
    command += ["--state", str(state), "--port", "0", "--threads", "1", "--save-every", "8"]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    try:
        assert started.stdout is not None
        line = started.stdout.readline()
        address = re.fullmatch(rf"fozo: serving {NAME} at http://(127\.0\.0\.1:\d+)\n", line)
        if address is None:
            started.kill()
            raise AssertionError(line + started.communicate()[1])
        yield started, address[1]
    finally:
        started.kill()
        started.communicate()


def test_after_a_kill_a_camera_goes_on_from_its_last_save(tmp_path: Path) -> None:
    """kill -9 and restart: it goes on exactly as an adapter that saw what was saved; repeated requests teach once."""
    pixels = foggy(frames(40))
    with process(tmp_path) as (server, url):
        answers = [
            ask(url, pixels[i : i + 1], sequence_id="cam", request_id=f"r{i}").as_numpy("logits") for i in range(20)
        ]
        until(lambda: header(tmp_path, "cam")["images"] >= 16)
        server.send_signal(signal.SIGKILL)
        server.wait(20)
    kept = header(tmp_path, "cam")["images"]
    assert kept == 16
    adapter = new_adapter()
    for i in range(kept):
        adapter(pixels[i : i + 1])
    with process(tmp_path) as (server, url):
        for i in (3, kept - 1):  # known: the same answers, and nothing learnt
            again = ask(url, pixels[i : i + 1], sequence_id="cam", request_id=f"r{i}").as_numpy("logits")
            np.testing.assert_array_equal(again, answers[i])
        for i in range(kept, 30):  # the client sends again what it cannot know to be kept, and goes on
            found = ask(url, pixels[i : i + 1], sequence_id="cam", request_id=f"r{i}").as_numpy("logits")
            close(found, adapter(pixels[i : i + 1]))
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    assert header(tmp_path, "cam")["images"] == 30
    other = new_adapter()
    (path,) = tmp_path.glob(f"*/{folder_name('cam')}/camera.state")
    owner, values = read_state(path, kind="camera")
    prefix = "method."
    other.resume(str(path), owner, {k.removeprefix(prefix): v for k, v in values.items() if k.startswith(prefix)})
    close(np.asarray(other(pixels[30:])), adapter(pixels[30:]))


EXECUTING = """
import os, signal, sys
from fozo.__main__ import interrupt
signal.signal(signal.SIGTERM, interrupt)
try:
    exec("os.kill(os.getpid(), signal.SIGTERM); [i for i in range(10**6)]")
except KeyboardInterrupt as stop:
    sys.exit(128 + stop.args[0])
"""


def test_a_signal_while_a_class_is_made_is_told_by_the_exit_code(tmp_path: Path) -> None:
    """Dataclasses are made by exec() of a text: SIGTERM there ended the start by SIGINT."""
    (tmp_path / "stopped.py").write_text(EXECUTING)
    ended = subprocess.run([sys.executable, "-m", "stopped"], cwd=tmp_path, timeout=60)
    assert ended.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize(("where", "images", "code"), [("decode", 3, 0), ("pass", None, 2)])
def test_it_exits_although_a_request_does_not_end(tmp_path: Path, where: str, images: int | None, code: int) -> None:
    state, begun = tmp_path / "state", tmp_path / "begun"
    with process(state, "-c", HANGING, where, str(begun)) as (server, url):
        for name in ("idle", "stuck"):
            ask(url, frames(3), sequence_id=name)
        data = {"inputs": [{"name": "images", "datatype": "UINT8", "shape": [2, 1, 28, 28], "data": [77] * 1568}]}
        body = json.dumps({**data, "parameters": {"sequence_id": "stuck"}}).encode()
        with connect(int(url.rpartition(":")[2]), head(len(body), "application/json") + body):
            until(begun.exists)
        server.send_signal(signal.SIGTERM)
        output, errors = server.communicate(timeout=20)
    assert server.returncode == code, errors
    assert header(state, "idle")["images"] == 3
    saved = list(state.glob(f"*/{folder_name('stuck')}/camera.state"))
    assert header(state, "stuck")["images"] == images if images else not saved
    assert ("saved 2 cameras" if images else "saved 1 camera ") in errors and output == ""
    assert images or "1 of the cameras could not be saved ('stuck')" in errors
