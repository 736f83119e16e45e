"""A fuzzer of the server's protocol: requests by our own grammar, with odd values in odd places.

    python -m tests.fuzz_protocol [--requests 20000] [--seed 0]

Each request begins as a valid one: JSON, JSON and binary tensors, or a picture. Then up to four of its parts (a value
of the JSON, a header, the tail of bytes, the request line) are replaced by values that are valid elsewhere, of another
type, huge, or damaged. Whatever comes, the server answers in time and as the protocol defines: a result whose tensors
have the shapes that it names, or a refusal with one sentence; never 5xx, and an unchanged request always 200. In
between, a well-behaved camera is predicted as by an adapter of its own.
"""

import argparse
import base64
import io
import json
import math
import socket
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image

from tests.fuzz import ODD_VALUES, damage

Edit = tuple[str, int, int]
SIDE, CLASSES, NAME = 28, 10, "fashion"
PATH = f"/v2/models/{NAME}/infer"
CODES = {100, 200, 307, 400, 403, 404, 405, 413, 415, 421, 429}
CONTROL_EVERY = 50  # requests between two of the well-behaved camera
SIZES = {"FP32": 4, "UINT8": 1}


def picture(form: str, side: int = SIDE) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.arange(side * side, dtype=np.uint8).reshape(side, side)).save(stream, form)
    return stream.getvalue()


PICTURES = [picture(form, side) for form in ("PNG", "JPEG", "WEBP") for side in (SIDE, 7, 300)]
TEXTS = st.sampled_from(["", "cam", "0", "x" * 256, "x" * 257, "ä\u2028\n", "../../etc", "%00", "\ud800", "\0", "<b>"])
ODD = st.one_of(st.sampled_from(ODD_VALUES), TEXTS, st.integers(), st.floats(), st.lists(st.integers(-1, 300)))
ODD_HEADERS = (
    "Content-Length: 5", "Content-Length: -1", "Content-Length: 99999999999999999999", "Transfer-Encoding: chunked",
    "Inference-Header-Content-Length: 0", "Inference-Header-Content-Length: ٣", "Content-Encoding: gzip",
    "Inference-Header-Content-Length: 99999999999", "Content-Type: image/jpeg", "Content-Type: multipart/form-data",
    "Host: evil.example", "Origin: null", "Sec-Fetch-Site: cross-site", "X-Sequence-Id: \x7f", "Expect: 100-continue",
    "X-Sequence-Id: " + "y" * 300,
    "X-Sequence-Id: Gerät", "Authorization: Bearer é", "X: " + "z" * 70_000, "Upgrade: websocket", "no colon",
)  # fmt: skip
ODD_LINES = (
    f"GET {PATH}", "POST /v2/models/other/infer", f"POST {PATH.replace('infer', 'versions/9/infer')}", f"POST {PATH}/",
    f"POST {PATH}?id=%ff", f"POST {PATH}?sequence_id=a&sequence_id=b", f"POST {PATH}?drift=true&x=1", "POST /v2/../x",
    f"POST {PATH}?outputs=labels,top_5", f"POST {PATH}?outputs=x", f"POST {PATH}?outputs=", f"POST {PATH}?outputs=,",
    f"DELETE {PATH}", "POST /v2/repository/index", "GET /metrics", "POST *", "\x00\x01", "OPTIONS /events?x",
)  # fmt: skip


