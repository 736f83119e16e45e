"""Events that are sent on: signed, tried again, within bounds, and never waited for."""

import hashlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from fozo.io import notices
from fozo.io.notices import Notices, Webhook, follow
from tests.refusals import refuses

EVENT = {"name": "drift", "image": 61, "time": 5.0, "text": "drift since image 58", "metrics": {"drift_ratio": 2.5}}
NOTICE = {"model": "gates", "camera": "gate-3", "event": EVENT}


def until(true: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@contextmanager
def receiver(*codes: int) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A server that answers with these codes in turn, the last one for ever, and keeps what it was sent."""
    bodies = list[tuple[dict[str, str], bytes]]()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            bodies.append((dict(self.headers), body))
            code = codes[min(len(bodies), len(codes)) - 1]
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook?room=7", bodies
    finally:
        server.shutdown()
        server.server_close()


def test_a_notice_is_signed_and_says_which_camera() -> None:
    with receiver(204) as (url, bodies), closing(Notices.open([url], secret=b"key")) as sender:
        sender.send("gates", "gate-3", EVENT)
        until(lambda: bodies)
    headers, body = bodies[0]
    assert json.loads(body) == NOTICE
    assert headers["X-Fozo-Signature"] == "sha256=" + hmac.new(b"key", body, hashlib.sha256).hexdigest()


def test_a_notice_is_tried_again_until_it_is_taken_under_the_same_name() -> None:
    with receiver(503, 429, 200) as (url, bodies), closing(Webhook(url, pause=0.001)) as webhook:
        webhook.send(NOTICE)
        webhook.send({**NOTICE, "camera": "gate-4"})
        until(lambda: len(bodies) == 4)
        assert webhook.dropped == 0
    names = [headers["X-Fozo-Delivery"] for headers, _ in bodies]
    assert names[0] == names[1] == names[2] != names[3]
    assert "X-Fozo-Signature" not in bodies[0][0]


@pytest.mark.parametrize(("code", "tries"), [(400, 1), (302, 1), (500, notices.TRIES)])
def test_what_is_refused_is_dropped_and_counted(code: int, tries: int) -> None:
    with receiver(code) as (url, bodies), closing(Webhook(url, pause=0.001)) as webhook:
        webhook.send(NOTICE)
        until(lambda: webhook.dropped)
        assert (webhook.dropped, len(bodies)) == (1, tries)


def test_a_receiver_that_never_answers_holds_nobody_up_and_a_bounded_number_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(notices, "CLOSING", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook = Webhook(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        webhook.send(NOTICE)
        until(lambda: not webhook._waiting)  # the thread has it
        for _ in range(notices.WAITING + 3):
            webhook.send(NOTICE)
        assert webhook.dropped == 3
        webhook.close()


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("ftp://host/", "begins with http:// or https://"),
        ("http://", "begins with http:// or https://"),
        ("http://host:port/", "is no address: Port could not be cast"),
        ("https://me:word@host/", "has a user in it"),
    ],
)
def test_wrong_addresses_are_refused_before_any_work(address: str, sentence: str) -> None:
    refuses(sentence, Notices.open, [address])


def test_a_problem_lasts_from_its_event_to_the_one_that_ends_it() -> None:
    problems = set[str]()
    for name, count in (("drift", 1), ("frozen", 2), ("drift changed", 2), ("guard", 2), ("drift over", 1)):
        follow(problems, name)
        assert len(problems) == count, name
    assert problems == {"frozen"}


class Broker(threading.Thread):
    """As much of MQTT 3.1.1 as a publisher needs: it says yes, and keeps what was published."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.published = dict[str, str]()
        self.retained = set[str]()

    def run(self) -> None:
        connection, _ = self.listener.accept()
        with connection, connection.makefile("rb") as stream:
            while head := stream.read(1):
                body = stream.read(self._length(stream))
                if head[0] >> 4 == 1:  # CONNECT
                    connection.sendall(b"\x20\x02\x00\x00")
                elif head[0] >> 4 == 3:  # PUBLISH
                    (size,) = struct.unpack(">H", body[:2])
                    topic = body[2 : 2 + size].decode()
                    self.published[topic] = body[4 + size :].decode()
                    if head[0] & 1:
                        self.retained.add(topic)
                    connection.sendall(b"\x40\x02" + body[2 + size : 4 + size])

    @staticmethod
    def _length(stream: Any) -> int:
        length = 0
        for shift in (0, 7, 14, 21):
            byte = stream.read(1)[0]
            length |= (byte & 127) << shift
            if byte < 128:
                break
        return length


def test_home_assistant_finds_each_camera_and_its_problem() -> None:
    pytest.importorskip("paho.mqtt.client")
    broker = Broker()
    broker.start()
    address = f"mqtt://127.0.0.1:{broker.listener.getsockname()[1]}"
    with closing(broker.listener):
        with closing(Notices.open(mqtt=address)) as sender:
            sender.send("gates", "north/3", EVENT)
            until(lambda: broker.published.get("fozo/gates/north_3/problem") == "ON")
            assert json.loads(broker.published["fozo/gates/north_3/event"]) == EVENT
            until(lambda: broker.published.get("fozo/gates/north_3/sentence") == EVENT["text"])
            configs = {
                topic.split("/")[1]: json.loads(text) for topic, text in broker.published.items() if "/fozo_" in topic
            }
            assert configs["binary_sensor"]["device_class"] == "problem"
            assert configs["binary_sensor"]["state_topic"] == "fozo/gates/north_3/problem"
            assert configs["sensor"]["state_topic"] == "fozo/gates/north_3/sentence"
            assert broker.published["fozo/status"] == "online"
            sender.send("gates", "north/3", {**EVENT, "name": "drift over"})
            until(lambda: broker.published["fozo/gates/north_3/problem"] == "OFF")
        until(lambda: broker.published["fozo/status"] == "offline")
    assert set(broker.published) == broker.retained


def test_a_broker_that_is_away_is_no_reason_to_wait() -> None:
    pytest.importorskip("paho.mqtt.client")
    sender = Notices.open(mqtt="mqtt://127.0.0.1:1")
    sender.send("gates", "gate-3", EVENT)
    sender.close()
