"""The interface between exporter and engines: names of tensors, and the spec as metadata.

No ONNX library is needed here: engines get the metadata from their own runtime.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import IO

from fozo.errors import FozoError
from fozo.io import as_dataclass, open_regular, parse_json
from fozo.types import Spec

FORMAT = 1  # raised when older engines could not run newer files
METADATA = "fozo"  # the key of the model's metadata that holds the JSON
PRODUCER = "fozo"  # what fozo export calls itself in a file

IMAGES, PROMPTS = "images", "prompts"
MOVES = ("cls_scale", "cls_shift", "patches_scale", "patches_shift")  # each [k, b, L, d], k either K or 1, b B or 1
INPUTS = (IMAGES, PROMPTS, *MOVES)
HEAD_WEIGHT, HEAD_BIAS = "head_weight", "head_bias"  # [h, classes] and [classes]: applied outside of the graph
# Far beyond any model; what a file says of itself decides how much memory an engine takes.
MAX_FIELDS = 100_000  # of a file's outermost message, which has a dozen
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
    if text is None or not set(INPUTS) <= set(inputs):
        refusal = ForeignModelError if text is None and PROMPTS not in inputs else FozoError
        raise refusal(
            f"{path} is an ONNX model without fozo's prompt inputs, so its tokens cannot be moved; export the "
            f"original weights with: fozo export MODEL -o model.onnx, or use it as a black box: "
            f"fozo.adapter({path.name!r}, clean)"
        )
    try:
        content = parse_json(text)
        version, values, stored = content.get("format"), content.get("spec"), content.get("weights")
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
    wanted = {IMAGES: spec.image_shape, PROMPTS: (spec.dim,), **dict.fromkeys(MOVES, (spec.depth, spec.dim))}
    for name, shape in wanted.items():
        own = list(inputs[name])[-len(shape) :]
        if len(own) != len(shape) or any(type(a) is int and a != b for a, b in zip(own, shape, strict=True)):
            raise ValueError(f"the graph's {name} are {list(inputs[name])}, not {list(shape)}")


def read_graph(path: Path, data: str = "") -> tuple[str, str]:
    """Read who wrote a model, and a digest of its graph and of the data file beside it, if it has one.

    They are fields 2 and 7 of ONNX's outermost message, which not every runtime passes on.
    """
    producer, digest = "", graph_hash()
    with open_regular(path) as file:
        for _ in range(MAX_FIELDS):
            tag = _varint(file)
            if tag is None:
                break
            field, kind = tag >> 3, tag & 7
            length = _varint(file) if kind in (0, 2) else {1: 8, 5: 4}.get(kind)
            if length is None:
                break
            if (field, kind) == (2, 2):
                producer = file.read(min(length, 1000)).decode(errors="replace")
                length = max(0, length - 1000)
            elif (field, kind) == (7, 2):
                length = hash_file(file, digest.update, length)
            if kind != 0 and length:
                file.seek(min(length, 1 << 62), 1)
    if data:
        if Path(data).name != data:
            raise ValueError(f"its data file is called {data!r}")
        with open_regular(path.with_name(data)) as file:
            hash_file(file, digest.update)
    return producer, digest.hexdigest()


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
