"""Array files that lie about themselves: every lie is found before anything is allocated for it."""

import io
import struct
import tracemalloc
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from fozo.io import load_arrays
from tests.refusals import refuses

HEADER = b'{"kind": "thing"}'
NESTED = b'{"kind": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def member(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def forged(shape: str, descr: str = "<f8", version: bytes = b"\x01\x00") -> bytes:
    """An .npy without numbers and with any header."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY" + version + struct.pack("<H" if version == b"\x01\x00" else "<I", len(text)) + text


def archive(path: Path, parts: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    header = member(np.frombuffer(HEADER, np.uint8))
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in {"__header__.npy": header, **parts}.items():
            file.writestr(name, data)
    return path


def bomb(path: Path) -> Path:
    """32 MB of zeros in 32 kB."""
    with zipfile.ZipFile(archive(path, {}), "a", zipfile.ZIP_DEFLATED) as file, file.open("a.npy", "w") as stream:
        stream.write(forged("(4000000,)"))
        for _ in range(32):
            stream.write(bytes(1_000_000))
    return path


def overlapping(path: Path) -> Path:
    """A hundred names for one array."""
    archive(path, {"a.npy": member(np.zeros(100_000))})
    data = path.read_bytes()
    end = data.rindex(b"PK\x05\x06")
    count, size, start = struct.unpack("<10xHII2x", data[end : end + 22])
    entries = data[start : start + size]
    one = entries[entries.rindex(b"PK\x01\x02") :]
    many = b"".join(one.replace(b"a.npy", b"%05d" % number) for number in range(100))
    tail = struct.pack("<4sHHHHIIH", b"PK\x05\x06", 0, 0, count + 100, count + 100, size + len(many), start, 0)
    path.write_bytes(data[:start] + entries + many + tail)
    return path


LIES: dict[str, Callable[[Path], Path]] = {
    "a bomb": bomb,
    "one array under many names": overlapping,
    "a shape without numbers": lambda path: archive(path, {"a.npy": forged("(1000000000000,)")}),
    "a negative shape": lambda path: archive(path, {"a.npy": forged("(-5, -5)")}),
    "a shape of truth values": lambda path: archive(path, {"a.npy": forged("(True,)") + bytes(8)}),
    "objects": lambda path: archive(path, {"a.npy": forged("(1,)", "|O") + bytes(8)}),
    "a giant number": lambda path: archive(path, {"a.npy": forged("(0,)", "|V2000000000")}),
    "text": lambda path: archive(path, {"a.npy": member(np.array(["a"]))}),
    "a longer header": lambda path: archive(path, {"a.npy": forged("(1,)", version=b"\x02\x00") + bytes(8)}),
    "no header": lambda path: archive(path, {"a.npy": forged("(" * 5000)}),
    "a name twice": lambda path: archive(path, {"a.npy": member(np.zeros(1)), "a": member(np.ones(1))}),
    "a nested header": lambda path: archive(path, {"__header__.npy": member(np.frombuffer(NESTED, np.uint8))}),
    "no array": lambda path: archive(path, {"a.npy": b""}),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_found_before_anything_is_allocated(tmp_path: Path, lie: str) -> None:
    path = LIES[lie](tmp_path / "a.npz")
    tracemalloc.start()
    try:
        refuses(r"a\.npz", load_arrays, path, "thing")
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
