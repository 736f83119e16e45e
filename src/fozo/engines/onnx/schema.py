"""What is agreed between who writes an exported model and who runs it: names of tensors, and the spec as metadata.

No ONNX library is needed here: engines get the metadata from their own runtime.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import IO

from fozo.errors import FozoError
from fozo.types import Spec

FORMAT = 1
"""Raised when older engines could not run newer files."""
METADATA = "fozo"
"""The key of the model's metadata that holds the JSON."""
PRODUCER = "fozo"
"""What ``fozo export`` calls itself in a file."""

IMAGES, PROMPTS = "images", "prompts"
MOVES = ("cls_scale", "cls_shift", "patches_scale", "patches_shift")
"""All four have one shape [k, b, L, d], with k either K or 1 and b either B or 1."""
INPUTS = (IMAGES, PROMPTS, *MOVES)
HEAD_WEIGHT, HEAD_BIAS = "head_weight", "head_bias"
"""Constants, [h, classes] and [classes]: read once, applied outside of the graph."""


def write_spec(spec: Spec) -> str:
    """Spec to metadata."""
    return json.dumps({"format": FORMAT, "spec": asdict(spec)}, sort_keys=True)


def read_spec(path: Path, metadata: Mapping[str, str], inputs: Collection[str]) -> Spec:
    """Metadata to spec, refusing models that ``fozo export`` did not write or that are newer than this program."""
    text = metadata.get(METADATA)
    if text is None or not set(INPUTS) <= set(inputs):
        raise FozoError(
            f"{path} is an ONNX model without fozo's prompt inputs, so it cannot be adapted; "
            f"export the original weights with: fozo export MODEL -o model.onnx"
        )
    try:
        content = json.loads(text)
        version = int(content["format"])
        if version > FORMAT:
            raise FozoError(
                f"{path} has format {version}, and this fozo reads up to {FORMAT}; upgrade fozo or export it again"
            )
        values = content["spec"]
        known = {field.name: values[field.name] for field in fields(Spec) if field.name in values}
        for name, value in known.items():
            if isinstance(value, list):
                known[name] = tuple(value)
        spec = Spec(**known)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FozoError):
            raise
        raise FozoError(f"{path} holds damaged metadata ({type(error).__name__}); export the model again") from error
    if "-int8" not in spec.fingerprint and _producer(path) != PRODUCER:
        # Somebody quantized an exported model: no more the one whose fingerprint it carries.
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
        spec = replace(spec, fingerprint=f"{spec.fingerprint}-int8-{digest}")
    return spec


def _producer(path: Path) -> str:
    """Read who wrote a model: field 2 of ONNX's outermost message, which not every runtime passes on."""
    with path.open("rb") as file:
        while (tag := _varint(file)) is not None:
            field, kind = tag >> 3, tag & 7
            length = _varint(file) if kind in (0, 2) else {1: 8, 5: 4}.get(kind)
            if length is None:
                break
            if (field, kind) == (2, 2):
                return file.read(min(length, 1000)).decode(errors="replace")
            if kind != 0:
                file.seek(length, 1)
    return ""


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
