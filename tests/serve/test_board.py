"""The board without a browser: what is kept, what a viewer is sent, and a stream that blocks no other."""

import base64
import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from fozo.monitor import Event
from fozo.serve.board import CAMERAS_PER_MESSAGE, FORGOTTEN, SILENT, CameraBoard, History, Viewer
from fozo.serve.page import document, policy
from tests.serve.conftest import NOW, reading, serving


def new_lines(history: History, viewer: Viewer) -> dict[str, dict[str, Any]]:
    """All that is new to a viewer, by camera."""
    lines: dict[str, dict[str, Any]] = {}
    while (message := history.changes(viewer)) is not None:
        assert len(message["cameras"]) <= CAMERAS_PER_MESSAGE
        assert not lines.keys() & {line["camera"] for line in message["cameras"]}
        lines |= {line["camera"]: line for line in json.loads(json.dumps(message))["cameras"]}
    return lines


def changes(history: History, viewer: Viewer | None = None) -> dict[str, Any]:
    message = history.changes(viewer or Viewer())
    assert message is not None
    return message


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "fine"),
        ({"warning": True}, "warning"),
        ({"warning": True, "drifted": True}, "drift"),
        ({"drift": None}, "unwatched"),
        ({"faults": ("frozen",), "drifted": True}, "fault"),
    ],
)
def test_the_state_is_a_word(changes: dict[str, Any], state: str) -> None:
    assert reading(**changes).state == state


def test_points_and_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"POINTS": 5, "EVENTS": 3, "SPACING": 1.0}.items():
        monkeypatch.setattr(f"fozo.serve.board.{name}", value)
    history = History()
    for second in range(20):
        event = Event("drift", second, NOW + second, "text")
        history.record(reading(time=NOW + second, drift=second / 10, events=(event,)))
    line = new_lines(history, Viewer())["gate"]
    assert [point[1] for point in line["points"]] == [1.5, 1.6, 1.7, 1.8, 1.9]
    assert [event[1] for event in line["events"]] == [17, 18, 19]
    assert line["points"][0] == [NOW + 15, 1.5, 0.9, 0.85, 0.94]


@pytest.mark.parametrize(("distance", "threshold"), [(18.92, 9.46), (0.66, 0.33), (2.0, 1.0)])
def test_drift_is_shown_over_its_threshold(distance: float, threshold: float) -> None:
    """Thresholds depend on how many images were tested; 1 always means the threshold."""
    history = History()
    history.record(reading(drift=distance, threshold=threshold))
    line = new_lines(history, Viewer())["gate"]
    assert line["drift"] == line["points"][0][1] == 2.0 and "threshold" not in line


def test_a_point_keeps_the_worst_of_its_time_and_the_line_says_the_newest() -> None:
    history, viewer = History(), Viewer()
    for second, drift in enumerate([0.1, 0.9, 0.2, 0.3, 0.1, 0.4, 0.2]):
        history.record(reading(time=NOW + second, drift=drift))
        line = new_lines(history, viewer)["gate"]
        assert line["drift"] == drift
        assert len(line["points"]) == (second in (0, 1, 5))  # sent only where the curve changes
    assert [point[:2] for point in new_lines(history, Viewer())["gate"]["points"]] == [[NOW, 0.9], [NOW + 5, 0.4]]
    history.record(reading(time=NOW - 3600))  # the clock was put back: a point of its own
    assert len(new_lines(history, Viewer())["gate"]["points"]) == 3


def test_a_viewer_is_sent_all_at_first_and_then_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.board.SPACING", 1.0)
    history, slow = History(), Viewer()
    count = 2 * CAMERAS_PER_MESSAGE + 3
    for second in range(3):
        for number in range(count):
            history.record(reading(f"cam-{number}", NOW + second))
        if second == 0:
            assert len(new_lines(history, slow)) == count
    quick = Viewer()
    lines = new_lines(history, quick)
    assert [len(line["points"]) for line in lines.values()] == [3] * count  # also those sent in a later message
    assert all(line["fresh"] for line in lines.values())
    lines = new_lines(history, slow)
    assert [(len(line["points"]), line["fresh"]) for line in lines.values()] == [(2, False)] * count
    assert history.changes(slow) is None
    history.record(reading("cam-7", NOW + 9))
    assert list(new_lines(history, slow)) == list(new_lines(history, quick)) == ["cam-7"]


