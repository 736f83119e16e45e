"""Bodies to images and back: valid requests are read, and others refused in a sentence."""

import base64
import io
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import fozo
from fozo.data import sample
from fozo.errors import FozoError
from fozo.serve.protocol import (
    InferRequest,
    InferResponse,
    Limits,
    _elements,
    check_monitored,
    class_outputs,
    model_metadata,
    picture_request,
    read_request,
    read_sequence_header,
    write_response,
)
from tests.refusals import refuses

LIMITS = Limits(images=4, pixels=4096, json=1 << 20)
SPEC = fozo.load_engine(sample.MODELS["float32"], threads=1).spec


def body(shape: list[int], data: object = None, datatype: str = "UINT8", **payload: Any) -> bytes:
    tensor = {"name": "images", "datatype": datatype, "shape": shape} | ({} if data is None else {"data": data})
    return json.dumps({"inputs": [{**tensor, **payload.pop("tensor", {})}], **payload}).encode()


def binary(shape: list[int], data: bytes, datatype: str = "UINT8", **payload: Any) -> tuple[bytes, str]:
    size = {"parameters": {"binary_data_size": len(data)}}
    text = body(shape, None, datatype, tensor=size, **payload)
    return text + data, str(len(text))


def array_of(request: InferRequest) -> np.ndarray[Any, Any]:
    assert isinstance(request.tensor, np.ndarray)
    return request.tensor


def test_json_and_bytes_are_the_same() -> None:
    for datatype, kind in (("UINT8", "u1"), ("FP32", "<f4")):
        array = np.arange(24).reshape(2, 3, 4, 1).astype(kind)
        for data in (array.tolist(), array.ravel().tolist()):  # nested, or flat
            read = array_of(read_request(body([2, 3, 4, 1], data, datatype), None, LIMITS))
            assert read.dtype == array.dtype and (read == array).all()
        whole, length = binary([2, 3, 4, 1], array.tobytes(), datatype)
        read = array_of(read_request(whole, length, LIMITS))
        assert read.dtype == array.dtype and (read == array).all() and read.flags.aligned


def test_parameters() -> None:
    parameters = {"sequence_id": 2**64 - 1, "sequence_start": True, "binary_data_output": True, "drift": True}
    outputs = [{"name": "drift"}, {"name": "labels", "parameters": {"binary_data": False}}]
    read = read_request(body([1, 1, 1], [0], id="a", parameters=parameters, outputs=outputs), None, LIMITS)
    assert (read.id, read.camera, read.start, read.end) == ("a", str(2**64 - 1), True, False)
    assert read.outputs == {"drift": True, "labels": False}
    assert read.reported == {"drift"}
    assert picture_request(b"x", b"sequence_id=0").camera == ""
    for none in (0, "0", ""):
        assert read_request(body([1, 1, 1], [0], parameters={"sequence_id": none}), None, LIMITS).camera == ""
    seven = [read_request(body([1, 1, 1], [0], parameters={"sequence_id": id}), None, LIMITS).camera for id in (7, "7")]
    assert seven == ["7", "7"]


def picture(width: int, height: int, form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((height, width, 3), 90, np.uint8)).save(stream, form)
    return stream.getvalue()


def test_pictures() -> None:
    files = [picture(30, 40), picture(28, 28, "JPEG")]
    texts = [base64.b64encode(each).decode() for each in files]
    whole, length = binary([2], b"".join(struct.pack("<I", len(each)) + each for each in files), "BYTES")
    for read in (read_request(body([2], texts, "BYTES"), None, LIMITS), read_request(whole, length, LIMITS)):
        assert read.tensor == tuple(files)
        images = read.images(SPEC, LIMITS)
        assert images.shape == (2, 28, 28, 1) and images.dtype == np.uint8 and (images == 90).all()
    with pytest.raises(FozoError, match="too many pixels in all"):
        read_request(body([2], [base64.b64encode(picture(60, 60)).decode()] * 2, "BYTES"), None, LIMITS).images(
            SPEC, LIMITS
        )
    one = picture_request(files[0], b"sequence_id=cam&sequence_end=true&expected_accuracy=true")
    assert (one.camera, one.end) == ("cam", True) and one.reported == {"expected_accuracy"}
    wrong = b"sequence_end=yes", b"nothing=1", b"id=" + b"x" * 257, b"sequence_id=%ff%fe", b"id=\xff", b"id=a&id=b"
    for query in (*wrong, b"&".join(b"id=%d" % i for i in range(100))):
        with pytest.raises(FozoError):
            picture_request(files[0], query)


