"""The server over the loopback: the protocol by its own client, pictures by plain HTTP, cameras, limits, errors."""

import io
import re
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from PIL import Image
from tritonclient.utils import InferenceServerException

import fozo
from fozo.monitor import Event
from fozo.serve.board import Reading
from tests.serve.conftest import MODEL, NAME, STATS, config, foggy, frames, running, until

Array = np.ndarray[Any, np.dtype[Any]]


def ask(url: str, images: Array, **options: Any) -> triton.InferResult:
    """Send images with the protocol's own client."""
    binary = options.pop("binary", True)
    kind = {"uint8": "UINT8", "float32": "FP32", "object": "BYTES"}[str(images.dtype)]
    with triton.InferenceServerClient(url, network_timeout=30, connection_timeout=30) as client:
        given = triton.InferInput("images", list(images.shape), kind)
        given.set_data_from_numpy(images, binary_data=binary)
        return client.infer(NAME, [given], **options)


def jpeg(pixels: Array, form: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels[..., 0]).save(stream, form)
    return stream.getvalue()


def new_adapter() -> fozo.Align:
    """An adapter as the server's cameras have, to compare with."""
    return fozo.Align(fozo.load_engine(MODEL, threads=2), fozo.Statistics.load(STATS))


@pytest.fixture(scope="module")
def url(reference: Path) -> Any:
    with running(config(reference=reference)) as (address, _):
        yield address


def test_metadata(url: str) -> None:
    with triton.InferenceServerClient(url) as client:
        assert client.is_server_live() and client.is_server_ready() and client.is_model_ready(NAME)
        assert client.is_model_ready(NAME, "1") and not client.is_model_ready("other")
        assert "sequence(string_id)" in client.get_server_metadata()["extensions"]
        payload = client.get_model_metadata(NAME)
        assert payload["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 1, 28, 28]}]
        assert {each["name"] for each in payload["outputs"]} == {
            "logits", "probabilities", "labels", "top_5", "drift", "expected_accuracy",
        }  # fmt: skip
        assert client.get_model_repository_index() == [{"name": NAME, "version": "1", "state": "READY", "reason": ""}]
        with pytest.raises(InferenceServerException, match="Not Found"):
            client.load_model(NAME)
        with pytest.raises(InferenceServerException, match="no version"):
            client.get_model_metadata(NAME, "2")


@pytest.mark.parametrize("binary", [True, False])
def test_answers_are_an_adapters(url: str, binary: bool) -> None:
    """Pixels and normalised floats, as bytes and as JSON, are predicted as by an adapter that saw the same."""
    adapter, pixels = new_adapter(), frames(12)
    camera = f"compared-{binary}"
    for part in (pixels[:4], pixels[4:8].transpose(0, 3, 1, 2)):
        found = ask(url, part, sequence_id=camera, binary=binary).as_numpy("logits")
        np.testing.assert_allclose(found, adapter(part), rtol=1e-3, atol=1e-3)
    floats = adapter.engine.spec.normalise(pixels[8:])
    outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("labels", "probabilities")]
    found = ask(url, floats, sequence_id=camera, binary=binary, outputs=outputs, request_id="last")
    logits = np.asarray(adapter(floats))
    names = [each.decode() if isinstance(each, bytes) else each for each in found.as_numpy("labels")]
    assert names == adapter.names(logits) and found.get_response()["id"] == "last"
    assert found.as_numpy("logits") is None
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.as_numpy("probabilities"), expected, rtol=1e-2, atol=1e-4)


