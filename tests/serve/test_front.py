"""The front: what uvicorn's options limit, other sites, and what an operator is told. Attacks are in test_nginx."""

import struct
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fozo.errors import FozoError
from fozo.serve.app import create_app
from fozo.serve.run import Server, exposures, listen, serve, server_options
from tests.serve.conftest import MODEL, NAME, STATS, config, running, until
from tests.serve.test_limits import PATH, PNG, connect, encoded, status


@contextmanager
def front(app: Any = None, **settings: Any) -> Iterator[int]:
    """Run the server as ``fozo serve`` does, but for signals; or another application."""
    chosen = config(**settings)
    options = server_options(app or create_app(chosen), chosen)
    options.lifespan = "on" if app is None else "off"
    listener, ready = listen("127.0.0.1", 0), threading.Event()
    server = Server(options, ready.set, None)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def test_endless_headers_are_cut_and_bodies_are_not() -> None:
    with front() as port:
        with connect(port, b"GET /v2 HTTP/1.1\r\nX: ") as client, pytest.raises(ConnectionError):
            for _ in range(1000):
                client.sendall(b"x" * 50_000)
        large = b"x" * 200_000
        assert httpx.post(f"http://127.0.0.1:{port}{PATH}", content=large, headers=PNG).status_code == 400


def test_requests_beyond_the_connections_are_refused() -> None:
    with front(max_connections=8) as port:
        with ExitStack() as stack:
            for _ in range(8):
                stack.enter_context(connect(port, b"GET /v2"))
            until(lambda: httpx.get(f"http://127.0.0.1:{port}/v2").status_code == 503)
        until(lambda: httpx.get(f"http://127.0.0.1:{port}/v2").status_code == 200)


def test_queues_know_the_client_of_a_proxy() -> None:
    """Of a proxy on this machine by default, and of those that were named only."""
    for proxies, client in (((), "198.51.100.7"), (("192.0.2.1",), "127.0.0.1")):
        seen = list[str]()

        async def app(scope: Any, receive: Any, send: Any, seen: list[str] = seen) -> None:
            seen.append(scope["client"][0])
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body"})

        app.state = SimpleNamespace(server=SimpleNamespace(pool=None))  # type: ignore[attr-defined]
        with front(app, proxies=proxies) as port:
            httpx.get(f"http://127.0.0.1:{port}", headers={"X-Forwarded-For": "198.51.100.7"})
        assert seen == [client]


def test_an_operator_is_told_what_strangers_could_do() -> None:
    long = "0123456789abcdef"
    assert exposures(config(token=long), "127.0.0.1") == exposures(config(), "::1") == []
    assert exposures(config(token=long, proxies=("10.0.0.1",)), "0.0.0.0") == []
    bare = exposures(config(), "0.0.0.0")
    assert len(bare) == 2 and "without a proxy" in bare[0] and "without a token" in bare[1]
    assert "fewer than 16" in exposures(config(token="a"), "127.0.0.1")[0]


def corrupt(tag: int) -> bytes:
    """A JPEG whose EXIF data have a tag that is not there: Pillow warns of each."""
    exif = b"Exif\0\0II*\0" + struct.pack("<IHHHIII", 8, 1, tag, 1, 999, 9, 0)
    whole = encoded(28, "JPEG")
    return whole[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + whole[20:]


def test_the_log_says_that_there_is_no_proxy_and_nothing_of_strangers_pictures() -> None:
    files = [str(MODEL), "--statistics", str(STATS), "--name", NAME]
    command = [sys.executable, "-m", "fozo", "serve", *files, "--port", "0", "--host", "0.0.0.0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = server.stdout.readline()
        port = int(address.rpartition(":")[2])
        for tag in range(60_000, 60_010):
            assert httpx.post(f"http://127.0.0.1:{port}{PATH}", content=corrupt(tag), headers=PNG).status_code == 200
        server.terminate()
        errors = server.communicate(timeout=60)[1]
    assert "0.0.0.0" in address and errors.count("without a proxy") == 1
    assert "tag" not in errors and "Warning" not in errors


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
    with warnings.catch_warnings():  # serve() shows them all
        for certificate, words in ((tmp_path / "cert.pem", "PEM"), (tmp_path / "none.pem", "No such file")):
            with pytest.raises(FozoError, match="cannot use the certificate") as caught:
                serve(config(certificate=str(certificate), key=str(certificate)))
            assert words in str(caught.value) and str(certificate) in str(caught.value)
