"""``load_engine``: one door for every kind of model."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fozo.errors import FozoError
from fozo.types import Engine

if TYPE_CHECKING:
    import torch

    from fozo.engines.onnx.engine import GraphEngine
    from fozo.engines.torch_engine import TorchEngine

TIMM = "timm:"


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model: the keywords of :func:`load_engine`, and the options of every command that takes a model."""

    architecture: str | None = None
    """For a file, the timm name with its full tag, such as ``vit_tiny_patch16_224.augreg_in21k_ft_in1k``; by default
    the file's own name. It tells the normalisation, which the weights do not."""
    heads: int | None = None
    """Number of attention heads where it is not width / 64."""
    image_size: int | tuple[int, int] | None = None
    """To use a model at another size, its position embedding is resampled. For a file whose positions form no square
    it is the model's own size."""
    mean: tuple[float, ...] | float | None = None
    """Per-channel mean of the training pixels, where the model does not tell."""
    std: tuple[float, ...] | float | None = None
    """Per-channel standard deviation, likewise."""
    labels: Sequence[str] | None = None
    """Names of the classes in the order of the outputs, where the model does not tell, or tells others."""
    classes: Sequence[int] | None = None
    """Keep only these classes of the head (the 200 of ImageNet-R, say); logits have one column each."""
    device: str | None = None
    """``"cpu"``, ``"cuda"``, ...; by default where the model is."""
    dtype: str | None = None
    """``"float32"`` or ``"float64"``; by default the model's."""
    chunk: int | None = None
    """How many images go through the blocks together; bounds memory. The default measures well."""
    threads: int | None = None
    """For an ``.onnx`` file, how many processors to work on; by default all that this process may use. PyTorch's
    threads are PyTorch's to set."""
    runtime: str | None = None
    """What runs an ``.onnx`` file: ``"onnxruntime"`` (the default) or ``"openvino"``."""
    scales: str | os.PathLike[str] | None = None
    """What ``fozo quantise`` wrote, to run a torch model quantised by PTQ4ViT (in simulation)."""

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Refuse options that would have no effect."""
        for name in names:
            if getattr(self, name) is not None:
                raise FozoError(f"{name}= cannot be given here: {why}")


def load_engine(
    model: str | os.PathLike[str] | Engine | torch.nn.Module, options: LoadOptions | None = None, **changes: object
) -> Engine:
    """Make an engine of a model.

    Args:
        model: an ``.onnx`` file written by ``fozo export`` (runs without PyTorch), a torch ViT (fozo's, timm's or
            transformers'), a file of weights with timm's names (``.safetensors``, or ``.pt``/``.pth``/``.bin`` holding
            tensors only), ``timm:NAME`` with its full tag (fetched by timm), or an engine, returned as it is.
        options: how to load it.
        changes: fields of :class:`LoadOptions` by name, ``mean=0.5`` say.
    """
    known = [field.name for field in fields(LoadOptions)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise FozoError(f"load_engine has no option {unknown[0]!r}; its options are {', '.join(known)}")
    options = replace(options or LoadOptions(), **changes)  # type: ignore[arg-type]
    if isinstance(model, (str, os.PathLike)):
        if Path(model).suffix == ".onnx":
            return _load_graph(model, options)
    elif isinstance(model, Engine):
        options.refuse(known, "this is an engine already; give it when the engine is made")
        return model
    options.refuse(("threads", "runtime"), "it is for .onnx files; this model runs in PyTorch")
    try:
        importlib.import_module("torch")
    except ImportError as error:
        raise FozoError("this model needs PyTorch; install it with pip install 'fozo[torch]'") from error
    if isinstance(model, str) and model.startswith(TIMM):
        name = model.removeprefix(TIMM)
        model, options = _from_timm(name), replace(options, architecture=options.architecture or name)
    engine = _load_torch(model, options)
    if options.scales is None:
        return engine
    from fozo.quant import with_scales

    return with_scales(engine, options.scales)


def _load_graph(path: str | os.PathLike[str], options: LoadOptions) -> GraphEngine:
    fixed = ("architecture", "heads", "image_size", "device", "dtype", "scales")
    options.refuse(fixed, f"{os.fspath(path)} is an exported model; choose it when exporting")
    runtime = options.runtime or "onnxruntime"
    engine: GraphEngine
    if runtime == "onnxruntime":
        from fozo.engines.onnx.ort import OnnxEngine

        engine = OnnxEngine(path, threads=options.threads, chunk=options.chunk)
    elif runtime == "openvino":
        from fozo.engines.onnx.openvino import OpenvinoEngine

        engine = OpenvinoEngine(path, threads=options.threads, chunk=options.chunk)
    else:
        raise FozoError(f"runtime must be 'onnxruntime' or 'openvino', not {runtime!r}")
    mean, std = (_per_channel(value, engine.spec.channels) for value in (options.mean, options.std))
    return engine.adjust(mean, std, options.labels, options.classes)


def _from_timm(name: str) -> torch.nn.Module:
    """Let timm make a model, and fetch its weights: the one place where fozo goes to the network, because asked to."""
    if "." not in name:
        raise FozoError(
            f"timm's {name!r} has meant different weights over time; name the full tag, such as "
            f"timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
        )
    try:
        timm = importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:
        raise FozoError(f"cannot import timm ({error}); install it with pip install 'fozo[timm]'") from error
    try:
        module: torch.nn.Module = timm.create_model(name, pretrained=True).eval()
    except (RuntimeError, OSError) as error:
        raise FozoError(f"timm cannot give {name} ({error}); check the name and the connection") from error
    return module


def _load_torch(model: str | os.PathLike[str] | torch.nn.Module, options: LoadOptions) -> TorchEngine:
    import torch

    from fozo.engines.torch_engine import TorchEngine
    from fozo.models import convert
    from fozo.models.names import hints_from_name, widths_from_name
    from fozo.models.vit import ViT

    if options.dtype not in (None, "float32", "float64"):
        raise FozoError(f"dtype must be 'float32' or 'float64', not {options.dtype!r}")
    if isinstance(model, torch.nn.Module):
        _refuse_quantised(model)
    own_name = Path(model).stem if isinstance(model, (str, os.PathLike)) else "vit"
    hints = hints_from_name(options.architecture or own_name)
    size = options.image_size
    wanted = (size, size) if isinstance(size, int) else size
    hints = replace(hints, heads=options.heads or hints.heads, resize_to=wanted)
    if isinstance(model, (str, os.PathLike)):
        vit = convert.vit_from_state(convert.state_from_file(Path(model)), hints)
    elif isinstance(model, ViT):
        a = model.architecture
        hints = replace(hints, heads=a.heads, norm_epsilon=a.norm_epsilon, activation=a.activation)
        vit = convert.vit_from_state(model.state_dict(), replace(hints, image_size=a.image_size))
    elif isinstance(model, torch.nn.Module) and convert.looks_like_transformers(model):
        vit, hints = convert.vit_from_transformers(model, hints)
    elif isinstance(model, torch.nn.Module) and convert.looks_like_timm(model):
        vit, hints = convert.vit_from_timm(model, hints)
    else:
        raise FozoError(
            f"cannot make an engine of {type(model).__name__}; "
            f"give a ViT of fozo, timm or transformers, or a weights file"
        )
    widths = widths_from_name(options.architecture or "")
    if widths and vit.architecture.dim not in widths:
        raise FozoError(
            f"{options.architecture} has tokens of width {' or '.join(map(str, widths))}, but these weights are "
            f"{vit.architecture.dim} wide, so its normalisation need not be theirs; give their own architecture, or "
            f"mean and std"
        )
    channels = vit.architecture.channels
    vit = vit.to(device=options.device, dtype=getattr(torch, options.dtype) if options.dtype else None)
    return TorchEngine(
        vit,
        name=hints.name,
        mean=_per_channel(options.mean, channels) or hints.mean,
        std=_per_channel(options.std, channels) or hints.std,
        labels=options.labels or hints.labels,
        classes=options.classes,
        chunk=options.chunk,
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