def test_a_camera_that_leaves_the_memory_stays_on_the_page_for_a_while() -> None:
    history, viewer = History(), Viewer()
    for name in ("a", "b"):
        history.record(reading(name))
    new_lines(history, viewer)
    history.forget("model", "a")
    history.forget("model", "never seen")
    assert [line["gone"] for line in new_lines(history, viewer).values()] == [True]
    history.record(reading("a", NOW + 60))
    line = new_lines(history, viewer)["a"]
    assert (line["gone"], line["fresh"], len(line["points"])) == (False, False, 1)

    history.forget("model", "b")
    history.record(reading("a", NOW + FORGOTTEN))
    assert changes(history, viewer)["all"] == [("model", "a")]  # a page that looks on takes b away
    assert viewer.sent.keys() == {("model", "a")}
    history.record(reading("b", NOW + FORGOTTEN + 1))
    line = new_lines(history, viewer)["b"]
    assert line["fresh"]
    assert [point[0] for point in line["points"]] == [NOW + FORGOTTEN + 1]

    history.forget("model", "a")
    history.record(reading("a", NOW + 3 * FORGOTTEN))  # it returns itself, after it was due to be removed
    assert new_lines(history, viewer)["a"]["fresh"]


def test_a_new_camera_takes_the_place_of_a_silent_one_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.board.CAMERAS", 2)
    history, viewer = History(), Viewer()
    history.record(reading("a", NOW))
    history.record(reading("b", NOW + 1))
    history.record(reading("c", NOW + 2))
    assert changes(history)["all"] == [("model", "a"), ("model", "b")]
    assert changes(history, viewer)["limit"] == 2  # the page says that there are more
    history.record(reading("b", NOW + SILENT))
    history.record(reading("c", NOW + SILENT + 1))
    assert changes(history)["all"] == [("model", "b"), ("model", "c")]
    assert changes(history, viewer)["limit"] is None


def test_numbers_that_json_does_not_have_are_left_out() -> None:
    history = History()
    history.record(reading("\ud800<script>", drift=math.nan, threshold=math.inf, accuracy=None))
    text = json.dumps(history.changes(Viewer()), allow_nan=False).encode("ascii")
    (line,) = json.loads(text)["cameras"]
    assert (line["drift"], line["points"][0][1:4]) == (None, [None, None, None])


def test_many_threads_record_while_a_viewer_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.board.SPACING", 0.0)
    monkeypatch.setattr("fozo.serve.board.POINTS", 10_000)
    history, viewer = History(), Viewer()
    rounds = 300
    seen: dict[str, list[float]] = {f"cam-{number}": [] for number in range(6)}

    def work(name: str) -> None:
        for number in range(rounds):
            history.record(reading(name, NOW + number, drift=float(number)))

    def look() -> None:
        message = history.changes(viewer)
        for line in [] if message is None else message["cameras"]:
            seen[line["camera"]] += [point[1] for point in line["points"]]

    threads = [threading.Thread(target=work, args=(name,)) for name in seen]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        look()
    look()
    assert all(points == [float(number) for number in range(rounds)] for points in seen.values())


