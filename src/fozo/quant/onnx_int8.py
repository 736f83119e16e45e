"""INT8 versions of an exported model, by ONNX Runtime's own quantizer.

Quantized are the linear layers of the blocks, where the work is. Everything else stays in float32: the embedding and
the head, which are small and sensitive, attention's products of activations, the norms, and layers that do not bear it
(:mod:`fozo.quant.fragile`).

Weights are symmetric, one scale for each output, and use 7 of the 8 bits (``reduce_range``): processors without VNNI
add pairs of products in 16 bits, which 8-bit weights overflow, silently and only there. One file serves all.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnxruntime import quantization

from fozo.core.noise import starting_prompts
from fozo.engines.onnx.engine import Float32
from fozo.engines.onnx.export import build_graph, write_model
from fozo.engines.onnx.schema import IMAGES, MOVES, PROMPTS
from fozo.engines.torch_engine import TorchEngine
from fozo.io import temporary_folder
from fozo.quant.fragile import fragile_layers
from fozo.types import Floats, Spec


def write_int8(engine: TorchEngine, spec: Spec, target: Path, calibration: Iterable[Floats] | None) -> Spec:
    """Write a torch model in INT8: dynamic, or static with activation ranges of normalised ``calibration`` batches.

    An INT8 model is a model of its own with its own fingerprint; that of a static one depends on its calibration.
    """
    fragile = fragile_layers(engine.vit, spec)
    # The quantizer reads and writes files; they live beside the target, where there is room for it.
    with temporary_folder(target) as folder:
        plain = folder / "float32.onnx"
        # The graph is written as the quantizer likes it; saying so spares its advice to preprocess it.
        write_model(build_graph(engine), spec, plain, {"onnx.quant.pre_process": "onnxruntime.quant"})
        model = quantised(plain, calibration, spec, fragile)
    ranges = hashlib.sha256()
    for tensor in sorted(model.graph.initializer, key=lambda tensor: tensor.name):
        if tensor.name.endswith(("_scale", "_zero_point")):
            ranges.update(tensor.name.encode() + onnx.numpy_helper.to_array(tensor).tobytes())
    kind = "int8d" if calibration is None else f"int8s-{ranges.hexdigest()[:8]}"
    spec = replace(spec, fingerprint=f"{spec.fingerprint}-{kind}")
    write_model(model, spec, target)
    return spec


def linear_layers(model: onnx.ModelProto, fragile: Sequence[str] = ()) -> list[str]:
    """Names of the products with a weight, ``fragile`` layers left out."""
    left_out = tuple(f"{layer}.weight" for layer in fragile)  # the last block has its weights in parts, as .weight.0
    weights = {tensor.name for tensor in model.graph.initializer if not tensor.name.startswith(left_out)}
    return [node.name for node in model.graph.node if node.op_type == "MatMul" and node.input[1] in weights]


def quantised(path: Path, calibration: Iterable[Floats] | None, spec: Spec, fragile: Sequence[str]) -> onnx.ModelProto:
    """INT8 weights; the range of activations is measured once, here, on clean images, or without them in every call."""
    out = path.with_name("int8.onnx")
    options = {
        "op_types_to_quantize": ["MatMul"],
        "nodes_to_quantize": linear_layers(onnx.load(path, load_external_data=False), fragile),
        "per_channel": True,
        "reduce_range": True,
        "weight_type": quantization.QuantType.QInt8,
    }
    if calibration is None:
        quantization.quantize_dynamic(path, out, **options)
    else:
        # A product's result goes on to a residual stream in float32; quantizing it as well would only lose digits.
        options["extra_options"] = {"OpTypesToExcludeOutputQuantization": ["MatMul"]}
        options |= {"quant_format": quantization.QuantFormat.QDQ, "activation_type": quantization.QuantType.QUInt8}
        quantization.quantize_static(path, out, _Calibration(calibration, spec), **options)
    return onnx.load(out)


class _Calibration(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Clean images as the graph's inputs, with prompts as FOZO starts from, so that their range is known too."""

    def __init__(self, batches: Iterable[Floats], spec: Spec) -> None:
        prompts = starting_prompts(0, 3, spec.dim, math.prod(spec.patch_size))[None].astype(np.float32)
        shape = (1, 1, spec.depth, spec.dim)
        moves = {name: np.full(shape, name.endswith("scale"), dtype=np.float32) for name in MOVES}
        self._feeds = ({IMAGES: np.asarray(images), PROMPTS: prompts, **moves} for images in batches)

    def get_next(self) -> dict[str, Float32] | None:
        return next(self._feeds, None)
