"""INT8 versions of an exported model, by ONNX Runtime's own quantizer.

Quantized are the linear layers of the blocks, where the work is. Everything else stays in float32: the embedding and
the head, which are small and sensitive, attention's products of activations, the norms, and layers that do not bear it
(:func:`fragile_layers`).

Weights are symmetric, one scale for each output, and use 7 of the 8 bits (``reduce_range``): processors without VNNI
add pairs of products in 16 bits, which 8-bit weights overflow, silently and only there. One file serves all.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import torch
from onnxruntime import quantization
from torch import Tensor, nn

from fozo.core.noise import starting_prompts
from fozo.engines.onnx.export import build_graph, write_model
from fozo.engines.onnx.rows import Float32
from fozo.engines.onnx.schema import IMAGES, MATRICES, MOVES, PROMPTS
from fozo.engines.torch_engine import TorchEngine
from fozo.io import temporary_folder
from fozo.models.vit import ViT
from fozo.types import Floats, Spec

# Error of the median token's output, as a part of that output, that a layer may have in 8 bits. ViT-Tiny's one fragile
# layer is at 0.49, its next one at 0.055, DeiT-Tiny's worst at 0.031 (results/settled.md).
MAX_ERROR = 0.1


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
        if spec.aligned:
            moves[MATRICES] = np.zeros((1, 1, 0, spec.dim, spec.dim), np.float32)
        self._feeds = ({IMAGES: np.asarray(images), PROMPTS: prompts, **moves} for images in batches)

    def get_next(self) -> dict[str, Float32] | None:
        return next(self._feeds, None)


def fragile_layers(vit: ViT, spec: Spec) -> list[str]:
    """Names of the layers in the blocks whose typical outputs an 8-bit grid for the inputs would spoil.

    Some ViTs grow *massive activations*: in one layer, one feature of a few tokens is a hundred times as large as all
    others (in ViT-Tiny at the second MLP layer of block 7: 199, where the next one is 4.6). One step of an 8-bit grid
    that has room for it is then as large as what an ordinary token carries, and that layer costs more accuracy than all
    others together. Left in float32 it costs next to no speed. No data is needed to find it: massive activations hardly
    depend on the image, and noise with the spectrum of photographs shows them too.
    """
    return [name for name, error in rounding_errors(vit, spec).items() if error > MAX_ERROR]


def rounding_errors(vit: ViT, spec: Spec) -> dict[str, float]:
    """What an 8-bit grid for the inputs does to each linear layer of the blocks, in the order of the pass."""
    errors: dict[str, float] = {}

    def measure(name: str, layer: nn.Module, inputs: tuple[Tensor]) -> None:
        assert isinstance(layer, nn.Linear)
        (x,) = inputs
        step = ((x.max().clamp(min=0) - x.min().clamp(max=0)) / 255).clamp(min=1e-30)
        lost = ((x / step).round() * step - x) @ layer.weight.T
        exact = x @ layer.weight.T
        errors[name] = float((lost.norm(dim=-1) / exact.norm(dim=-1).clamp(min=1e-30)).median())

    layers = {f"blocks.{name}": layer for name, layer in vit.blocks.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [layer.register_forward_pre_hook(partial(measure, name)) for name, layer in layers.items()]
    try:
        with torch.inference_mode():
            vit(torch.from_numpy(photograph_like(spec)).to(vit.pos_embed.device, vit.pos_embed.dtype))
    finally:
        for hook in hooks:
            hook.remove()
    return errors


def photograph_like(spec: Spec) -> Floats:
    """Normalised noise whose amplitude falls as 1 / frequency, as that of photographs does."""
    height, width = spec.image_size
    noise = np.random.default_rng(0).standard_normal((8, spec.channels, height, width))
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None])
    frequency[0, 0] = 1 / max(height, width)
    pink = np.fft.irfft2(np.fft.rfft2(noise) / frequency, s=(height, width))
    pink /= pink.std(axis=(1, 2, 3), keepdims=True)
    return np.asarray(pink, dtype=np.float32)