def test_the_page_is_one_document_and_its_policy_admits_nothing_else() -> None:
    page = document()
    for tag, rule in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(f"<{tag}[^>]*>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{rule} 'sha256-{digest}'" in policy()
    assert "default-src 'none'" in policy()
    assert "unsafe" not in policy()
    addresses = set(re.findall(r"https?://[^'\" ]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address: of the icon
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(", page)


class Stream:
    """Reads server-sent events."""

    def __init__(self, response: httpx.Response) -> None:
        self.response, self.lines = response, response.iter_lines()

    def next(self) -> tuple[str, dict[str, Any]]:
        """The next event; StopIteration where the stream has ended."""
        name = next(line for line in self.lines if line.startswith("event: "))
        return name.removeprefix("event: "), json.loads(next(self.lines).removeprefix("data: "))


@contextmanager
def stream_of(port: int) -> Iterator[Stream]:
    with httpx.stream("GET", f"http://127.0.0.1:{port}/events", timeout=20) as response:
        yield Stream(response)


def test_a_stream_begins_with_all_and_a_burst_is_one_message() -> None:
    board = CameraBoard()
    for number in range(CAMERAS_PER_MESSAGE + 1):
        board.history.record(reading(f"cam-{number}"))
    with serving(board) as port, stream_of(port) as stream:
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        for count in (CAMERAS_PER_MESSAGE, 1):
            name, part = stream.next()
            assert (name, len(part["cameras"])) == ("snapshot", count)
        burst = 2000
        for number in range(burst):
            board.history.record(reading("cam-3", NOW + number / 1000, images=number))
        messages, last = 0, -1
        while last < burst - 1:
            name, got = stream.next()
            assert name == "change"
            messages, last = messages + 1, got["cameras"][0]["images"]
        assert messages < burst / 20
        board.close()
        with pytest.raises(StopIteration):
            stream.next()


def test_a_quiet_stream_has_a_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.board.HEARTBEAT", 0.2)
    with serving(CameraBoard()) as port, stream_of(port) as stream:
        stream.next()
        lines = [next(stream.lines) for _ in range(4)]
        assert lines[1::2] == [": still here"] * 2  # between empty lines


def test_there_is_a_limit_to_viewers_and_a_place_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.board.VIEWERS", 1)
    board = CameraBoard()
    with serving(board) as port:
        address = f"http://127.0.0.1:{port}/events"
        with stream_of(port) as stream:
            stream.next()
            answer = httpx.get(address)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "limit" in answer.json()["error"]
        while board.open:
            time.sleep(0.01)
        assert httpx.head(address).status_code == 200  # and ends
        with stream_of(port) as stream:
            stream.next()


def test_a_viewer_that_does_not_read_blocks_no_other_and_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.board.STUCK", 1.0)
    monkeypatch.setattr("fozo.serve.board.SPACING", 0.0)
    board = CameraBoard()
    with serving(board) as port, stream_of(port) as stuck, stream_of(port) as stream:
        assert stuck.response.status_code == 200
        text = "x" * 20_000
        for number in range(600):  # far more than what sockets hold, were all of it sent
            board.history.record(reading(f"cam-{number % 40}", NOW + number, sentence=f"{text}{number}"))
        latest: dict[str, str] = {}
        while len(latest) < 40 or any(int(latest[f"cam-{n}"].lstrip("x")) < 560 for n in range(40)):
            latest |= {line["camera"]: line["sentence"] for line in stream.next()[1]["cameras"]}
        while board.open > 1:  # until more waits for the one than a connection holds
            board.history.record(reading("cam-0", NOW, sentence=100 * text))
            stream.next()


def test_frames_are_there_where_they_were_given() -> None:
    board = CameraBoard()
    board.history.record(reading("a&b", before="a JPEG", after="another"))
    board.history.record(reading("plain"))
    with serving(board) as port, httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        answer = client.get("/frames", params={"model": "model", "camera": "a&b"})
        assert answer.json() == {"before": "a JPEG", "after": "another"}
        assert answer.headers["cache-control"] == "no-store"
        assert client.get("/frames", params={"model": "model", "camera": "plain"}).status_code == 404
        page = client.get("/")
        assert page.headers["content-security-policy"] == policy()
        assert page.headers["x-content-type-options"] == "nosniff"


def test_a_silent_camera_is_an_event_and_a_state() -> None:
    history = History()
    history.record(reading("a", NOW))
    viewer = Viewer()
    assert history.changes(viewer)["cameras"][0]["state"] != "silent"  # type: ignore[index]
    history.notice_silence(NOW + SILENT + 1)
    history.notice_silence(NOW + SILENT + 2)  # once is enough
    (line,) = history.changes(viewer)["cameras"]  # type: ignore[index]
    assert line["state"] == "silent" and [event[2] for event in line["events"]] == ["silent"]
    history.record(reading("a", NOW + SILENT + 3))
    (line,) = history.changes(viewer)["cameras"]  # type: ignore[index]
    assert line["state"] != "silent" and [event[2] for event in line["events"]] == ["silent over"]
