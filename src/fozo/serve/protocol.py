"""The Open Inference Protocol (v2) over HTTP: bodies to images and back, without a server.

A request is JSON, or JSON followed by the bytes of its tensors (Triton's binary tensor extension), or just a picture.
It has one tensor of images:

=========  ========================================  ===========================================================
datatype   shape                                     read as
=========  ========================================  ===========================================================
``FP32``   ``[B, C, H, W]`` or ``[C, H, W]``         normalised images of the model's size
``UINT8``  ``[B, H, W, C]``, ``[B, C, H, W]``, or    pixels of any size, as :mod:`fozo.data.inputs` reads them
           one image of these
``BYTES``  ``[B]``                                   JPEG, PNG or WebP files (in JSON: in base64)
=========  ========================================  ===========================================================

Bodies are not trusted: sizes are multiplied and compared with the body's length before anything is allocated, JSON is
bounded in bytes and in lists, and pictures are decoded where they cannot take long (:mod:`fozo.serve.decoding`).
"""

import base64
import binascii
import json
import math
import struct
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fozo.data.images import MAX_ASPECT, covered
from fozo.data.inputs import channels_last
from fozo.errors import FozoError
from fozo.io import parse_json
from fozo.serve.decoding import SMALL_PICTURE, Decoders, fit
from fozo.serve.limits import Refused
from fozo.types import Spec

IMAGES = "images"  # name of the input
LOGITS = "logits"
PROBABILITIES = "probabilities"
LABELS = "labels"
TOP = "top_5"  # texts VALUE:INDEX:LABEL, as Triton's classification extension has them; only on request
ACCURACY = "expected_accuracy"
DRIFT = "drift"
OUTPUTS = (LOGITS, PROBABILITIES, LABELS, TOP)
MONITORED = (ACCURACY, DRIFT)  # returned on request, by a model that has a monitor
SEQUENCE = ("sequence_start", "sequence_end")
PICTURES = ("image/jpeg", "image/png")  # content types of a body that is one picture
HEADER_LENGTH = "inference-header-content-length"  # header with the length of a body's JSON; tensors follow
SEQUENCE_HEADER = "x-sequence-id"  # header that names the camera where the body does not: proxies can route by it
MAX_ID_LENGTH = 256
MAX_SEQUENCE_NUMBER = 2**64 - 1
MAX_LISTS = 1 << 18  # lists and objects in a request's JSON: an empty one takes 3 bytes there, and 80 in memory
TYPES: dict[str, np.dtype[Any]] = {"FP32": np.dtype("<f4"), "UINT8": np.dtype("u1")}
NUMBERS = {"f": "FP", "i": "INT", "u": "UINT"}  # datatypes by NumPy's kind; the number of bits follows
KINDS: dict[type, str] = {dict: "a JSON object", bool: "true or false"}
T = TypeVar("T")
Tensor = npt.NDArray[np.generic] | tuple[bytes, ...]  # numbers, or encoded pictures
Pixels = npt.NDArray[np.uint8]
Outputs = Mapping[str, tuple[str, Sequence[int]]]  # datatype and shape by name; -1 is for a side that varies


@dataclass(frozen=True)
class Limits:
    """Limits of a request, and what all requests share."""

    images: int = 64
    pixels: int = 1 << 26  # in all of its images together, before they are resized
    json: int = 4 << 20  # bytes of its JSON
    decoders: Decoders = field(default_factory=Decoders)


@dataclass(frozen=True)
class InferRequest:
    """A request as it was parsed. Its images are still encoded: :meth:`images` decodes them."""

    id: str
    camera: str  # the `sequence_id` as text; empty for none
    start: bool
    end: bool
    outputs: Mapping[str, bool]  # tensors that were asked for, and whether as bytes
    reported: frozenset[str]  # of :data:`MONITORED`: what the response's parameters report
    tensor: Tensor
    client: str = ""  # its address: queues are fair between clients

    def drop(self) -> None:
        """Free the memory of a request that nobody waits for; its queue may hold it for a while."""
        object.__setattr__(self, "tensor", ())

    def images(self, spec: Spec, limits: Limits, *, resize: bool = True) -> npt.NDArray[np.generic]:
        """Decode the images for an adapter; pictures are resized to the model's size, or refused where they differ."""
        if isinstance(self.tensor, tuple):
            return limits.decoders.decode(self.tensor, spec, resize, limits.pixels)
        if self.tensor.dtype != np.uint8:
            return self.tensor
        images = channels_last(self.tensor.astype(np.uint8, copy=False), spec)
        height, width = images.shape[1:3]
        if (height, width) == spec.image_size:
            return images
        if max(height, width) > MAX_ASPECT * min(height, width):
            raise FozoError(
                f"images of {width}x{height} px are more than {MAX_ASPECT} times as long as wide; crop them"
            )
        pixels = working_pixels(images.shape, spec)
        if pixels > limits.decoders.most_pixels:
            raise Refused(
                f"images of {width}x{height} px take {pixels} pixels, more than max_pixels; send smaller ones", 413
            )
        with limits.decoders.places if pixels > SMALL_PICTURE else nullcontext():
            return np.concatenate([fit(image, spec, resize) for image in images])