PIXEL = [1, 1, 1, 1]
WRONG: dict[str, tuple[bytes, str | None]] = {
    "two inputs": (json.dumps({"inputs": [{}, {}]}).encode(), None),
    "another name": (body(PIXEL, [0], tensor={"name": "x"}), None),
    "a datatype that is none": (body(PIXEL, [0], tensor={"datatype": ["FP32"]}), None),
    "a negative side": (body([-1, 1, 1, -1], [0]), None),
    "an empty side": (body([0, 1, 1, 1], []), None),
    "five sides": (body([1, 1, 1, 1, 1], [0]), None),
    "too many images": (body([5, 1, 1, 1], [0] * 5), None),
    "a huge shape": (body([1, 2**40, 2**40, 1], [0]), None),
    "too few data": (body([2, 1, 1, 1], [0]), None),
    "no data": (body(PIXEL), None),
    "texts as numbers": (body(PIXEL, ["0"]), None),
    "more JSON than the limit": (body(PIXEL, [0], id="x" * LIMITS.json), None),
    "more lists than the limit": (b'{"inputs": [' + b"[]," * (1 << 18) + b"0]}", None),
    "truth values as numbers": (body(PIXEL, [True]), None),
    "ragged data": (body([2, 1, 1, 1], [[0], [0, 1]]), None),
    "256 as a byte": (body(PIXEL, [256]), None),
    "a number beyond all": (body(PIXEL, [10**400]), None),
    "bytes of another length": binary([1, 1, 2, 1], b"x"),
    "a size that is not a number": (body(PIXEL, tensor={"parameters": {"binary_data_size": "1"}}), None),
    "a size of more than there is": (body(PIXEL, tensor={"parameters": {"binary_data_size": 10**30}}), None),
    "a picture that is not base64": (body([1], ["???"], "BYTES"), None),
    "an element beyond the body": binary([1], struct.pack("<I", 2**32 - 1) + b"x", "BYTES"),
    "too many elements": binary([1], struct.pack("<I", 0) * 2, "BYTES"),
    "a sequence's id that is negative": (body(PIXEL, [0], parameters={"sequence_id": -1}), None),
    "one that is too large": (body(PIXEL, [0], parameters={"sequence_id": 2**64}), None),
    "one that is too long": (body(PIXEL, [0], parameters={"sequence_id": "x" * 10_000}), None),
    "a flag that is 1": (body(PIXEL, [0], parameters={"sequence_start": 1}), None),
    "an id that is a number": (body(PIXEL, [0], id=5), None),
    "an output that there is not": (body(PIXEL, [0], outputs=[{"name": "boxes"}]), None),
    "an output twice": (body(PIXEL, [0], outputs=[{"name": "logits"}, {"name": "logits"}]), None),
    "a header's length below 0": (body(PIXEL, [0]), "-1"),
    "a header's length beyond the body": (body(PIXEL, [0]), "9" * 12),
    "NaN": (b'{"inputs": [{"name": "images", "datatype": "FP32", "shape": [1,1,1,1], "data": [NaN]}]}', None),
    "brackets by the thousand": (b"[" * 50_000, None),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_refused_in_a_sentence(what: str) -> None:
    with pytest.raises(FozoError) as caught:
        read_request(*WRONG[what], LIMITS)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 3),
    binaries=st.lists(st.booleans(), min_size=5, max_size=5),
    names=st.permutations(["logits", "probabilities", "labels", "drift", "expected_accuracy"]),
)
def test_answers_are_read_as_they_were_written(rows: int, binaries: list[bool], names: list[str]) -> None:
    logits = np.random.default_rng(rows).standard_normal((rows, 10)).astype(np.float32)
    answer = InferResponse(rows, {"logits": logits}, (1.0, 2.5, 1.5, 0.125), (0.75, 0.5, 1.0), "a sentence")
    outputs = [{"name": n, "parameters": {"binary_data": b}} for n, b in zip(names, binaries, strict=True)]
    request = read_request(body(PIXEL, [0], outputs=outputs, id="i"), None, LIMITS)
    data, length = write_response(answer, request, SPEC, "m")
    assert (length is None) == (not any(binaries))
    payload, rest = json.loads(data[:length]), data[length:] if length is not None else b""
    assert [each["name"] for each in payload["outputs"]] == names and payload["id"] == "i"
    for each in payload["outputs"]:
        if "data" in each:
            values: Any = each["data"]
        else:
            size = each["parameters"]["binary_data_size"]
            part, rest = rest[:size], rest[size:]
            values = part if each["datatype"] == "BYTES" else np.frombuffer(part, "<f4").reshape(each["shape"])
        if each["name"] == "logits":
            assert (np.reshape(values, logits.shape) == logits).all()
        if each["name"] == "drift":
            assert list(values) == [1.0, 2.5, 1.5, 0.125]
        if each["name"] == "labels" and "data" in each:
            assert values == [SPEC.label(int(best)) for best in logits.argmax(axis=1)]
    assert rest == b""


