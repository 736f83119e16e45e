"""The front: connections, headers, TLS handshakes, other sites, what a client is told to wait, and the log."""

import logging
import select
import shutil
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

from fozo.errors import FozoError
from fozo.serve.app import create_app
from fozo.serve.limits import ACCESS_LINES, LOG_LINES, MAX_RETRY, LogLimit, Pace
from fozo.serve.run import FrontServer, _listen, serve
from tests.helpers import REPO
from tests.serve.conftest import MODEL, NAME, STATS, config, running, until
from tests.serve.test_limits import PATH, PNG, connect, encoded, status


@contextmanager
def front(**settings: Any) -> Iterator[int]:
    """Run the server as ``fozo serve`` does, but for signals."""
    chosen = config(**settings)
    listener, ready = _listen("127.0.0.1", 0), threading.Event()
    server = FrontServer(create_app(chosen), chosen, ready.set)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def test_connections_that_never_end_their_headers_are_given_up() -> None:
    with front(header_timeout=0.4) as port, ExitStack() as stack:
        silent = stack.enter_context(connect(port))
        partial = stack.enter_context(connect(port, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "))
        second = stack.enter_context(connect(port, b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"))
        assert status(second) == 200
        second.sendall(b"GET /v2 HTTP/1.1\r\nHost: ")
        idle = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{port}"))
        before = idle.get("/v2").extensions["network_stream"]
        for client in (silent, partial, second):
            with suppress(ConnectionResetError):
                while client.recv(1000):
                    pass
        time.sleep(0.5)
        assert idle.get("/v2").extensions["network_stream"] is before


@pytest.mark.parametrize("before", [b"", b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_endless_headers_are_cut(before: bytes) -> None:
    """Whichever of uvicorn's parsers is installed, also on a connection that has had an answer; bodies are not."""
    with front(header_timeout=60.0) as port:
        with connect(port, before + b"GET /v2 HTTP/1.1\r\nX: ") as client, suppress(ConnectionError):
            for _ in range(1000):
                client.sendall(b"x" * 50_000)
                time.sleep(0.001)
            raise AssertionError("50 MB of headers were read")
        large = b"x" * 200_000
        assert httpx.post(f"http://127.0.0.1:{port}{PATH}", content=large, headers=PNG).status_code == 400


def test_connections_are_limited_and_the_newest_is_served() -> None:
    with front(max_connections=8) as port, ExitStack() as stack:
        kept = [stack.enter_context(connect(port, b"GET /v2")) for _ in range(30)]
        for _ in range(5):
            assert httpx.get(f"http://127.0.0.1:{port}/v2").status_code == 200
        until(lambda: len(select.select(kept, [], [], 0)[0]) >= 22)
        for client in select.select(kept, [], [], 0)[0]:
            with suppress(ConnectionResetError):
                assert client.recv(100) == b""


def test_the_log_is_limited() -> None:
    limit = LogLimit()

    def log(line: int, seconds: float, level: int = logging.ERROR) -> str:
        record = logging.LogRecord("asyncio", level, "events.py", line, f"line {line} at {seconds}", (), None)
        record.created = seconds
        return record.getMessage() if limit.filter(record) else ""

    assert sum(bool(log(1, i / 100)) for i in range(1000)) == LOG_LINES
    assert log(2, 10) == "line 2 at 10" and all(log(3, 1, logging.INFO) for _ in range(100))
    assert f"{1000 - LOG_LINES} more" in log(1, 100)


def corrupt(tag: int) -> bytes:
    """A JPEG whose EXIF data have a tag that is not there: Pillow warns of each."""
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHIII", 8, 1, tag, 1, 999, 9, 0)
    whole = encoded(28, "JPEG")
    return whole[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + whole[20:]


def test_strangers_do_not_fill_the_log(tmp_path: Path) -> None:
    """Garbage, pictures that Pillow warns of, and more connections than the process may open."""
    command = ["serve", str(MODEL), "--stats", str(STATS), "--name", NAME, "--port", "0"]
    limited = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (48, 48)); from fozo.__main__ import main; main()"
    with (tmp_path / "log").open("wb") as log, ExitStack() as stack:
        server = subprocess.Popen(
            [sys.executable, "-c", limited, *command], stdout=subprocess.PIPE, stderr=log, cwd=REPO, text=True
        )
        stack.callback(server.kill)
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        for _ in range(40):
            with connect(port, b"\x00\x01garbage\r\n\r\n") as client:
                assert b"400" in client.recv(1000)
        for tag in range(60_000, 60_040):
            assert httpx.post(f"http://127.0.0.1:{port}{PATH}", content=corrupt(tag), headers=PNG).status_code == 200
        with ExitStack() as strangers:
            for _ in range(60):
                strangers.enter_context(connect(port, b"GET"))
            time.sleep(2.5)
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/v2/health/live").status_code == 200)
        server.terminate()
        assert server.wait(30) == 0
        server.stdout.close()
    text = (tmp_path / "log").read_text()
    assert text.count("Invalid HTTP") == text.count("Skipping tag") == LOG_LINES
    least = 0 if find_spec("uvloop") else 1  # uvloop does not log it
    assert least <= text.count("Too many open files") <= LOG_LINES


SITES: list[tuple[str, dict[str, str], int]] = [
    ("/events", {"Sec-Fetch-Site": "cross-site"}, 403),
    ("/events", {"Sec-Fetch-Site": "same-site"}, 403),
    ("/metrics", {"Sec-Fetch-Site": "same-origin"}, 200),
    ("/metrics", {"Sec-Fetch-Site": "none"}, 200),
    ("/v2/health/live", {"Sec-Fetch-Site": "cross-site"}, 200),
    (PATH, {"Sec-Fetch-Site": "cross-site"}, 403),
    ("/metrics", {"Host": ""}, 421),
    ("/metrics", {"Host": "", "Origin": "null"}, 421),
    ("/metrics", {"Origin": "null"}, 403),
]


def test_pages_of_other_sites_and_empty_hosts() -> None:
    with running(config()) as (url, _):
        for path, headers, code in SITES:
            reply = httpx.request("POST" if path == PATH else "GET", f"http://{url}{path}", headers=headers)
            assert reply.status_code == code, (path, headers)
        port = int(url.rpartition(":")[2])
        for origin, code in ((b"", 200), (b"Origin: null\r\n", 403)):  # HTTP/1.0, as of simple health checks
            with connect(port, b"GET /metrics HTTP/1.0\r\n" + origin + b"\r\n") as client:
                assert status(client) == code


def test_bad_tls_files_are_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("no certificate")
    for certificate, words in ((tmp_path / "cert.pem", "PEM"), (tmp_path / "none.pem", "No such file")):
        with pytest.raises(FozoError, match="cannot use the certificate") as caught:
            serve(config(certificate=str(certificate), key=str(certificate)))
        assert words in str(caught.value) and str(certificate) in str(caught.value)


def test_a_client_is_told_how_long_the_queue_takes() -> None:
    now = 100.0
    pace = Pace(lambda: now)
    assert pace.wait(0) == 1
    pace.begin()
    for _ in range(200):  # one every half second
        now += 0.5
        pace.finish()
    assert [pace.wait(n) for n in (0, 1, 2, 10, 100, 1000)] == [1, 1, 1, 5, 50, MAX_RETRY]
    now += 20
    assert [pace.wait(n) for n in (0, 1, 100)] == [1, 20, 50]  # nothing was finished for 20 s
    now += 3600
    pace.begin()  # an hour without requests says nothing about the pace
    assert pace.wait(10) == 5


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_a_tls_handshake_that_never_ends_is_given_up(tmp_path: Path) -> None:
    certificate, key = str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "1"]
    subprocess.run([*made, "-out", certificate, "-keyout", key], check=True, capture_output=True)
    with front(certificate=certificate, key=key, header_timeout=0.5) as port, ExitStack() as stack:
        silent = stack.enter_context(connect(port))
        begun = stack.enter_context(connect(port, b"\x16\x03\x01\x02\x00\x01"))
        trusted = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"https://localhost:{port}/v2", verify=trusted).status_code == 200
        for client in (silent, begun):
            client.settimeout(15)  # asyncio's own limit is 60 s
            try:
                assert client.recv(100) == b""
            except ConnectionResetError:
                pass
            except TimeoutError:
                pytest.fail("the connection is still open")


def test_requests_are_logged_on_demand_without_their_secrets(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fozo.access")
    for wanted in (False, True):
        with running(config(token="secret", access_log=wanted)) as (url, _):
            for headers, code in (({"Authorization": "Bearer secret"}, 400), ({"Authorization": "Bearer secre7"}, 401)):
                found = httpx.post(f"http://{url}{PATH}?sequence_id=gate&token=secret", headers=headers)
                assert found.status_code == code
            httpx.get(f"http://{url}/v2/%0Asecond%20line")
        lines = [record.getMessage() for record in caplog.records if record.name == "fozo.access"]
        assert len(lines) == 3 * wanted
    assert f" 127.0.0.1 POST {PATH} 400 " in lines[0] and f"{PATH} 401 " in lines[1] and "%0Asecond%20line" in lines[2]
    assert not any("secret" in line or "gate" in line or "\n" in line for line in lines)


def test_the_access_log_is_limited_for_each_status() -> None:
    limit = LogLimit(ACCESS_LINES, logging.INFO)

    def passes(code: int) -> bool:
        record = logging.makeLogRecord({"levelno": logging.INFO, "kind": code, "created": 0.0})
        return limit.filter(record)

    assert sum(passes(401) for _ in range(10_000)) == ACCESS_LINES and passes(200)
