"""A camera carried into the server, and live sources that go and come back."""

import re
from collections.abc import Generator
from contextlib import closing
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from fozo.cli import feed
from fozo.cli.folder import frames
from fozo.data import live
from fozo.data.live import LiveFrames
from fozo.errors import FozoError
from tests.cli.conftest import Call
from tests.io.test_notices import receiver, until
from tests.refusals import refuses
from tests.serve.conftest import config, foggy, reference, running
from tests.serve.conftest import frames as pictures

__all__ = ["reference"]

Frames = Generator[tuple[np.ndarray, float], None, None]
PIXELS = np.zeros((2, 2, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "frames"
    path.mkdir()
    clear = pictures(24)
    for number, picture in enumerate([*clear[:8], *foggy(pictures(64, 100))]):
        Image.fromarray(picture[:, :, 0]).save(path / f"{number:03}.png")
    return path


def test_a_folder_is_carried_into_the_server_and_events_to_a_webhook(call: Call, folder: Path, reference: Path) -> None:
    with receiver(200) as (hook, bodies), running(config(reference=reference, webhooks=(hook,))) as (address, server):
        code, said, errors = call("feed", folder, "--to", f"http://{address}", "--camera", "gate 3")
        assert code == 0, errors
        assert "fozo: 72 frames of gate 3 were sent" in errors
        assert re.search(r"^frame \d+: .*since image", said, re.MULTILINE), said
        metrics = server.metrics.text().decode()
        assert 'fozo_images_total{model="fashion",stream="gate 3"} 72.0' in metrics
        until(lambda: bodies)
        assert b'"camera": "gate 3"' in bodies[0][1] and b"thumbnail" not in bodies[0][1]


def test_what_the_server_or_the_user_lacks_is_one_sentence(call: Call, folder: Path) -> None:
    with running(config(token="secret")) as (address, _):
        url = f"http://{address}"
        for arguments, sentence in (
            (("--to", url), "refuses: this server needs a token"),
            (("--to", "gates"), "--to is 'gates'; give the server's address"),
            (("--to", url, "--every", -1), "--every is -1; give the seconds"),
        ):
            code, _, errors = call("feed", folder, "--camera", "a", *arguments)
            assert code == 2 and sentence in errors and "Traceback" not in errors
        token = folder.parent / "token"
        token.write_text("secret\n")
        given = ("feed", folder, "--to", url, "--camera", "a", "--token-file", token)
        assert call(*given, "--model", "other")[2].startswith("fozo: the server has no model 'other'; give one of fash")
        code, said, errors = call(*given)
        assert (code, said) == (0, ""), errors  # nothing is monitored there


def test_a_frame_of_a_folder_is_sent_until_it_is_taken_and_one_of_a_camera_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(feed, "FIRST_PAUSE", 0.001)
    with receiver(503, 503, 400) as (url, bodies), closing(feed.Server(url.partition("/hook")[0], "a")) as server:
        assert server.send(b"frame", again=False) == "" and len(bodies) == 1
        refuses("refuses: it answered 400", server.send, b"frame", again=True)
    assert [body for _, body in bodies] == [b"frame"] * 3 and server.sent == 0
    assert "the next try is in 0.001 s" in capsys.readouterr().err


def test_a_camera_that_is_gone_comes_back_and_late_frames_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    opened = 0

    def video_frames(source: str) -> Frames:
        nonlocal opened
        opened += 1
        if opened == 2:
            raise FozoError("cannot read a frame")
        for number in range(3):
            yield PIXELS, 10.0 * opened + number

    monkeypatch.setattr(live, "video_frames", video_frames)
    with closing(LiveFrames("rtsp://user:word@gate/1", said.append, pause=0.05)) as source:
        until(lambda: source.lost == 1)
        stream = iter(source)
        assert next(stream) == (PIXELS, 12.0)  # the newest of three
        assert source.dropped == 2
        until(lambda: source.lost >= 3)
        times = [frame[1] for frame in (next(stream), next(stream)) if frame is not None]
        assert times and min(times) >= 30.0
    assert said[0] == "no frames of rtsp://gate/1: it ended; the next try is in 0.05 s"
    assert said[1].startswith("no frames of rtsp://gate/1: cannot read a frame; the next try is in 0.1")
    assert "rtsp://gate/1 is back" in said


def test_a_number_that_no_camera_has_is_an_error_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def video_frames(source: str) -> Frames:
        if source:
            raise FozoError(f"OpenCV cannot read a frame of camera {source}")
        yield PIXELS, 0.0

    monkeypatch.setattr(live, "video_frames", video_frames)
    refuses("camera 77", next, frames("77"))


def test_a_video_behind_an_address_is_read(tmp_path: Path) -> None:
    cv2 = pytest.importorskip("cv2")
    clip = tmp_path / "clip.avi"
    writer = cv2.VideoWriter(str(clip), cv2.VideoWriter_fourcc(*"MJPG"), 5, (32, 32))
    for _ in range(5):
        writer.write(np.full((32, 32, 3), 90, np.uint8))
    writer.release()
    assert _reads(clip.read_bytes())


def _reads(data: bytes) -> bool:
    from http.server import ThreadingHTTPServer
    from threading import Thread

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        stream = frames(f"http://127.0.0.1:{server.server_port}/clip.avi")
        frame = next(frame for frame in stream if frame is not None)
        stream.close()  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
    return frame.pixels.shape == (32, 32, 3)
