"""Named arrays in one ``.npz`` without pickles: headers are read and judged before any array is.

Every array of an archive says twice how long it is: in the zip's directory, and in its own header by shape and
precision. Both are compared, with each other and with the length of the file, before anything is allocated. fozo writes
its own files uncompressed, so what they hold is never longer than they are; a compressed set of images may be longer by
as much as real images shrink, but not by the thousandfold of deflated zeros.
"""

import math
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, NamedTuple

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError
from fozo.io.files import open_regular, unreadable
from fozo.io.logs import parse_json

HEADER = "__header__"
MAX_HEADER = 1 << 20  # bytes of the JSON that says what a file is
KINDS = "biuf"  # truth values, whole numbers and floats: what a file of fozo's holds
AnyArray = npt.NDArray[np.generic]


class ArraySpec(NamedTuple):
    """What an array's header says of it."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    bytes: int  # how much memory the array takes


def load_arrays(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, object], dict[str, AnyArray]]:
    """Read named arrays and the JSON header of a file of fozo 0.2 whose header has this ``kind``."""
    name = os.fspath(path)
    damaged = unreadable(f"{name} is not a readable fozo file", "it may be truncated: write it again")
    with damaged, open_npz(path) as (specs, read):
        spec = specs.pop(HEADER)
        if spec.dtype != np.uint8 or spec.bytes > MAX_HEADER:
            raise ValueError("its header is not text")
        header = parse_json(read(HEADER).tobytes())
        if header.get("kind") != kind:
            raise FozoError(f"{name} holds {header.get('kind')!r} where {kind!r} is needed; give the right file")
        return header, {part: read(part) for part in specs}


@contextmanager
def open_npz(
    path: str | os.PathLike[str], *, kinds: str = KINDS, ratio: float = 1.0, spare: int = 0
) -> Iterator[tuple[dict[str, ArraySpec], Callable[[str], AnyArray]]]:
    """Open an archive: what its headers say, and a function that reads one array; a damaged one raises nearly anything.

    Args:
        path: the file.
        kinds: NumPy's letters for the kinds of numbers that it may hold.
        ratio: how much longer than the file its arrays may be in all.
        spare: bytes that they may have in any case.
    """
    with open_regular(path, bounded=True) as file, zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        declared = sum(info.file_size for info in archive.infolist())
        if len(members) != len(archive.infolist()) or declared > ratio * os.fstat(file.fileno()).st_size + spare:
            raise FozoError(
                f"{os.fspath(path)} would unpack to {declared >> 20} MiB in {len(archive.infolist())} arrays, more "
                f"than a file of its length holds; write it again"
            )
        specs = {}
        for name, info in members.items():
            with archive.open(info) as stream:
                spec = specs[name] = _read_spec(stream, kinds)
                if stream.tell() + spec.bytes != info.file_size:
                    raise ValueError(f"{name} is not as long as its header says")

        def read(name: str) -> AnyArray:
            with archive.open(members[name]) as stream:
                array: AnyArray = np.lib.format.read_array(stream, allow_pickle=False)
                stream.read(1)  # at the end its checksum is compared
            return array

        yield specs, read


def _read_spec(stream: IO[bytes], kinds: str = KINDS) -> ArraySpec:
    """Read the header of an ``.npy`` stream, which then stands at the first number; raises nearly anything."""
    if np.lib.format.read_magic(stream) != (1, 0):  # other versions have headers of up to 4 GB
        raise ValueError("its header is of an unknown version")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    # A text's length is in its type; class names have at most a thousand letters.
    if dtype.kind not in kinds or not dtype.isnative or dtype.itemsize > (4096 if dtype.kind == "U" else 8):
        raise ValueError(f"it holds {dtype}")
    if not all(type(side) is int and side >= 0 for side in shape) or len(shape) > 8:
        raise ValueError(f"its shape is {shape}")
    return ArraySpec(dtype, shape, math.prod(shape) * dtype.itemsize)