def test_pictures(url: str) -> None:
    """JPEG and PNG as a tensor, and as a body: the same answer as for their pixels, where nothing is lost."""
    pixels = frames(2, 20)
    whole = ask(url, pixels, sequence_id="pixels").as_numpy("logits")
    files = np.array([jpeg(each, "PNG") for each in pixels], dtype=object)
    np.testing.assert_array_equal(ask(url, files, sequence_id="png").as_numpy("logits"), whole)
    one = ask(url, pixels[:1], sequence_id="one").as_numpy("logits")
    path, query = f"http://{url}/v2/models/{NAME}/infer", {"sequence_id": "body", "drift": "true", "id": "9"}
    reply = httpx.post(path, params=query, content=jpeg(pixels[0], "PNG"), headers={"Content-Type": "image/png"})
    answer = reply.json()
    by_name = {each["name"]: each for each in answer["outputs"]}
    assert reply.status_code == 200 and answer["id"] == "9" and by_name["logits"]["shape"] == [1, 10]
    np.testing.assert_allclose(by_name["logits"]["data"], one[0], rtol=1e-6)
    assert {"is_drift", "distance", "threshold", "p_val", "sentence"} <= answer["parameters"].keys()
    lossy = httpx.post(path, content=jpeg(pixels[0]), headers={"Content-Type": "image/jpeg"})
    assert lossy.status_code == 200
    big = np.kron(pixels[0], np.ones((9, 9, 1), np.uint8))  # of another size
    assert httpx.post(path, content=jpeg(big), headers={"Content-Type": "image/jpeg"}).status_code == 200


def test_drift_and_expected_accuracy(url: str) -> None:
    """A camera in fog is distinguished from one that is not, by tensors and by parameters."""
    outputs = [triton.InferRequestedOutput(name) for name in ("drift", "expected_accuracy")]
    clear, fog = (
        ask(url, images, sequence_id=name, outputs=outputs, parameters={"drift": True, "expected_accuracy": True})
        for name, images in (("clear", frames(24, 40)), ("fog", foggy(frames(24, 40))))
    )
    drift, accuracy = fog.as_numpy("drift"), fog.as_numpy("expected_accuracy")
    assert drift.shape == (4,) and drift[0] == 1 and drift[1] > drift[2] and clear.as_numpy("drift")[0] == 0
    assert accuracy.shape == (3,) and 0 <= accuracy[1] <= accuracy[0] <= accuracy[2] <= 1
    reply = fog.get_response()["parameters"]
    assert "contrast" in reply["sentence"] and reply["is_drift"] == 1
    assert reply["expected_accuracy"] == pytest.approx(float(accuracy[0]))
    metrics = httpx.get(f"http://{url}/metrics").text
    assert f'fozo_drift_detected{{model="{NAME}",stream="fog"}} 1.0' in metrics
    assert f'fozo_drift_detected{{model="{NAME}",stream="clear"}} 0.0' in metrics
    found = {name: float(value) for name, value in re.findall(r'fozo_drift_ratio{.*stream="(\w+)"} (.*)', metrics)}
    assert found["fog"] > 1 > found["clear"] >= 0 and found["fog"] == pytest.approx(drift[1] / drift[2], rel=1e-4)
    assert f'fozo_images_total{{model="{NAME}",stream="fog"}} 24.0' in metrics
    assert 'band="contrast"' in metrics and "fozo_streams" in metrics and "fozo_passes_total" in metrics


def test_a_sequence_starts_again(url: str) -> None:
    """With sequence_start nothing is remembered; if its images are refused, everything still is."""
    first, other = frames(4, 300), foggy(frames(12, 304))
    fresh = ask(url, first, sequence_id="begin").as_numpy("logits")
    for part in np.split(other, 3):
        ask(url, part, sequence_id="begin")
    remembered = new_adapter()
    remembered(first)
    for part in np.split(other, 3):
        remembered(part)
    with pytest.raises(InferenceServerException, match="NaN"):
        ask(url, np.full((1, 1, 28, 28), np.nan, np.float32), sequence_id="begin", sequence_start=True)
    later = ask(url, first, sequence_id="begin").as_numpy("logits")
    np.testing.assert_allclose(later, remembered(first), rtol=2e-3, atol=2e-3)
    assert np.abs(later - fresh).max() > 0.01
    again = ask(url, first, sequence_id="begin", sequence_start=True, sequence_end=True).as_numpy("logits")
    np.testing.assert_allclose(again, fresh, rtol=1e-4, atol=1e-4)