def test_outputs_of_a_monitor_need_one() -> None:
    request = read_request(body(PIXEL, [0], outputs=[{"name": "drift"}]), None, LIMITS)
    check_monitored(request, ("drift",), "m")
    refuses("no monitor", check_monitored, request, (), "m")
    request = read_request(body(PIXEL, [0], parameters={"expected_accuracy": True}), None, LIMITS)
    refuses("expected accuracy", check_monitored, request, ("drift",), "m")
    outputs: Any = model_metadata("m", SPEC, "p", class_outputs(SPEC), ("drift",))["outputs"]
    assert [each["name"] for each in outputs] == ["logits", "probabilities", "labels", "top_5", "drift"]


def test_a_picture_names_its_outputs_in_the_query() -> None:
    usual = tuple(class_outputs(SPEC))
    assert list(picture_request(picture(28, 28), b"", usual).outputs) == ["logits", "probabilities", "labels"]
    assert picture_request(picture(28, 28), b"outputs=labels,top_5&id=x", usual).outputs == {
        "labels": False,
        "top_5": False,
    }
    for query in (b"outputs=boxes", b"outputs=labels,labels", b"outputs=labels&outputs=logits"):
        with pytest.raises(FozoError):
            picture_request(picture(28, 28), query, usual)


@pytest.mark.parametrize("binary", [False, True])
def test_the_five_likeliest_have_names(binary: bool) -> None:
    logits = np.random.default_rng(0).standard_normal((2, 10)).astype(np.float32)
    outputs = [{"name": "top_5", "parameters": {"binary_data": binary}}]
    request = read_request(body(PIXEL, [0], outputs=outputs), None, LIMITS)
    data, length = write_response(InferResponse(2, {"logits": logits}), request, SPEC, "m")
    (found,) = json.loads(data[:length])["outputs"]
    assert found["datatype"] == "BYTES" and found["shape"] == [2, 5]
    texts = found.get("data") or [text.decode() for text in _elements(memoryview(data)[length or 0 :], 10)]
    best = np.argsort(-logits, axis=1)[:, :5]
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    wanted = [f"{shares[row, i]:.4f}:{i}:{SPEC.label(int(i))}" for row in range(2) for i in best[row]]
    assert texts == wanted


def test_an_answer_from_before_there_was_a_reference_knows_no_drift() -> None:
    """It was kept and is repeated; asked for drift it was an error of the server."""
    request = read_request(
        body(PIXEL, [0], outputs=[{"name": "drift"}], parameters={"drift": True, "expected_accuracy": True}),
        None,
        LIMITS,
    )
    data, _ = write_response(InferResponse(1, {"logits": np.zeros((1, 10), np.float32)}), request, SPEC, "m")
    said = json.loads(data)
    assert said["outputs"][0]["data"] == [0.0, 0.0, 1.0, 1.0]
    assert said["parameters"]["is_drift"] == 0 and said["parameters"]["sentence"].startswith("unknown")
    assert said["parameters"]["expected_accuracy"] == "unknown"


def test_a_header_names_the_same_camera_as_json() -> None:
    header = "Gerät-1".encode().decode("latin-1")  # as ASGI servers give it
    assert read_sequence_header(header) == "Gerät-1" and read_sequence_header("") == ""
    refuses("not UTF-8", read_sequence_header, "Ger\xe4t")
