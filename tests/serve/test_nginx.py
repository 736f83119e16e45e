"""deploy/nginx.conf, really run: one server for each camera, what happens when a server goes, and every limit."""

import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from fozo.serve.app import InferenceServer
from fozo.serve.board import CameraBoard
from tests.helpers import REPO
from tests.serve.conftest import config, reserved_port, running, until
from tests.serve.test_cameras import header
from tests.serve.test_limits import FRAME, PATH, PNG

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
RULES = (REPO / "deploy" / "nginx.conf").read_text(encoding="utf-8")
HOST = "cameras.example.org"
pytestmark = [
    pytest.mark.skipif(NGINX is None, reason="needs nginx, which is not on this machine"),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate"),
]


@contextmanager
def nginx(folder: Path, *ports: int, **changes: str) -> Iterator[httpx.Client]:
    """Run the rules with other ports, a certificate of our own, and ``changes`` of directives by name."""
    with reserved_port() as port, nginx_at(port, folder, *ports, **changes) as client:
        yield client


@contextmanager
def nginx_at(port: int, folder: Path, *ports: int, **changes: str) -> Iterator[httpx.Client]:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={HOST}", "-days", "1"]
    subprocess.run([*made, "-out", folder / "cert.pem", "-keyout", folder / "key.pem"], check=True, capture_output=True)
    replaced = {"listen": f"127.0.0.1:{port} ssl", "ssl_certificate": f"{folder}/cert.pem"} | changes
    replaced["ssl_certificate_key"] = f"{folder}/key.pem"
    rules = RULES
    for name, value in replaced.items():
        rules, count = re.subn(rf"^(\s+{name}) [^;]*;", rf"\1 {value};", rules, flags=re.MULTILINE)
        assert count == 1, name
    for number, own in enumerate(ports):
        rules = rules.replace(f"127.0.0.1:800{number}", f"127.0.0.1:{own}")
    log, temporary = folder / "error.log", [f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy")]
    temporary += [f"{kind}_temp_path {folder}/{kind};" for kind in ("fastcgi", "uwsgi", "scgi")]
    rules = rules.replace("http {", "http { access_log off; " + " ".join(temporary), 1)
    (folder / "nginx.conf").write_text(f"pid {folder}/pid;\n{rules}")
    command = [str(NGINX), "-e", str(log), "-c", str(folder / "nginx.conf"), "-g", f"daemon off; error_log {log};"]
    process = subprocess.Popen(command)
    try:
        with httpx.Client(verify=False, base_url=f"https://127.0.0.1:{port}", headers={"Host": HOST}) as client:

            def answers() -> bool:
                assert process.poll() is None, log.read_text()
                with suppress(httpx.TransportError):
                    return client.get("/v2/health/live").status_code < 500
                return False

            until(answers)
            yield client
    finally:
        process.terminate()
        process.wait(30)


def ask(client: httpx.Client, camera: str, number: int) -> int:
    """Send a frame, its camera in the header or in the query."""
    headers, query = dict(PNG), {"id": str(number)}
    if number % 2:
        headers["X-Sequence-Id"] = camera
    else:
        query["sequence_id"] = camera
    return client.post(PATH, params=query, headers=headers, content=FRAME).status_code


def test_each_camera_has_its_server_and_moves_when_that_goes(tmp_path: Path) -> None:
    """Cameras are shared out by their ids; the other server takes over those of one that stops, and keeps them."""
    settings: dict[str, Any] = {"shared": True, "allowed_hosts": (HOST,)}
    names, state = list[str](), tmp_path / "state"
    with ExitStack() as first, ExitStack() as second, reserved_port() as port:
        servers = [first.enter_context(running(config(state, **settings), port=port))[1]]
        url, other = second.enter_context(running(config(state, **settings)))
        servers.append(other)
        with nginx(tmp_path, port, port_of(url)) as client:
            # Ports are new each time, and nginx hashes them: one run in a hundred has all of 8 on one server.
            while len(names) < 8 or 0 in map(cameras, servers):
                names.append(f"cam-{len(names)}")
                assert len(names) < 64
                assert [ask(client, names[-1], number) for number in range(3)] == [200] * 3
            count = len(names)
            assert sum(map(cameras, servers)) == count
            first.close()  # its cameras are saved
            for number in range(3, 5):
                assert [ask(client, name, number) for name in names] == [200] * count
            assert cameras(other) == count
            _, again = second.enter_context(running(config(state, **settings), port=port))
            assert [ask(client, name, 5) for name in names] == [200] * count  # refused by the new one, and repeated
            assert cameras(other) == count and cameras(again) == 0
    assert [header(state, name)["images"] for name in names] == [6] * count


def cameras(server: InferenceServer) -> int:
    return 0 if server.pool is None else server.pool.cameras


def test_limits_for_strangers(tmp_path: Path) -> None:
    """Slow headers and bodies, large bodies, many requests or connections, another name; a camera is answered."""
    short = {"client_header_timeout": "1s", "client_body_timeout": "1s", "limit_conn": "addresses 4"}
    unfinished = f"POST {PATH} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 9\r\n\r\n".encode()
    with running(config(allowed_hosts=(HOST,))) as (url, _), nginx(tmp_path, *[port_of(url)] * 2, **short) as client:
        assert client.post(PATH, content=b"x" * (65 << 20), headers=PNG).status_code == 413
        assert client.get("/v2", headers={"Host": "rebound.example.com"}).status_code == 421
        for text in (unfinished[:30], unfinished):
            with stranger(client, text) as slow:
                while slow.recv(1000):  # until it is closed; the socket's own limit is 20 s
                    pass
        with ExitStack() as stack:
            held = [stack.enter_context(stranger(client, unfinished)) for _ in range(12)]
            assert any(b" 429 " in each.recv(1000) for each in held)
        codes = list[int]()
        threads = [threading.Thread(target=lambda: codes.extend(live(client) for _ in range(100))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert {200, 429} == set(codes)
        until(lambda: ask(client, "gate", 1) == 200)


def live(client: httpx.Client) -> int:
    return client.get("/v2/health/live").status_code


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


def stranger(client: httpx.Client, text: bytes) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=20)
    made = context.wrap_socket(plain)
    made.sendall(text)
    return made


def test_the_page_streams_through_it(tmp_path: Path) -> None:
    board = CameraBoard()
    with running(config(allowed_hosts=(HOST,)), board) as (url, _), nginx(tmp_path, *[port_of(url)] * 2) as client:
        assert ask(client, "gate", 1) == 200
        with client.stream("GET", "/events") as reply:
            line = next(reply.iter_lines())
        assert reply.status_code == 200 and line == "event: snapshot"
        board.close()
