"""deploy/nginx.conf, really run: one server for each camera, what happens when one goes, limits, and attacks."""

import re
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
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
DEPLOY = REPO / "deploy"
RULES = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
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
def nginx_at(port: int, folder: Path, *ports: int, sndbuf: str = "", **changes: str) -> Iterator[httpx.Client]:
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={HOST}", "-days", "1"]
    subprocess.run([*made, "-out", folder / "cert.pem", "-keyout", folder / "key.pem"], check=True, capture_output=True)
    replaced = {
        "listen": f"127.0.0.1:{port} ssl" + sndbuf,
        "ssl_certificate": f"{folder}/cert.pem",
    } | changes
    replaced["ssl_certificate_key"] = f"{folder}/key.pem"
    rules = RULES
    for name, value in replaced.items():
        rules, count = re.subn(rf"^(\s+{name}) [^;]*;", rf"\1 {value};", rules, flags=re.MULTILINE)
        assert count == 1, name
    if len(ports) > 1:
        rules = rules.replace("# server 127.0.0.1:8001", "server 127.0.0.1:8001")
    for number, own in enumerate(ports):
        rules = rules.replace(f"127.0.0.1:800{number}", f"127.0.0.1:{own}")
    log, temporary = folder / "error.log", [f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy")]
    temporary += [f"{kind}_temp_path {folder}/{kind};" for kind in ("fastcgi", "uwsgi", "scgi")]
    rules = rules.replace("http {", "http { " + " ".join(temporary), 1)
    rules = rules.replace("/var/log/nginx/access.log", str(folder / "access.log"))
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
    with running(config(allowed_hosts=(HOST,))) as (url, _), nginx(tmp_path, port_of(url), **short) as client:
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


ENDLESS = f"POST {PATH} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: image/png\r\nContent-Length: 60000\r\n\r\n"
LIVE = f"GET /v2/health/live HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
PAGE = f"GET / HTTP/1.1\r\nHost: {HOST}\r\n\r\n"
ATTACKS: dict[str, tuple[str, int, bool]] = {
    "answers never read": (400 * PAGE, 30, True),
    "bodies that never come": (ENDLESS, 30, True),
    "half headers": (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: ", 150, True),
    "headers beyond all measure": (f"GET / HTTP/1.1\r\nHost: {HOST}\r\nX: " + 120_000 * "x", 30, True),
    "pipelined requests": (4000 * LIVE, 30, True),
    "idle connections": (LIVE, 150, True),
    "bodies that drip": (ENDLESS, 30, False),
    "TLS that never begins": ("", 150, True),
}
"""What each connection sends at once, how many there are, and whether nginx gives them up."""
SHORT = {"client_header_timeout": "2s", "client_body_timeout": "2s", "send_timeout": "2s", "keepalive_timeout": "2s"}


@pytest.mark.parametrize("kind", ATTACKS)
def test_attackers_keep_nobody_out(tmp_path: Path, kind: str) -> None:
    """A camera at another address is answered all the time; nothing hostile reaches the server; it is given up."""
    text, count, given_up = ATTACKS[kind]
    board = CameraBoard()
    with (
        running(config(allowed_hosts=(HOST,)), board) as (url, server),
        nginx(tmp_path, port_of(url), **SHORT, sndbuf=" sndbuf=8k") as client,
        httpx.Client(
            transport=httpx.HTTPTransport(verify=False, local_address="127.0.0.2"),
            base_url=client.base_url, headers={"Host": HOST}, timeout=20,
        ) as camera,
        ExitStack() as stack,
    ):  # fmt: skip
        assert ask(camera, "gate", 0) == 200
        attackers = [stack.enter_context(attacker(client, text, tls=bool(text))) for _ in range(count)]
        for number in range(1, 13):
            if kind == "bodies that drip":
                for each in attackers:
                    with suppress(OSError):  # beyond the connections of an address
                        each.sendall(b"x")
            assert ask(camera, "gate", number) == 200
            time.sleep(0.25)
        assert server._held == 0
        if given_up:
            until(lambda: all(map(has_ended, attackers)), 20)
        assert ask(camera, "gate", 13) == 200


def attacker(client: httpx.Client, text: str, tls: bool) -> socket.socket:
    """A connection that sends a text, as much of it as is taken, and reads nothing."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    plain.settimeout(20)
    plain.connect(("127.0.0.1", client.base_url.port or 0))
    if not tls:
        return plain
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    secure = context.wrap_socket(plain)
    secure.settimeout(0.05)
    with suppress(OSError):
        secure.sendall(text.encode())
    return secure


def has_ended(client: socket.socket) -> bool:
    """Whether the other side has closed or reset a connection, although what it sent is not read."""
    events = select.poll()
    events.register(client, select.POLLRDHUP)
    return bool(events.poll(0))


def test_a_body_is_passed_on_once_it_is_there(tmp_path: Path) -> None:
    """And its client is known to the server by its own address; the log has no query."""
    with running(config(allowed_hosts=(HOST,))) as (url, server), nginx(tmp_path, port_of(url)) as client:
        with stranger(client, ENDLESS.encode() + b"x" * 59_999) as slow:
            time.sleep(0.5)
            assert server._held == 0
            slow.sendall(b"x")
            assert b" 400 " in slow.recv(1000)
        assert ask(client, "secret", 2) == 200
    log = (tmp_path / "access.log").read_text()
    assert f"POST {PATH} 200" in log and "secret" not in log


def test_the_page_streams_through_it(tmp_path: Path) -> None:
    board = CameraBoard()
    with running(config(allowed_hosts=(HOST,)), board) as (url, _), nginx(tmp_path, port_of(url)) as client:
        assert ask(client, "gate", 1) == 200
        with client.stream("GET", "/events") as reply:
            line = next(reply.iter_lines())
        assert reply.status_code == 200 and line == "event: snapshot"
        board.close()