def working_pixels(shape: tuple[int, ...], spec: Spec) -> int:
    """Pixels that fitting images ``[B, height, width, channels]`` takes: one resized, before it is cut, and all cut."""
    count, height, width, _ = shape
    tall, broad = map(covered, spec.image_size)
    scale = max(tall / height, broad / width)
    largest = max(1.0, scale**2) * height * width
    return int(largest) + count * math.prod(spec.image_size)


def picture_request(body: bytes, query: bytes, outputs: Sequence[str] = OUTPUTS) -> InferRequest:
    """Make a request of a body that is one picture; its parameters are in the query, and the response is JSON."""
    known = ("id", "sequence_id", "outputs", *SEQUENCE, *MONITORED)
    parameters: dict[str, object] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=len(known))
    except ValueError as error:  # also of what is not UTF-8
        raise FozoError(f"the query cannot be read ({str(error)[:100]}); percent-encode its texts in UTF-8") from error
    for name, value in pairs:
        if name not in known or name in parameters:
            raise FozoError(f"the query has {name[:40]!r}, unknown or twice; it may have {', '.join(known)}, each once")
        parameters[name] = {"true": True, "false": False}.get(value, value) if name in known[3:] else value
    names = str(parameters.get("outputs", "")).split(",")
    tables = [{"name": name} for name in names if name]
    return _request(parameters.get("id", ""), parameters, _read_outputs(tables, False, outputs), (body,))


def read_request(
    body: bytes | bytearray, header_length: str | None, limits: Limits, outputs: Sequence[str] = OUTPUTS
) -> InferRequest:
    """Parse a body of JSON, or of JSON and tensors where ``header_length`` is the length of the JSON.

    ``outputs`` are those of the model, returned where the request names none.
    """
    length = len(body)
    if header_length is not None:
        # isdecimal() is true of other scripts' digits too, which int() reads; but not of signs, spaces and the like.
        if not header_length.isdecimal() or len(header_length) > 12 or int(header_length) > length:
            sentence = f"give the length of the JSON in bytes, {length} at most"
            raise FozoError(f"Inference-Header-Content-Length is {header_length[:20]!r}; {sentence}")
        length = int(header_length)
    if length > limits.json:
        raise Refused(f"the JSON is longer than {limits.json} bytes; send tensors as binary data, or fewer images", 413)
    text = bytes(body[:length])
    if text.count(b"[") + text.count(b"{") > MAX_LISTS:  # what they take in memory is 25 times their text
        raise FozoError(f"the JSON has more than {MAX_LISTS} lists; send data as one flat list, or as binary data")
    try:
        payload = parse_json(text)
    except ValueError as error:
        raise FozoError(f"the request is not readable JSON ({str(error)[:100]}); send an inference request") from error
    parameters = _typed(payload.get("parameters", {}), dict, "parameters")
    inputs = payload.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1:
        raise FozoError(f"the request should have a list of one input, called {IMAGES!r}")
    tensor = _read_tensor(_typed(inputs[0], dict, "input"), memoryview(body).toreadonly()[length:], limits)
    binary = _typed(parameters.get("binary_data_output", False), bool, "binary_data_output")
    wanted = _read_outputs(payload.get("outputs"), binary, outputs)
    return _request(payload.get("id", ""), parameters, wanted, tensor)


