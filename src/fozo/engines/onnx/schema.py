"""The interface between exporter and engines: names of tensors, and the spec as metadata.

No ONNX library is needed here: engines get the metadata from their own runtime.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import IO

from fozo.errors import FozoError
from fozo.io import as_dataclass, open_regular, parse_json
from fozo.types import Spec

FORMAT = 2  # raised when older engines could not run newer files
METADATA = "fozo"  # the key of the model's metadata that holds the JSON
PRODUCER = "fozo"  # what fozo export calls itself in a file

IMAGES = "images"
PROMPTS = "prompts"  # [K, p, d]; an adopted graph has them where its sequence may grow, as [K * B, p, d]
MOVES = ("cls_scale", "cls_shift", "patches_scale", "patches_shift")
"""Each ``[k, b, L, d]``, k either K or 1, b B or 1. In an adopted graph, whose rows are images under candidates, each
``[n, L, d]``, n either K * B or 1."""
MATRICES = "patch_matrices"
"""``[k, b, A, d, d]``, or ``[k, b, 0, d, d]`` to multiply by none; in an adopted graph ``[n, A or 0, d, d]``. Files of
format 1 and models of one block lack it."""
INPUTS = (IMAGES, PROMPTS, *MOVES, MATRICES)
HEAD_WEIGHT = "head_weight"  # [h, classes]: the head is applied outside of the graph
HEAD_BIAS = "head_bias"  # [classes]
# Far beyond any model; what a file says of itself decides how much memory an engine takes.
MAX_FIELDS = 100_000  # of a message: a graph has a field for each node and each weight
MAX_ENTRY_BYTES = 10_000  # of a key and its value: the name of a data file
LIMITS = {"depth": 1000, "dim": 1 << 16, "classes": 1 << 20, "channels": 64, "head_width": 1 << 17}
MAX_SIDE = 1 << 14

graph_hash = partial(hashlib.blake2b, digest_size=16)  # of a graph and its data file; 0.4 s for a ViT-B


class ForeignModelError(FozoError):
    """An ONNX file that ``fozo export`` did not write."""


def write_spec(spec: Spec, weights: str, data: str = "") -> str:
    """Spec to metadata, with the digest of the graph that it is of and the name of its data file, if it has one."""
    return json.dumps({"format": FORMAT, "spec": asdict(spec), "weights": weights, "data": data}, sort_keys=True)


def read_spec(path: Path, metadata: Mapping[str, str], inputs: Mapping[str, Sequence[object]]) -> Spec:
    """Metadata to spec, refusing models that ``fozo export`` did not write or that are newer than this program.

    ``inputs`` are the shapes of the graph's inputs, with whole numbers where they are fixed. A graph whose weights are
    no longer those that were exported gets a fingerprint of its own, so that statistics of the old ones are refused.
    """
    text = metadata.get(METADATA)
    if text is None or not {IMAGES, *MOVES} <= set(inputs):
        refusal = ForeignModelError if text is None and PROMPTS not in inputs else FozoError
        raise refusal(
            f"{path} is an ONNX model without fozo's prompt inputs, so its tokens cannot be moved; export the "
            f"original weights with: fozo export MODEL -o model.onnx, or use it as a black box: "
            f"fozo.adapter({path.name!r}, clean)"
        )
    try:
        content = parse_json(text)
        version = content.get("format")
        values = content.get("spec")
        stored = content.get("weights")
        if type(version) is not int or not isinstance(values, dict):
            raise ValueError("no format, or no spec")
        if version <= FORMAT:
            known = {field.name: values[field.name] for field in fields(Spec) if field.name in values}
            spec = as_dataclass(Spec, known, "the spec")
            _check(spec, inputs)
            producer, digest = read_graph(path, str(content.get("data") or ""))
    except (ValueError, OSError) as error:
        raise FozoError(f"{path} holds damaged metadata ({error}); export the model again") from error
    if version > FORMAT:
        raise FozoError(
            f"{path} has format {version}, and this fozo reads up to {FORMAT}; upgrade fozo or export it again"
        )
    if stored != digest:
        kind = "edited" if producer == PRODUCER else "int8"
        spec = replace(spec, fingerprint=f"{spec.fingerprint}-{kind}-{digest[:8]}")
    return spec


def _check(spec: Spec, inputs: Mapping[str, Sequence[object]]) -> None:
    for name, limit in LIMITS.items():
        if not 1 <= getattr(spec, name) <= limit:
            raise ValueError(f"{name} is {getattr(spec, name)}")
    sides = (*spec.image_size, *spec.patch_size)
    if not all(1 <= side <= MAX_SIDE for side in sides) or not spec.patches:
        raise ValueError(f"images of {spec.image_size} in patches of {spec.patch_size}")
    if min(spec.subset or (0,)) < 0:
        raise ValueError("a class is below 0")
    wanted = {IMAGES: spec.image_shape, **dict.fromkeys(MOVES, (spec.depth, spec.dim))}
    if PROMPTS in inputs:
        wanted[PROMPTS] = (spec.dim,)
    if MATRICES in inputs:
        wanted[MATRICES] = (spec.dim, spec.dim)
    for name, shape in wanted.items():
        sizes = list(inputs[name])[-len(shape) :]
        if len(sizes) != len(shape) or any(type(a) is int and a != b for a, b in zip(sizes, shape, strict=True)):
            raise ValueError(f"the graph's {name} are {list(inputs[name])}, not {list(shape)}")


def read_graph(path: Path, data: str = "") -> tuple[str, str]:
    """Read who wrote a model, and a digest of its graph and of the data file beside it, if it has one.

    They are fields 2 and 7 of ONNX's outermost message, which not every runtime passes on.
    """
    producer = ""
    digest = graph_hash()
    with open_regular(path) as file:
        for field, length in _messages(file, path.stat().st_size):
            if field == 2:
                producer = file.read(min(length, 1000)).decode(errors="replace")
            elif field == 7:
                hash_file(file, digest.update, length)
    if data:
        if Path(data).name != data:
            raise ValueError(f"its data file is called {data!r}")
        with open_regular(path.with_name(data)) as file:
            hash_file(file, digest.update)
    return producer, digest.hexdigest()


def model_fingerprint(path: Path) -> str:
    """Hash a file of any program, and the files that its weights are kept in."""
    digest = graph_hash()
    with open_regular(path) as file:
        hash_file(file, digest.update)
        locations = sorted(_data_files(file, path.stat().st_size))
    for location in locations:
        digest.update(location.encode())
        data = (path.parent / location).resolve()
        if data.is_relative_to(path.parent.resolve()) and data.is_file():  # no runtime reads others
            with open_regular(data) as file:
                hash_file(file, digest.update)
    return digest.hexdigest()


def _data_files(file: IO[bytes], size: int) -> set[str]:
    """Where tensors with external data say that they are: graph (7), initializer (5), external_data (13)."""
    locations = set()
    file.seek(0)
    for graph, graph_bytes in _messages(file, size):
        if graph != 7:
            continue
        for tensor, tensor_bytes in _messages(file, graph_bytes):
            if tensor != 5:
                continue
            for entry, entry_bytes in _messages(file, tensor_bytes):
                if entry == 13 and entry_bytes < MAX_ENTRY_BYTES:
                    parts = {field: file.read(length) for field, length in _messages(file, entry_bytes)}
                    if parts.get(1) == b"location":
                        locations.add(parts.get(2, b"").decode(errors="replace"))
    return locations


def _messages(file: IO[bytes], length: int) -> Iterator[tuple[int, int]]:
    """Walk the fields of a protobuf message: number and length of those that have one, at whose bytes the file is."""
    end = file.tell() + length
    for _ in range(MAX_FIELDS):
        tag = _varint(file) if file.tell() < end else None
        if tag is None:
            return
        kind = tag & 7
        if kind == 0:
            _varint(file)
            continue
        size = _varint(file) if kind == 2 else {1: 8, 5: 4}.get(kind)
        if size is None:
            return
        after = min(file.tell() + size, end)
        if kind == 2:
            yield tag >> 3, after - file.tell()
        file.seek(after)


def hash_file(file: IO[bytes], update: Callable[[bytes], None], length: int = 1 << 62) -> int:
    """Read ``length`` bytes, or to the end; return how many are left."""
    while length and (block := file.read(min(length, 1 << 20))):
        update(block)
        length -= len(block)
    return length


def _varint(file: IO[bytes]) -> int | None:
    """Read one of protobuf's integers, seven bits a byte; ``None`` at the end of the file."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 127) << shift
        if byte[0] < 128:
            return value
    return None