REFUSED = {
    "no JSON": (b"{", {}, 400, "not readable JSON"),
    "a list": (b"[]", {}, 400, "not readable JSON"),
    "no input": (b"{}", {}, 400, "one input"),
    "compressed": (b"x", {"Content-Encoding": "gzip"}, 415, "compressed"),
    "a header longer than the body": (b"{}", {"Inference-Header-Content-Length": "3"}, 400, "length of the JSON"),
    "no picture": (b"\xff\xd8\xff nothing", {"Content-Type": "image/jpeg"}, 400, "picture 0"),
    "a foreign page": (b"{}", {"Origin": "http://evil.example"}, 403, "other sites"),
    "a page after DNS rebinding": (b"{}", {"Origin": "http://evil.com", "Host": "evil.com"}, 421, "allowed_hosts"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_errors_are_sentences(url: str, what: str) -> None:
    body, headers, code, words = REFUSED[what]
    reply = httpx.post(f"http://{url}/v2/models/{NAME}/infer", content=body, headers=headers)
    assert reply.status_code == code
    assert words in reply.json()["error"] and "\n" not in reply.json()["error"]


def test_unknown_paths_and_methods(url: str) -> None:
    assert httpx.get(f"http://{url}/v2/models/none").status_code == 404
    assert "error" in httpx.get(f"http://{url}/nothing").json()
    assert httpx.get(f"http://{url}/v2/models/{NAME}/infer").status_code == 405


def test_the_token(tmp_path: Path) -> None:
    with running(config(token="gehe im")) as (url, _):
        metrics = f"http://{url}/metrics"
        assert httpx.get(f"http://{url}/v2/health/ready").status_code == 200
        refused = httpx.get(metrics)
        assert refused.status_code == 401 and "Bearer" in refused.headers["WWW-Authenticate"]
        for header in ("Bearer gehe", "Bearer", "Basic gehe im", "gehe im", "Basic !!"):
            assert httpx.get(metrics, headers={"Authorization": header}).status_code == 401
        assert httpx.get(metrics, headers={"Authorization": "Bearer gehe im"}).status_code == 200


def test_the_names_a_server_answers_to() -> None:
    """Addresses, localhost and the names it was given: any other name may be an attacker's that resolves to it."""
    with running(config(allowed_hosts=("Gate.example",))) as (url, _):
        port = url.rpartition(":")[2]
        for host in ("localhost", f"localhost:{port}", "cam.localhost", "gate.example:80", "10.0.0.7", f"[::1]:{port}"):
            headers = {"Host": host, "Origin": f"http://{host}"}
            assert httpx.get(f"http://{url}/v2/health/live", headers=headers).status_code == 200, host
        for host in ("evil.example", f"evil.example:{port}", "localhost.evil.example", "gate.example.evil", "a b"):
            assert httpx.get(f"http://{url}/v2/health/live", headers={"Host": host}).status_code == 421, host
    with running(config(allowed_hosts=("*",))) as (url, _):
        assert httpx.get(f"http://{url}/v2/health/live", headers={"Host": "any.example"}).status_code == 200


def test_a_header_names_the_camera_where_the_body_does_not(tmp_path: Path) -> None:
    """So that a proxy can route by it; a body's own sequence_id counts first."""
    with running(config(tmp_path)) as (url, _):
        path = f"http://{url}/v2/models/{NAME}/infer"
        headers = {"Content-Type": "image/png", "X-Sequence-Id": "by-header"}
        for query in ({}, {"sequence_id": "by-body"}):
            assert httpx.post(path, params=query, content=jpeg(frames(1)[0], "PNG"), headers=headers).status_code == 200
        too_long = httpx.post(path, content=b"x", headers={**headers, "X-Sequence-Id": "x" * 257})
        assert too_long.status_code == 400 and "256" in too_long.json()["error"]
        metrics = httpx.get(f"http://{url}/metrics").text
        assert all(f'stream="{name}"}} 1.0' in metrics for name in ("by-header", "by-body"))


def test_the_length_of_a_body_is_limited() -> None:
    with running(config(max_body=10_000)) as (url, _):
        path = f"http://{url}/v2/models/{NAME}/infer"
        assert httpx.post(path, content=b"x" * 10_001).status_code == 413

        def endless() -> Any:
            while True:
                yield b"x" * 5000

        # The server answers while the client still sends; whether that reads the answer is a matter of time.
        with suppress(httpx.TransportError):
            assert httpx.post(path, content=endless()).status_code == 413
        assert httpx.get(f"http://{url}/v2/health/live").status_code == 200


def test_readings_reach_the_board(reference: Path) -> None:
    readings, gone = list[Reading](), list[tuple[object, ...]]()

    def record(reading: Reading) -> tuple[Event, ...]:
        readings.append(reading)
        return reading.events

    history = SimpleNamespace(record=record, forget=lambda *camera: gone.append(camera), notice_silence=lambda now: [])
    board = SimpleNamespace(routes=[], history=history)
    with running(config(reference=reference, thumbnails=True), board) as (url, _):
        ask(url, foggy(frames(24)), sequence_id="cam")
        ask(url, foggy(frames(2)), sequence_id="cam", sequence_end=True)
        ask(url, frames(2))
    first, second, shared = readings
    assert (first.model, first.camera, first.images, second.images) == (NAME, "cam", 24, 26)
    assert first.status is not None and first.status.drift.drift_detected and "contrast" in first.status.sentence
    assert None not in first.numbers
    assert [event.name for event in first.events] == ["drift"] and not second.events
    assert first.before is not None and first.before.startswith("/9j/")
    assert shared.camera == "" and shared.state == "fine"
    assert gone[0] == (NAME, "cam", True)


def test_a_mark_reaches_the_camera(url: str, reference: Path) -> None:
    with httpx.Client(base_url=f"http://{url}") as client:

        def mark(word: str, camera: str, model: str = NAME) -> httpx.Response:
            return client.post(f"/v2/models/{model}/mark/{word}", params={"sequence_id": camera})

        assert mark("seen", "marked").status_code == 404
        ask(url, frames(4), sequence_id="marked")
        assert mark("seen", "marked").status_code == mark("expected", "marked").status_code == 204
        assert mark("seen", "marked", "other").status_code == 404
        answer = mark("liked", "marked")
        assert answer.status_code == 400 and "seen or expected, not 'liked'" in answer.json()["error"]
    with running(config()) as (plain, _):
        ask(plain, frames(2), sequence_id="marked")
        answer = httpx.post(f"http://{plain}/v2/models/{NAME}/mark/seen", params={"sequence_id": "marked"})
        assert answer.status_code == 400 and "no monitor" in answer.json()["error"]


def test_a_mark_is_on_the_events_and_what_is_expected_is_clean(reference: Path) -> None:
    with running(config(reference=reference)) as (address, server):
        ask(address, np.zeros((4, 28, 28, 1), np.uint8), sequence_id="gate")
        assert server.pool is not None
        camera = server.pool.find(NAME, "gate")
        assert camera is not None and camera.monitor is not None
        httpx.post(f"http://{address}/v2/models/{NAME}/mark/seen", params={"sequence_id": "gate"})
        assert {event.mark for event in camera.monitor.events} == {"seen"}


def test_faults_are_fields_of_the_answer_and_metrics(reference: Path) -> None:
    with running(config(reference=reference)) as (address, _):
        black = np.zeros((4, 28, 28, 1), np.uint8)
        answer = ask(address, black, sequence_id="gate", parameters={"drift": True}).get_response()
        assert answer["parameters"]["faults"] == "black"
        ask(address, frames(4), sequence_id="yard")
        text = httpx.get(f"http://{address}/metrics").text
        assert f'fozo_fault{{kind="black",model="{NAME}",stream="gate"}} 1.0' in text
        assert f'fozo_fault{{kind="black",model="{NAME}",stream="yard"}} 0.0' in text
        (last,) = re.findall(rf'fozo_last_image_seconds{{model="{NAME}",stream="gate"}} (\S+)', text)
        assert abs(float(last) - time.time()) < 600


def test_silence_is_told_once_without_an_open_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fozo.serve.app.PATROL", 0.01)
    monkeypatch.setattr("fozo.serve.board.SILENT", 0.3)
    monkeypatch.setattr("fozo.serve.metrics.SILENT", 0.3)
    told = list[tuple[str, str]]()
    with running(config()) as (address, server):
        monkeypatch.setattr(server.notices, "send", lambda _, camera, event: told.append((camera, event["name"])))
        ask(address, frames(2), sequence_id="ended", sequence_end=True)  # its client said that this is all
        ask(address, frames(2), sequence_id="gate")
        until(lambda: told)
        time.sleep(0.1)
        metrics = server.metrics.text().decode()
        assert f'fozo_silent{{model="{NAME}",stream="gate"}} 1.0' in metrics and 'stream="ended"} 1.0' not in metrics
        ask(address, frames(2), sequence_id="gate")
        until(lambda: len(told) > 1)
        assert told[:2] == [("gate", "silent"), ("gate", "silent over")]
