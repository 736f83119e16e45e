"""``load_engine``: one door for every kind of model."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fozo.engines.base import Engine
from fozo.errors import FozoError

if TYPE_CHECKING:
    import torch

    from fozo.engines.graph_engine import GraphEngine
    from fozo.engines.torch_engine import TorchEngine


def load_engine(
    model: str | os.PathLike[str] | Engine | torch.nn.Module,
    *,
    architecture: str | None = None,
    heads: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    mean: tuple[float, ...] | float | None = None,
    std: tuple[float, ...] | float | None = None,
    classes: Sequence[int] | None = None,
    device: str | None = None,
    dtype: str | None = None,
    chunk: int | None = None,
    threads: int | None = None,
    runtime: str | None = None,
    scales: str | os.PathLike[str] | None = None,
) -> Engine:
    """Make an engine of a model.

    Args:
        model: an ``.onnx`` file written by ``fozo export`` (runs without PyTorch), a torch ViT (fozo's, timm's or
            transformers'), a file of weights with timm's names (``.safetensors``, or ``.pt``/``.pth``/``.bin`` holding
            tensors only), or an engine, returned as it is.
        architecture: for a file, the timm name with its full tag, such as
            ``vit_tiny_patch16_224.augreg_in21k_ft_in1k``; by default the file's own name. It tells the
            normalisation, which the weights do not.
        heads: number of attention heads where it is not width / 64.
        image_size: to use a model at another size, its position embedding is resampled. For a file whose positions
            form no square it is the model's own size.
        mean: per-channel mean of the training pixels, where the model does not tell.
        std: per-channel standard deviation, likewise.
        classes: keep only these classes of the head (the 200 of ImageNet-R, say); logits have one column each.
        device: ``"cpu"``, ``"cuda"``, ...; by default where the model is.
        dtype: ``"float32"`` or ``"float64"``; by default the model's.
        chunk: how many images go through the blocks together; bounds memory. The default measures well.
        threads: for an ``.onnx`` file, how many processors to work on; by default all that this process may use.
            PyTorch's threads are PyTorch's to set.
        runtime: what runs an ``.onnx`` file: ``"onnxruntime"`` (the default) or ``"openvino"``.
        scales: what ``fozo quantise`` wrote, to run a torch model quantised by PTQ4ViT (in simulation).
    """
    if not isinstance(model, (str, os.PathLike)) and isinstance(model, Engine):
        return model
    if isinstance(model, (str, os.PathLike)) and Path(model).suffix == ".onnx":
        fixed = {"architecture": architecture, "heads": heads, "image_size": image_size, "device": device}
        _refuse(
            {**fixed, "dtype": dtype, "scales": scales},
            f"{os.fspath(model)} is an exported model; choose it when exporting",
        )
        return _load_graph(model, runtime or "onnxruntime", threads, chunk, mean, std, classes)
    _refuse({"threads": threads, "runtime": runtime}, "it is for .onnx files; this model runs in PyTorch")
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise FozoError("this model needs PyTorch; install it with pip install 'fozo[torch]'") from error
    engine = _load_torch(model, architecture, heads, image_size, mean, std, classes, device, dtype, chunk)
    if scales is None:
        return engine
    from fozo.quant import with_scales

    return with_scales(engine, scales)


def _refuse(options: dict[str, object], why: str) -> None:
    """Refuse options that would have no effect."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise FozoError(f"{given[0]}= cannot be given here: {why}")


def _load_graph(
    path: str | os.PathLike[str],
    runtime: str,
    threads: int | None,
    chunk: int | None,
    mean: tuple[float, ...] | float | None,
    std: tuple[float, ...] | float | None,
    classes: Sequence[int] | None,
) -> GraphEngine:
    engine: GraphEngine
    if runtime == "onnxruntime":
        from fozo.engines.onnx_engine import OnnxEngine

        engine = OnnxEngine(path, threads=threads, chunk=chunk)
    elif runtime == "openvino":
        from fozo.engines.openvino_engine import OpenvinoEngine

        engine = OpenvinoEngine(path, threads=threads, chunk=chunk)
    else:
        raise FozoError(f"runtime must be 'onnxruntime' or 'openvino', not {runtime!r}")
    channels = engine.spec.channels
    return engine.adjust(mean=_per_channel(mean, channels), std=_per_channel(std, channels), classes=classes)


def _load_torch(
    model: str | os.PathLike[str] | torch.nn.Module,
    architecture: str | None,
    heads: int | None,
    image_size: int | tuple[int, int] | None,
    mean: tuple[float, ...] | float | None,
    std: tuple[float, ...] | float | None,
    classes: Sequence[int] | None,
    device: str | None,
    dtype: str | None,
    chunk: int | None,
) -> TorchEngine:
    from dataclasses import replace

    import torch

    from fozo.engines import weights
    from fozo.engines.torch_engine import TorchEngine
    from fozo.engines.vit import ViT

    if dtype not in (None, "float32", "float64"):
        raise FozoError(f"dtype must be 'float32' or 'float64', not {dtype!r}")
    if isinstance(model, torch.nn.Module):
        _refuse_quantised(model)
    own_name = Path(model).stem if isinstance(model, (str, os.PathLike)) else "vit"
    hints = weights.hints_from_name(architecture or own_name)
    wanted = (image_size, image_size) if isinstance(image_size, int) else image_size
    hints = replace(hints, heads=heads or hints.heads, resize_to=wanted)
    if isinstance(model, (str, os.PathLike)):
        vit = weights.vit_from_state(weights.state_from_file(Path(model)), hints)
    elif isinstance(model, ViT):
        a = model.architecture
        hints = replace(hints, heads=a.heads, norm_epsilon=a.norm_epsilon, activation=a.activation)
        vit = weights.vit_from_state(model.state_dict(), replace(hints, image_size=a.image_size))
    elif isinstance(model, torch.nn.Module) and weights.looks_like_transformers(model):
        vit, hints = weights.vit_from_transformers(model, hints)
    elif isinstance(model, torch.nn.Module) and weights.looks_like_timm(model):
        vit, hints = weights.vit_from_timm(model, hints)
    else:
        raise FozoError(
            f"cannot make an engine of {type(model).__name__}; "
            f"give a ViT of fozo, timm or transformers, or a weights file"
        )
    channels = vit.architecture.channels
    vit = vit.to(device=device, dtype=getattr(torch, dtype) if dtype else None)
    return TorchEngine(
        vit,
        name=hints.name,
        mean=_per_channel(mean, channels) or hints.mean,
        std=_per_channel(std, channels) or hints.std,
        classes=classes,
        chunk=chunk,
    )


def _refuse_quantised(model: torch.nn.Module) -> None:
    """Refuse modules of torch.ao and torchao: their weights are packed away, where no conversion can read them."""
    import torch

    for name, value in model.state_dict().items():
        plain = isinstance(value, torch.Tensor) and not value.is_quantized
        if not plain or type(value).__module__.startswith("torchao"):
            raise FozoError(
                f"{type(model).__name__} was quantised in PyTorch ({name} is packed), which fozo cannot adapt; give "
                f"its original weights, and quantise what fozo export writes (docs/quantised.md)"
            )


def _per_channel(value: tuple[float, ...] | float | None, channels: int) -> tuple[float, ...] | None:
    if value is None:
        return None
    values = (float(value),) * channels if isinstance(value, (int, float)) else tuple(map(float, value))
    if len(values) != channels:
        raise FozoError(f"{len(values)} values of mean or std were given for {channels} channels")
    return values