def _request(id: object, parameters: Mapping[str, object], outputs: Mapping[str, bool], tensor: Tensor) -> InferRequest:
    camera = read_sequence_id(parameters.get("sequence_id", ""))
    flags = {name: _typed(parameters.get(name, False), bool, f"parameter {name}") for name in (*SEQUENCE, *MONITORED)}
    start, end = (flags[name] for name in SEQUENCE)
    reported = frozenset(name for name in MONITORED if flags[name])
    return InferRequest(_text(id, "id"), camera, start, end, outputs, reported, tensor)


def _typed(value: object, kind: type[T], what: str) -> T:
    if not isinstance(value, kind):
        raise FozoError(f"the request's {what} should be {KINDS[kind]}")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_ID_LENGTH:
        raise FozoError(f"the request's {what} should be a text of at most {MAX_ID_LENGTH} characters")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FozoError(f"the request's {what} is not valid UTF-8; send another one") from error
    return value


def read_sequence_id(value: object) -> str:
    """Read a sequence's id: 7 and "7" are the same camera; 0, "0" and "" are none."""
    if type(value) is int and 0 <= value <= MAX_SEQUENCE_NUMBER:
        value = str(value)
    if isinstance(value, str):
        return "" if value == "0" else _text(value, "sequence_id")
    raise FozoError(f"the parameter sequence_id should be a text, or a whole number up to {MAX_SEQUENCE_NUMBER}")


def read_sequence_header(value: str) -> str:
    """Read the camera's name of a header, which comes as Latin-1 and is UTF-8."""
    try:
        return read_sequence_id(value.encode("latin-1").decode())
    except UnicodeError as error:
        raise FozoError("the header X-Sequence-Id is not UTF-8; encode the camera's name so") from error


def _read_outputs(outputs: object, binary: bool, usual: Sequence[str]) -> dict[str, bool]:
    if outputs is None or outputs == []:
        return dict.fromkeys([name for name in usual if name != TOP], binary)
    known = (*usual, *MONITORED)
    if not isinstance(outputs, list) or len(outputs) > len(known):
        raise FozoError(f"the request's outputs should be a list of some of {', '.join(known)}")
    binaries: dict[str, bool] = {}
    for output in outputs:
        table = _typed(output, dict, "output")
        name = table.get("name")
        if name not in known or name in binaries:
            raise FozoError(f"the output {str(name)[:40]!r} is unknown or twice; ask for {', '.join(known)}, each once")
        parameters = _typed(table.get("parameters", {}), dict, "parameters of an output")
        binaries[name] = _typed(parameters.get("binary_data", binary), bool, "binary_data")
    return binaries


def _read_tensor(table: Mapping[str, Any], rest: memoryview, limits: Limits) -> Tensor:
    """Read the input; ``rest`` is what follows the JSON."""
    if table.get("name") != IMAGES:
        raise FozoError(f"the request's input is called {str(table.get('name'))[:40]!r}; call it {IMAGES!r}")
    datatype = table.get("datatype")
    sides = table.get("shape")
    if datatype not in (*TYPES, "BYTES"):
        raise FozoError(f"the input's datatype is {str(datatype)[:20]!r}; send FP32, UINT8 or BYTES")
    shape: list[int] = sides if isinstance(sides, list) else []
    if not 1 <= len(shape) <= 4 or not all(type(side) is int and 0 < side <= 4 * limits.pixels for side in shape):
        raise FozoError(f"the input's shape should be 1 to 4 whole numbers from 1 up, {limits.pixels} pixels at most")
    images = 1 if datatype != "BYTES" and len(shape) == 3 else shape[0]
    if images > limits.images:
        raise FozoError(f"the request has {images} images, but at most {limits.images} are taken; send fewer at a time")
    if datatype != "BYTES" and (len(shape) < 3 or math.prod(shape) > 4 * limits.pixels):
        raise FozoError(f"the input's shape is {shape}; images have 3 or 4 sides, and {limits.pixels} pixels at most")
    if datatype == "BYTES" and len(shape) != 1 and shape[1:] != [1]:
        raise FozoError(f"the BYTES tensor has shape {shape}; give [pictures]")
    size = _typed(table.get("parameters", {}), dict, "parameters of an input").get("binary_data_size")
    if size is None:
        if len(rest):
            raise FozoError(f"{len(rest)} bytes follow the JSON, but no input has a binary_data_size; give it")
        return _from_json(table.get("data"), datatype, shape)
    if type(size) is not int or size != len(rest):
        raise FozoError(f"the input's binary_data_size is {str(size)[:20]}, where {len(rest)} bytes follow the JSON")
    if datatype == "BYTES":
        return _elements(rest, images)
    dtype = TYPES[datatype]
    if len(rest) != math.prod(shape) * dtype.itemsize:
        raise FozoError(f"the input has {len(rest)} bytes, where {datatype} of shape {shape} has another number")
    array: npt.NDArray[np.generic] = np.frombuffer(rest, dtype=dtype).reshape(shape)
    return array if array.flags.aligned else array.copy()


