"""A server that strangers cannot stop: limits of bytes, pixels, scans, connections and time."""

import io
import socket
import struct
import threading
import time
import tracemalloc
from collections.abc import Iterator
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
from fozo.serve.decoding import SMALL_PICTURE, Decoder, Decoders, pixels_here
from fozo.serve.limits import Refused
from fozo.serve.protocol import InferRequest, Limits, Tensor, read_request, working_pixels
from tests.refusals import refuses
from tests.serve.conftest import NAME, config, running, until
from tests.serve.test_protocol import LIMITS, SPEC, body

PATH = f"/v2/models/{NAME}/infer"


def encoded(side: int, form: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(stream, form, **options)
    return stream.getvalue()


def request_of(tensor: Tensor) -> InferRequest:
    """A request that was parsed."""
    return replace(read_request(body([1, 28, 28, 1], [0] * 784), None, LIMITS), tensor=tensor)


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


def test_a_server_decodes_few_large_pictures_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five cameras send large pictures while a sixth sends small ones, which are answered."""
    go, at_once, most = threading.Event(), 0, 0
    real, lock, large = Decoder.ask, threading.Lock(), encoded(1500)

    def slow(decoder: Decoder, order: dict[str, Any], picture: bytes) -> Any:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        assert go.wait(30)
        with lock:
            at_once -= 1
        return real(decoder, order, picture)

    monkeypatch.setattr(Decoder, "ask", slow)
    codes = list[int]()

    def send(camera: int) -> None:
        reply = httpx.post(f"http://{url}{PATH}?sequence_id=c{camera}", content=large, headers=PNG, timeout=60)
        codes.append(reply.status_code)

    with running(config(max_pixels=4_000_000)) as (url, server):
        senders = [threading.Thread(target=send, args=(i,)) for i in range(5)]
        for sender in senders:
            sender.start()
        until(lambda: server.pool is not None and server.pool.queued == 5 and at_once == 2)
        small = httpx.post(f"http://{url}{PATH}?sequence_id=small", content=FRAME, headers=PNG, timeout=10)
        assert small.status_code == 200
        go.set()
        for sender in senders:
            sender.join(30)
        never = httpx.post(f"http://{url}{PATH}", content=encoded(2100), headers=PNG)
        assert never.status_code == 413 and "Retry-After" not in never.headers
    assert codes == [200] * 5 and most == 2


def test_large_arrays_wait_for_each_other() -> None:
    """And are resized to the same pixels as without a server."""
    pixels = np.random.default_rng(0).integers(0, 256, (1, 1500, 1500, 1), dtype=np.uint8)
    request = request_of(pixels)
    limits = Limits()
    sized = list[Any]()
    resizing = threading.Thread(target=lambda: sized.append(request.images(SPEC, limits)))
    with limits.decoders.places, limits.decoders.places:
        resizing.start()
        resizing.join(0.2)
        assert not sized
    resizing.join(30)
    assert sized[0].shape == (1, 28, 28, 1)
    np.testing.assert_array_equal(as_batch(sized[0], SPEC), as_batch(pixels, SPEC))
    with pytest.raises(Refused, match="max_pixels"):
        request.images(SPEC, Limits(decoders=Decoders(2_200_000)))


def scans(side: int, count: int, kind: str = "progressive") -> bytes:
    """A progressive JPEG with its last scan ``count`` times more."""
    whole = encoded(side, "JPEG", **{kind: True})
    last = whole[whole.rindex(b"\xff\xda") : -2]
    return whole[:-2] + count * last + whole[-2:]


JPEG = encoded(28, "JPEG")
EXIF = b"\xff\xe1\xff\xff" + b"Exif\0\0" + bytes(65527)
HOSTILE = {
    "scans": scans(1500, 4000),
    "metadata that is joined again and again": JPEG[:2] + 950 * EXIF + JPEG[2:],
}


@pytest.fixture
def decoders() -> Iterator[Decoders]:
    found = Decoders()
    yield found
    found.close()


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_picture_that_takes_too_long_is_ended(kind: str, decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the system, whatever takes long in it; the next picture is decoded as if nothing had been."""
    monkeypatch.setattr("fozo.serve.decoding.DECODING_SECONDS", 1)
    limits = replace(LIMITS, pixels=1 << 26, decoders=decoders)
    request = request_of((HOSTILE[kind],))
    refuses("picture 0 of the request takes more than 1 s", request.images, SPEC, limits)
    assert replace(request, tensor=(encoded(400, "JPEG", progressive=True),)).images(SPEC, limits).shape == (
        1,
        28,
        28,
        1,
    )


def test_pictures_of_a_request_share_its_time(decoders: Decoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.decoding.DECODING_SECONDS", 1e-6)
    request = request_of((noise(200),) * 2)
    with pytest.raises(FozoError, match="the pictures before picture 1 of the request took"):
        request.images(SPEC, replace(LIMITS, pixels=1 << 26, decoders=decoders))


def test_memory_of_a_picture_is_limited(decoders: Decoders) -> None:
    """Where a decoder may take less than the picture needs, that is said, and the next is decoded."""
    decoders.memory = 16 << 20
    request = request_of((encoded(5000),))
    limits = replace(LIMITS, pixels=1 << 26, decoders=decoders)
    refuses("picture 0 of the request", request.images, SPEC, limits)
    assert replace(request, tensor=(noise(200),)).images(SPEC, limits).shape == (1, 28, 28, 1)


def test_a_decoder_that_somebody_ended_is_replaced(decoders: Decoders) -> None:
    request = request_of((noise(200),))
    limits = replace(LIMITS, pixels=1 << 26, decoders=decoders)
    before = request.images(SPEC, limits)
    (decoder,) = decoders._idle
    decoder.process.kill()
    decoder.process.wait()
    np.testing.assert_array_equal(request.images(SPEC, limits), before)


def noise(side: int, form: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, form, **options)
    return stream.getvalue()


@pytest.mark.parametrize("form", ["PNG", "JPEG", "progressive", "WEBP"])
def test_pixels_are_the_same_wherever_they_are_decoded(
    form: str, decoders: Decoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = noise(300, "JPEG", progressive=True) if form == "progressive" else noise(300, form)
    assert bool(pixels_here(picture)) == (form == "JPEG")
    there = decoders.decode([picture], SPEC, True, 1 << 26)
    monkeypatch.setattr("fozo.serve.decoding.TINY_BYTES", 1 << 30)
    np.testing.assert_array_equal(decoders.decode([picture], SPEC, True, 1 << 26), there)


def test_what_may_take_long_is_not_decoded_here() -> None:
    plain = noise(300, "JPEG")
    assert pixels_here(plain) == SMALL_PICTURE and pixels_here(FRAME) > 28 * 28
    comment = b"\xff\xfe" + struct.pack(">H", 65000) + bytes(64998)
    for picture in (plain + b"\xff\xda", plain[:2] + 2 * comment + plain[2:], noise(300), 3000 * FRAME):
        assert not pixels_here(picture)


@pytest.mark.parametrize("form", ["TIFF", "BMP", "GIF", "PPM"])
def test_other_formats_are_refused(form: str) -> None:
    """Pillow decodes them in Python, at least in part."""
    request = request_of((encoded(28, form),))
    refuses("picture 0 of the request is not a JPEG, PNG or WebP", request.images, SPEC, LIMITS)


@pytest.mark.parametrize("shape", [(1, 1, 65_000, 1), (1, 3000, 10, 1)])
def test_arrays_are_as_long_as_pictures_may_be(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """One pixel high, an array was resized to 16 million columns."""
    monkeypatch.setattr("fozo.serve.protocol.fit", lambda *_: pytest.fail("it was resized"))
    request = request_of(np.zeros(shape, np.uint8))
    refuses("more than 100 times as long as wide", request.images, SPEC, LIMITS)


def test_resizing_counts_the_larger_of_the_pixels_before_and_after() -> None:
    large = replace(SPEC, image_size=(224, 224), channels=3, mean=None, std=None)
    assert working_pixels((1, 1080, 1920, 3), large) == 1080 * 1920 + 224 * 224
    assert working_pixels((2, 10, 1000, 3), large) == 256 * 25_600 + 2 * 224 * 224
    request = request_of(np.zeros((1, 10, 1000, 3), np.uint8))
    with pytest.raises(Refused, match="take 6603776 pixels"):
        request.images(large, replace(LIMITS, decoders=Decoders(6_000_000)))


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
    go, begun, real = threading.Event(), threading.Event(), fozo.data.images.picture_pixels

    def slow(*arguments: Any) -> Any:
        begun.set()
        assert go.wait(30)
        return real(*arguments)

    monkeypatch.setattr("fozo.serve.decoding.picture_pixels", slow)
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
