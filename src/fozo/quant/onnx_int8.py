"""INT8 versions of an exported model, by ONNX Runtime's own quantizer.

Quantized are the linear layers of the blocks, where the work is. Everything else stays in float32: the embedding and
the head, which are small and sensitive, attention's products of activations, the norms, and layers that do not bear it
(:mod:`fozo.quant.fragile`).

Weights are symmetric, one scale for each output, and use 7 of the 8 bits (``reduce_range``): processors without VNNI
add pairs of products in 16 bits, which 8-bit weights overflow, silently and only there. One file serves all.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnxruntime import quantization

from fozo.core.noise import uniform_prompts
from fozo.data.sets import CLEAN, open_images
from fozo.data.sources import Stored
from fozo.engines.base import Spec
from fozo.engines.graph_engine import Float32
from fozo.engines.graph_file import IMAGES, MOVES, PROMPTS
from fozo.engines.onnx_engine import OnnxEngine
from fozo.errors import FozoError

IMAGES_SEEN = 128
BATCH = 8


def linear_layers(model: onnx.ModelProto, fragile: Sequence[str] = ()) -> list[str]:
    """Names of the products with a weight, ``fragile`` layers left out."""
    left_out = tuple(f"{layer}.weight" for layer in fragile)  # the last block has its weights in parts, as .weight.0
    weights = {tensor.name for tensor in model.graph.initializer if not tensor.name.startswith(left_out)}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]


def dynamic(path: Path, fragile: Sequence[str]) -> onnx.ModelProto:
    """INT8 weights; the range of activations is measured in every call."""
    out = path.with_name("int8.onnx")
    quantization.quantize_dynamic(
        path,
        out,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=linear_layers(onnx.load(path, load_external_data=False), fragile),
        per_channel=True,
        reduce_range=True,
        weight_type=quantization.QuantType.QInt8,
    )
    return onnx.load(out)


def static(path: Path, calibration: str | os.PathLike[str], fragile: Sequence[str]) -> onnx.ModelProto:
    """INT8 weights and activations, whose ranges are measured once, here, on clean images."""
    out = path.with_name("int8.onnx")
    quantization.quantize_static(
        path,
        out,
        _Calibration(path, calibration),
        quant_format=quantization.QuantFormat.QDQ,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=linear_layers(onnx.load(path, load_external_data=False), fragile),
        per_channel=True,
        reduce_range=True,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        # A product's result goes on to a residual stream in float32; quantizing it as well would only lose digits.
        extra_options={"OpTypesToExcludeOutputQuantization": ["MatMul"]},
    )
    return onnx.load(out)


class _Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Clean images as the graph's inputs, with prompts as FOZO starts from, so that their range is known too."""

    def __init__(self, path: Path, folder: str | os.PathLike[str]) -> None:
        spec = OnnxEngine(path, threads=1).spec
        images = open_images(Path(folder))
        source = Stored(images.take(min(len(images), IMAGES_SEEN)), spec.image_size, spec.channels)
        # Labels play no part, so sets with other classes than the model's will do; corruptions will not.
        if source.images.corrupted:
            raise FozoError(f"{os.fspath(folder)} holds corrupted images; calibrate on clean ones")
        self._feeds = self._batches(source, spec)

    @staticmethod
    def _batches(source: Stored, spec: Spec) -> Iterator[dict[str, Float32]]:
        bound = math.sqrt(6 / (3 * math.prod(spec.patch_size) + spec.dim))
        prompts = uniform_prompts(0, 3, spec.dim, bound)[None].astype(np.float32)
        shape = (1, 1, spec.depth, spec.dim)
        knobs = {PROMPTS: prompts}
        knobs |= {name: np.full(shape, name.endswith("scale"), dtype=np.float32) for name in MOVES}
        for start in range(0, len(source.images), BATCH):
            indices = range(start, min(start + BATCH, len(source.images)))
            yield {IMAGES: spec.normalise(np.stack([source.load(CLEAN, i) for i in indices])), **knobs}

    def get_next(self) -> dict[str, Float32] | None:
        """Give the next batch, or ``None`` after the last."""
        return next(self._feeds, None)