def _elements(rest: memoryview, count: int) -> tuple[bytes, ...]:
    """Read a ``BYTES`` tensor: of each element its length in four bytes, then itself."""
    elements = list[bytes]()
    start = 0
    while start + 4 <= len(rest) and len(elements) < count:
        (length,) = struct.unpack_from("<I", rest, start)
        start += 4
        if length > len(rest) - start:
            break
        elements.append(bytes(rest[start : start + length]))
        start += length
    if len(elements) != count or start != len(rest):
        raise FozoError(f"the BYTES tensor does not hold the {count} elements that its shape says")
    return tuple(elements)


def _from_json(data: object, datatype: str, shape: list[int]) -> Tensor:
    if not isinstance(data, list):
        raise FozoError("the input has neither data nor binary_data_size; give one of them")
    if datatype == "BYTES":
        if len(data) != shape[0] or not all(isinstance(text, str) for text in data):
            raise FozoError(f"the BYTES tensor of shape {shape} should have as many texts, each a picture in base64")
        try:
            return tuple(base64.b64decode(text, validate=True) for text in data)
        except (binascii.Error, ValueError) as error:
            raise FozoError(f"a picture is not in base64 ({error}); encode it, or send it as binary data") from error
    array = _numbers(data, (int, float) if datatype == "FP32" else (int,))
    if array is None or array.size != math.prod(shape):
        raise FozoError(f"the input's data are not {math.prod(shape)} numbers of {datatype}, as its shape {shape} says")
    if datatype == "UINT8" and (array.min() < 0 or array.max() > 255):
        raise FozoError("the input's data are not within 0 to 255; UINT8 needs that")
    with np.errstate(over="ignore"):  # infinite ones are refused with the images
        numbers: npt.NDArray[np.generic] = array.astype(TYPES[datatype]).reshape(shape)
    return numbers


def _numbers(data: list[Any], types: tuple[type, ...]) -> npt.NDArray[np.float64] | None:
    """Make an array of a flat list, or of nested lists of one length each; NumPy sees numbers only."""
    for _ in range(4):
        if list not in (kinds := set(map(type, data))):
            break
        if len(kinds) > 1 or len(set(map(len, data))) > 1:
            return None
        data = list(chain.from_iterable(data))
    if not kinds.issubset(types):
        return None
    try:
        return np.array(data, dtype=np.float64)
    except OverflowError:  # an integer beyond all floats
        return None


ALIBI = ("is_drift", "distance", "threshold", "p_val")  # Alibi Detect's names
UNKNOWN_DRIFT = (0.0, 0.0, 1.0, 1.0)
UNKNOWN_ACCURACY = (-1.0, -1.0, -1.0)  # as an output: a tensor has no word for it
UNKNOWN_SENTENCE = "unknown: this answer was kept from before there was a reference"
EXPECTED = ("expected_accuracy", "expected_accuracy_low", "expected_accuracy_high")


@dataclass(frozen=True)
class InferResponse:
    """A camera's response: all outputs follow from it."""

    images: int
    outputs: Mapping[str, npt.NDArray[Any]]  # logits `[B, classes]`; of a model that has none, what it returned
    drift: tuple[float, float, float, float] | None = None  # four, as :data:`ALIBI` names them
    accuracy: tuple[float, float, float] | None = None  # expected, and its interval
    sentence: str = ""
    faults: tuple[str, ...] = ()  # of the camera, by name

    @property
    def nbytes(self) -> int:
        return sum([array.nbytes for array in self.outputs.values()])


def datatype(array: npt.NDArray[Any]) -> str:
    """The protocol's name of an array's type."""
    kind = array.dtype.kind if isinstance(array, np.ndarray) else ""
    if kind not in NUMBERS and kind != "b":
        what = array.dtype if kind else type(array).__name__
        raise FozoError(f"an output is {what}, not a tensor of numbers; leave it out of the model")
    return "BOOL" if kind == "b" else f"{NUMBERS[kind]}{8 * array.itemsize}"


