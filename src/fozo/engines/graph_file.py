"""What is agreed between who writes an exported model and who runs it: names of tensors, and the spec as metadata.

No ONNX library is needed here: engines get the metadata from their own runtime.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, fields

from fozo.engines.base import Spec
from fozo.errors import FozoError

FORMAT = 1
"""Raised when older engines could not run newer files."""
METADATA = "fozo"
"""The key of the model's metadata that holds the JSON."""

IMAGES, PROMPTS = "images", "prompts"
MOVES = ("cls_scale", "cls_shift", "patches_scale", "patches_shift")
"""All four have one shape [k, b, L, d], with k either K or 1 and b either B or 1."""
INPUTS = (IMAGES, PROMPTS, *MOVES)
TAPS = ("cls", "features", "pooled")
PATCH_TAPS = ("patch_mean", "patch_variance")
HEAD_WEIGHT, HEAD_BIAS = "head_weight", "head_bias"
"""Constants, [h, classes] and [classes]: read once, applied outside of the graph."""


def write_spec(spec: Spec) -> str:
    """Spec to metadata."""
    return json.dumps({"format": FORMAT, "spec": asdict(spec)}, sort_keys=True)


def read_spec(path: str, metadata: Mapping[str, str], inputs: Collection[str]) -> Spec:
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
        return Spec(**known)
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, FozoError):
            raise
        raise FozoError(f"{path} holds damaged metadata ({type(error).__name__}); export the model again") from error
