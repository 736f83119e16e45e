"""A server that strangers cannot stop: limits of bytes, pixels, scans, connections and time."""

import io
import socket
import struct
import threading
import time
import tracemalloc
import zlib
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

import fozo
from fozo.data.inputs import as_batch
from fozo.errors import FozoError
from fozo.serve.limits import SMALL_PICTURE, PixelBudget, Refused, count_scans
from fozo.serve.protocol import Limits, read_request
from tests.serve.conftest import NAME, config, running, until
from tests.serve.test_protocol import LIMITS, SPEC, body

PATH = f"/v2/models/{NAME}/infer"


def encoded(side: int, form: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(stream, form, **options)
    return stream.getvalue()


PNG = {"Content-Type": "image/png"}
FRAME = encoded(28)


def test_json_takes_memory_in_proportion_to_its_length() -> None:
    """One long text among short ones: NumPy would make all of them as wide as that, 1 GiB for 54 kB."""
    data = ["x" * 20_000, *["0"] * 10_000]
    text = body([1, 1, 10_001, 1], data, "FP32")
    tracemalloc.start()
    try:
        with pytest.raises(FozoError, match="not 10001 numbers"):
            read_request(text, None, replace(LIMITS, pixels=1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 20 * len(text)
    finally:
        tracemalloc.stop()


def test_json_is_never_parsed_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    names, real = list[str](), read_request

    def spy(*arguments: Any) -> Any:
        names.append(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr("fozo.serve.protocol.read_request", spy)
    with running(config(max_json=200_000)) as (url, _):
        for size, code in ((10, 200), (150_000, 200), (200_000, 413)):
            text = body([1, 28, 28, 1], [0] * 784, x="y" * size)
            reply = httpx.post(f"http://{url}{PATH}", content=text)
            assert reply.status_code == code, reply.text
        text = body([1, 28, 28, 1], None, tensor={"parameters": {"binary_data_size": 784}}, x="y" * 200_000)
        headers = {"Inference-Header-Content-Length": str(len(text))}
        long = httpx.post(f"http://{url}{PATH}", content=text + bytes(784), headers=headers)
        assert long.status_code == 413 and "longer than 200000 bytes" in long.json()["error"]
    assert len(names) == 3 and all(name.startswith("asyncio_") for name in names)  # the loop's executor


def test_a_shortage_of_memory_is_not_the_clients_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("fozo.serve.protocol.read_request", short)
    with running(config()) as (url, _):
        reply = httpx.post(f"http://{url}{PATH}", content=b"{}")
    assert reply.status_code == 503 and "memory" in reply.json()["error"] and reply.headers["Retry-After"] == "1"


def test_pixels_have_one_budget() -> None:
    """Large pictures wait for each other on all threads but one, and are refused beyond; small ones pass."""
    large, order = SMALL_PICTURE + 1, list[str]()
    budget = PixelBudget(large + 1, workers=3)

    def wait() -> None:
        with budget.take(large):
            order.append("second")

    with pytest.raises(Refused, match="max_pixels") as never, budget.take(large + 2):
        pass
    assert never.value.code == 413
    with budget.take(large):
        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: budget._threads == 0)
        with pytest.raises(Refused, match="too many large") as later, budget.take(large):
            pass
        assert later.value.code == 503
        with budget.take(SMALL_PICTURE):
            order.append("small")
        order.append("first")
    waiting.join(30)
    assert order == ["small", "first", "second"] and budget._free == budget.pixels


def test_a_server_decodes_few_large_pictures_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cameras send large pictures while a ninth sends small ones, which are answered."""
    go, at_once, most = threading.Event(), 0, 0
    real, lock, large = fozo.data.images.read_image, threading.Lock(), encoded(1500)

    def slow(data: bytes, name: str) -> Any:
        nonlocal at_once, most
        if len(data) == len(large):
            with lock:
                at_once += 1
                most = max(most, at_once)
            assert go.wait(30)
            with lock:
                at_once -= 1
        return real(data, name)

    monkeypatch.setattr("fozo.serve.protocol.read_image", slow)
    codes = list[int]()

    def send(camera: int) -> None:
        reply = httpx.post(f"http://{url}{PATH}?sequence_id=c{camera}", content=large, headers=PNG, timeout=60)
        codes.append(reply.status_code)

    with running(config(max_pixels=4_000_000)) as (url, _):
        senders = [threading.Thread(target=send, args=(i,)) for i in range(8)]
        for sender in senders:
            sender.start()
        until(lambda: codes == [503])
        small = httpx.post(f"http://{url}{PATH}?sequence_id=small", content=FRAME, headers=PNG, timeout=10)
        assert small.status_code == 200
        go.set()
        for sender in senders:
            sender.join(30)
        never = httpx.post(f"http://{url}{PATH}", content=encoded(2100), headers=PNG)
        assert never.status_code == 413 and "Retry-After" not in never.headers
    assert sorted(codes) == [200] * 7 + [503] and most == 1


def test_large_arrays_share_the_budget() -> None:
    """They are resized under it, and to the same pixels as without."""
    pixels = np.random.default_rng(0).integers(0, 256, (1, 1500, 1500, 1), dtype=np.uint8)
    request = replace(read_request(body([1, 28, 28, 1], [0] * 784), None, LIMITS), tensor=pixels)
    sized = request.images(SPEC, Limits())
    assert sized.shape == (1, 28, 28, 1)
    np.testing.assert_array_equal(as_batch(sized, SPEC), as_batch(pixels, SPEC))
    with pytest.raises(Refused, match="max_pixels is 2200000"):
        request.images(SPEC, Limits(budget=PixelBudget(2_200_000)))


def scans(side: int, count: int, kind: str = "progressive") -> bytes:
    """A progressive JPEG with its last scan ``count`` times more."""
    whole = encoded(side, "JPEG", **{kind: True})
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + count * last + whole[-2:]


def test_scans_are_counted_by_their_markers() -> None:
    plain = encoded(64, "JPEG")
    assert count_scans(plain) == 1 and count_scans(encoded(64)) == 1
    ordinary = count_scans(scans(64, 0))
    assert 2 < ordinary < 16 and count_scans(scans(64, 70)) == ordinary + 70
    comment = b"\xff\xfe" + struct.pack(">H", 6) + b"\xff\xda\xff\xda"  # markers in a comment are text,
    assert count_scans(plain[:2] + comment + plain[2:]) == 1
    assert count_scans(plain + scans(64, 70)) == 1  # what comes after the end is not decoded,
    hidden = b"\xff\x01\xff\xff\x00\xff" + scans(64, 70)[2:]  # and a marker without a segment hides none
    assert count_scans(b"\xff\xd8" + hidden) == ordinary + 70
    for end in range(2, len(plain), 7):
        assert count_scans(plain[:end]) == 1


EMPTY = struct.pack(">I4sI", 0, b"abCd", zlib.crc32(b"abCd"))
JPEG, MANY = encoded(28, "JPEG"), 1 << 17


@pytest.mark.parametrize(
    "picture",
    [
        *(encoded(28, form) for form in ("TIFF", "BMP", "GIF", "PPM")),  # decoded in Python, at least in part
        JPEG[:2] + b"\xff\xfe\x00\x02" * MANY + JPEG[2:],
        JPEG[:2] + b"\xff" * MANY + JPEG[2:],
        JPEG[:3] + b"\xff\x00" * MANY + JPEG[2:],
        JPEG[:2] + (b"\xff\xf0\xff\xff" + b"\xff" * 65533) * 2 + JPEG[2:],  # Pillow does not skip such a segment
        JPEG[:2] + b"\xff\xd9" + b"\xff" * MANY + JPEG[2:],  # nor end here
        b"\xff\xd8" + b"\xff" * MANY,
        JPEG.replace(b"\xff\xc0", b"\xff\xc9"),  # arithmetic coding
        FRAME[:33] + EMPTY * MANY + FRAME[33:],
        b"",
    ],
)
def test_what_pillow_would_read_in_python_is_not_decoded(picture: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body of 64 MiB of this would take half a minute."""
    monkeypatch.setattr("fozo.serve.protocol.header_size", lambda *_: pytest.fail("it was opened"))
    request = replace(read_request(body([1, 28, 28, 1], [0] * 784), None, LIMITS), tensor=(picture,))
    with pytest.raises(FozoError, match="picture 0 of the request is not a JPEG, PNG or WebP"):
        request.images(SPEC, LIMITS)


def test_a_jpeg_of_many_scans_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    request = read_request(body([1, 28, 28, 1], [0] * 784), None, LIMITS)
    small, large = (replace(request, tensor=(scans(side, 70),)) for side in (16, 48))
    assert small.images(SPEC, LIMITS).shape == (1, 28, 28, 1)  # cheap all the same
    monkeypatch.setattr("fozo.serve.protocol.read_image", lambda *_: pytest.fail("it was decoded"))
    with pytest.raises(FozoError, match="too many scans for 48x48 px"):
        large.images(SPEC, LIMITS)


def connect(port: int, text: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), timeout=20)
    client.sendall(text)
    return client


def head(length: int, kind: str = "image/png") -> bytes:
    return (
        f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n".encode()
    )


def status(client: socket.socket) -> int:
    return int(client.recv(1000).split(b" ")[1])


def test_room_is_taken_by_what_has_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle clients that announce long bodies take none; small bodies have a reserve; a body has a time limit."""
    monkeypatch.setattr("fozo.serve.app.SMALL_BODY", 2000)
    with running(config(max_body=10_000, timeout=5.0)) as (url, server), ExitStack() as stack:
        port = int(url.rpartition(":")[2])
        idle = [stack.enter_context(connect(port, head(10_000))) for _ in range(12)]
        assert httpx.post(f"http://{url}{PATH}", content=FRAME, headers=PNG).status_code == 200
        stalled = [stack.enter_context(connect(port, head(10_000) + b"x" * 9000)) for _ in range(2)]
        until(lambda: server._held >= 18_000)
        beyond = stack.enter_context(connect(port, head(10_000) + b"x" * 9000))
        assert status(beyond) == 503
        assert httpx.post(f"http://{url}{PATH}", content=FRAME, headers=PNG).status_code == 200
        assert [status(client) for client in (*idle, *stalled)] == [408] * 14
        until(lambda: server._held == 0)


def test_a_request_that_nobody_waits_for_is_dropped_or_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    go, begun, real = threading.Event(), threading.Event(), fozo.data.images.read_image

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return real(*arguments)

    monkeypatch.setattr("fozo.serve.protocol.read_image", slow)
    with running(config(workers=1)) as (url, server):
        port = int(url.rpartition(":")[2])
        working = connect(port, head(len(FRAME)) + FRAME)
        assert begun.wait(30)
        queued = connect(port, head(len(FRAME)) + FRAME)
        until(lambda: server.pool is not None and server.pool.queued == 2)
        jobs = next(iter(server.pool._slots.values())).jobs  # type: ignore[union-attr]
        request = jobs[0][0]
        queued.close()
        until(lambda: request.tensor == () and server._held == len(FRAME))
        working.close()
        time.sleep(0.1)
        assert server._held == len(FRAME)
        go.set()
        until(lambda: server._held == 0)