@st.composite
def messages(draw: Any) -> tuple[bytes, bool, bool]:
    """A request as it is sent, whether it is valid, and whether all of it is there."""
    kind, images = draw(st.sampled_from(["UINT8", "FP32", "BYTES", "picture"])), draw(st.integers(1, 3))
    binary, shape = draw(st.booleans()), [images] if kind == "BYTES" else [images, 1, SIDE, SIDE]
    some = PICTURES[draw(st.integers(0, len(PICTURES) - 1))]
    line, headers, body, tail = f"POST {PATH}", dict[str, str](), b"", b""
    edits: list[Edit] = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["json", "json", "value", "header", "tail", "line", "length", "flip", "number"]),
                st.integers(0, 2**32 - 1),
                st.integers(0, 2**16 - 1),
            ),
            max_size=4,
        )
    )
    if kind == "picture":
        line += draw(st.sampled_from(["", "?sequence_id=cam&id=7", "?sequence_start=true&sequence_end=true"]))
        headers["Content-Type"], tail = draw(st.sampled_from(["image/png", "image/jpeg; q=1"])), some
    else:
        table: dict[str, Any] = {"name": "images", "datatype": kind, "shape": shape}
        if kind == "BYTES":
            tail = images * (struct.pack("<I", len(some)) + some)
            data: list[Any] = images * [base64.b64encode(some).decode()]
        else:
            tail, data = bytes(math.prod(shape) * SIZES[kind]), [0] * math.prod(shape)
        parameters: dict[str, Any] = {"sequence_id": draw(st.sampled_from([0, 7, "cam", 2**64 - 1]))}
        parameters |= {"sequence_start": draw(st.booleans()), "binary_data_output": draw(st.booleans())}
        payload = {"id": draw(st.sampled_from(["", "a"])), "parameters": parameters, "inputs": [table]}
        if draw(st.booleans()):
            payload["outputs"] = [{"name": draw(st.sampled_from(["logits", "labels", "top_5"])), "parameters": {}}]
        if binary:
            table["parameters"] = {"binary_data_size": len(tail)}
        else:
            table["data"], tail = data, b""
        if any(name == "value" for name, *_ in edits):
            inside: dict[str, Any] = draw(st.sampled_from([payload, parameters, table]))
            inside[draw(st.sampled_from([*inside, "drift", "outputs", "expected_accuracy"]))] = draw(ODD)
        body = json.dumps(payload).encode()
        if binary:
            headers["Inference-Header-Content-Length"] = str(len(body))
    lines, whole = list[str](), True
    for edit in edits:
        name, a, b = edit
        if name == "header":
            lines.append(ODD_HEADERS[a % len(ODD_HEADERS)])
        elif name == "line":
            line = ODD_LINES[a % len(ODD_LINES)]
        elif name == "tail":
            tail = damage(tail, (("flip", "cut", "remove", "double", "odd")[b % 5], a, b))
        elif name != "value" and name != "length":
            body = damage(body, edit)
    if "Inference-Header-Content-Length" in headers and len(edits) % 2:  # as long as what the edits have left
        headers["Inference-Header-Content-Length"] = str(len(body))
    body += tail
    length = len(body)
    if any(name == "length" for name, *_ in edits):
        length = max(0, length + edits[0][2] % 9 - 4)
        whole = length <= len(body)
    lines += [f"{key}: {value}" for key, value in headers.items()]
    if not any(each.startswith(("Content-Length", "Transfer")) for each in lines):
        lines.append(f"Content-Length: {length}")
    else:
        whole = False
    text = "\r\n".join([f"{line} HTTP/1.1", "Host: localhost", "Connection: close", *lines, "", ""])
    return text.encode("utf-8", "surrogatepass") + body, not edits, whole


def send(port: int, message: bytes, whole: bool = True) -> bytes:
    """Send a request, and return all that comes back."""
    parts = list[bytes]()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        try:
            client.sendall(message)
            if not whole:  # the server would wait for the rest of it
                client.shutdown(socket.SHUT_WR)
            while part := client.recv(1 << 16):
                parts.append(part)
        except TimeoutError:
            raise
        except OSError:  # the server has closed it
            pass
    return b"".join(parts)


def check(reply: bytes, valid: bool, whole: bool) -> int:
    """Raise if an answer is not as the protocol defines; its status."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if not head:
        assert not whole, "no answer"
        return 0
    status, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    code = int(status.split()[1])
    assert code in ({200} if valid else CODES), reply[:500]
    if code == 100:  # Expect: 100-continue
        return check(body, valid, whole)
    if code == 307:  # a slash too many
        assert headers["location"] == f"http://localhost{PATH}"
    elif code != 200 and headers["content-type"] == "application/json":
        sentence = json.loads(body)["error"]
        assert 0 < len(sentence) < 600 and sentence.isprintable(), sentence
    elif code != 200:
        assert headers["content-type"].startswith("text/plain") and code == 400, reply[:500]  # uvicorn's own
    elif b"model_name" in body:
        length = int(headers.get("inference-header-content-length", len(body)))
        answer, rest = json.loads(body[:length]), len(body) - length
        for output in answer["outputs"]:
            elements, size = math.prod(output["shape"]), output.get("parameters", {}).get("binary_data_size")
            assert size is not None or len(output["data"]) == elements
            assert output["shape"][-1] == CLASSES or output["datatype"] == "BYTES"
            rest -= size or 0
        assert rest == 0
    return code


def fuzz(port: int, requests: int, number: int, control: Callable[[int], None]) -> Counter[int]:
    """Send n requests to a server; ``control`` is called now and then with a number that grows."""
    codes = Counter[int]()

    @seed(number)
    @settings(
        max_examples=requests, deadline=None, database=None, suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink), print_blob=False, report_multiple_bugs=False,
    )  # fmt: skip
    @given(messages())
    def attempt(given: tuple[bytes, bool, bool]) -> None:
        message, valid, whole = given
        codes[check(send(port, message, whole), valid, whole)] += 1
        if sum(codes.values()) % CONTROL_EVERY == 0:
            control(sum(codes.values()) // CONTROL_EVERY - 1)

    attempt()
    return codes


def main() -> None:
    from tests.serve.test_fuzz import fuzz_server

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    codes = fuzz_server(options.requests, options.seed)
    print(f"{sum(codes.values())} requests: {', '.join(f'{n} of {code}' for code, n in sorted(codes.items()))}")


if __name__ == "__main__":
    main()
