"""Some requests of the protocol's fuzzer, each time the same; ``python -m tests.fuzz_protocol`` sends 20,000."""

import json
from collections import Counter

import numpy as np

from tests.fuzz_protocol import PATH, check, fuzz, send
from tests.serve.conftest import foggy, frames
from tests.serve.test_cameras import close
from tests.serve.test_front import front
from tests.serve.test_server import ask, new_adapter


def fuzz_server(requests: int, seed: int) -> Counter[int]:
    """Fuzz a server, while a camera sends foggy frames and is answered as by an adapter of its own."""
    adapter, pixels = new_adapter(), foggy(frames(100))

    def control(number: int) -> None:
        frame = pixels[number % 100][None]
        found = ask(f"127.0.0.1:{port}", frame, sequence_id="well-behaved").as_numpy("logits")
        close(np.asarray(found), adapter(frame))

    with front(max_labels=4) as port:
        return fuzz(port, requests, seed, control)


def test_whatever_is_sent_is_answered_as_the_protocol_defines() -> None:
    codes = fuzz_server(300, 0)
    assert codes[200] > 40 and codes[400] > 60 and len(codes) >= 5, codes


def test_a_lone_surrogate_is_refused_in_a_sentence() -> None:
    """The fuzzer's find: it cannot be encoded in the answer."""
    tensor = {"name": "images", "datatype": "UINT8", "shape": [1, 1, 1], "parameters": {"binary_data_size": "\udce9"}}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    with front() as port:
        assert check(send(port, head.encode() + body), False, True) == 400