def write_response(response: InferResponse, request: InferRequest, spec: Spec, model: str) -> tuple[bytes, int | None]:
    """Write the body of a response, and return the length of its JSON if tensors follow it."""
    outputs = list[dict[str, object]]()
    tensors = list[bytes]()
    for name, binary in request.outputs.items():
        array = _output(name, response, spec)
        shape = list(array.shape)
        data: bytes | list[Any]
        if array.dtype.kind == "U":
            kind = "BYTES"
            data = array.ravel().tolist()
            if binary:
                data = b"".join(struct.pack("<I", len(text)) + text for text in map(str.encode, data))
        else:
            kind = datatype(array)
            little = array.astype(array.dtype.newbyteorder("<"), copy=False)
            data = little.tobytes() if binary else array.ravel().tolist()
        values: dict[str, object] = {"data": data}
        if isinstance(data, bytes):
            tensors.append(data)
            values = {"parameters": {"binary_data_size": len(data)}}
        outputs.append({"name": name, "datatype": kind, "shape": shape, **values})
    payload: dict[str, object] = {"model_name": model, "model_version": "1", "outputs": outputs}
    if request.id:
        payload["id"] = request.id
    reported: dict[str, object] = {}
    if DRIFT in request.reported:
        reported |= zip(ALIBI, response.drift or UNKNOWN_DRIFT, strict=True)
        reported["sentence"] = response.sentence if response.drift else UNKNOWN_SENTENCE
        reported["faults"] = ",".join(response.faults)
    if ACCURACY in request.reported:
        reported |= zip(EXPECTED, response.accuracy or ("unknown",) * len(EXPECTED), strict=True)
    if reported:
        payload["parameters"] = reported
    try:
        text = json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()
    except ValueError as error:
        raise FozoError("an output has numbers that are not finite, which JSON lacks; ask for binary data") from error
    return b"".join([text, *tensors]), len(text) if tensors else None


def _output(name: str, response: InferResponse, spec: Spec) -> npt.NDArray[Any]:
    """One output as an array: numbers, or texts."""
    if name in response.outputs:
        return response.outputs[name]
    if name == DRIFT:
        return np.asarray(response.drift or UNKNOWN_DRIFT, np.float32)
    if name == ACCURACY:
        return np.asarray(response.accuracy or UNKNOWN_ACCURACY, np.float32)
    logits = response.outputs[LOGITS]
    if name == LABELS:
        return np.array([spec.label(int(best)) for best in logits.argmax(axis=1)], dtype=str)
    probabilities = softmax(logits, axis=1)
    if name == PROBABILITIES:
        return np.asarray(probabilities, np.float32)
    best = np.argsort(-probabilities, axis=1, kind="stable")[:, :5]
    return np.array(
        [
            [f"{row[i]:.4f}:{i}:{spec.label(int(i))}" for i in order]
            for row, order in zip(probabilities, best, strict=True)
        ]
    )


def check_monitored(request: InferRequest, monitored: Sequence[str], model: str) -> None:
    """Refuse, before anything is learnt from it, a request for outputs that need a monitor."""
    for name in request.reported.union(request.outputs):
        if name in MONITORED and name not in monitored:
            what = name.replace("_", " ")
            raise FozoError(f"{model} has no monitor that reports {what}; start the server with a --reference")


def class_outputs(spec: Spec) -> Outputs:
    """The outputs of a model that classifies."""
    rows = ("FP32", [-1, spec.classes])
    return {LOGITS: rows, PROBABILITIES: rows, LABELS: ("BYTES", [-1]), TOP: ("BYTES", [-1, min(5, spec.classes)])}


def model_metadata(name: str, spec: Spec, platform: str, outputs: Outputs, monitored: Sequence[str]) -> dict[str, Any]:
    """Describe a model's inputs and outputs. Of the three datatypes of images, the one that all clients know."""
    reported = {ACCURACY: ("FP32", [3]), DRIFT: ("FP32", [4])}
    described = {**outputs, **{output: reported[output] for output in monitored}}
    tables = [{"name": output, "datatype": kind, "shape": shape} for output, (kind, shape) in described.items()]
    inputs = [{"name": IMAGES, "datatype": "FP32", "shape": [-1, *spec.image_shape]}]
    return {"name": name, "versions": ["1"], "platform": platform, "inputs": inputs, "outputs": tables}
