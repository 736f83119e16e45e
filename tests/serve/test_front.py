"""What a client is told to wait, TLS handshakes that never end, and the access log."""

import logging
import shutil
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from fozo.serve.limits import ACCESS_LINES, MAX_RETRY, LogLimit, Pace
from tests.serve.conftest import config, running
from tests.serve.test_limits import PATH, connect, front


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
