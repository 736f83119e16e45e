"""``load_engine``: the entry point for every kind of model."""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from fozo.engines.base import HeadEngine
from fozo.engines.blackbox import BlackBoxEngine, CallableModel, black_box, both_sides, per_channel
from fozo.engines.onnx.schema import ForeignModelError
from fozo.engines.tokens import NoTokensError, NotRunError
from fozo.errors import FozoError
from fozo.io import read_json
from fozo.types import Engine

if TYPE_CHECKING:
    import torch

    from fozo.engines.hooked import HookedEngine
    from fozo.engines.onnx.adopt import Adopted
    from fozo.engines.onnx.runtimes import GraphEngine

TIMM = "timm:"
DTYPES = ("auto", "bfloat16", "float16", "float32", "float64")
NO_ONNX = "the onnx package, which finds the tokens in it, is not installed: pip install 'fozo[export]'"
OTHER_KINDS = ("use it as a black box", "use timm's names")  # what refusals of modules that are no plain ViT advise
H = TypeVar("H", bound=HeadEngine)
Model: TypeAlias = "Engine | torch.nn.Module | CallableModel | str | os.PathLike[str]"  # What :func:`load_engine` takes


@dataclass(frozen=True)
class LoadOptions:
    """How to load a model: the keywords of :func:`load_engine`, and the options of every command that takes a model.

    Examples:
        >>> fozo.load_engine(model, fozo.LoadOptions(classes=[0, 9], threads=1))
        <OnnxEngine vit-fashion: 1x28x28 to 2 classes, cpu>
    """

    architecture: str | None = None
    """For a file, the timm name with its full tag, such as ``vit_tiny_patch16_224.augreg_in21k_ft_in1k``; by default
    the file's own name. The name determines the normalisation."""
    heads: int | None = None
    """Number of attention heads where it is not width / 64."""
    image_size: int | tuple[int, int] | None = None
    """To use a model at another size, its position embedding is resampled. For a file whose positions do not form a
    square it is the model's own size."""
    mean: tuple[float, ...] | float | None = None
    """Per-channel mean of the training pixels, where the model does not state it."""
    std: tuple[float, ...] | float | None = None
    """Per-channel standard deviation, likewise."""
    channels: str | None = None
    """``"bgr"`` for a black box that reads blue first, as many detectors do; ``"rgb"`` by default."""
    labels: Sequence[str] | None = None
    """Names of the classes in the order of the outputs, where the model has none, or others."""
    classes: Sequence[int] | None = None
    """Keep only these classes of the head (the 200 of ImageNet-R, say); logits have one column each."""
    device: str | None = None
    """``"cpu"``, ``"cuda"``, ...; by default where the model is."""
    dtype: str | None = None
    """Precision of a torch model: ``"bfloat16"``, ``"float16"``, ``"float32"`` or ``"float64"``; by default its own.
    OpenVINO takes all but the last, and float32 by default. ``"auto"`` measures once for each machine and model whether
    bfloat16 or float32 is faster. What is learnt and measured keeps full precision."""
    chunk: int | None = None
    """How many images go through the blocks together; bounds memory. The default measures well."""
    threads: int | None = None
    """For an ``.onnx`` file, how many processors to work on; by default all that this process may use. For
    PyTorch call ``torch.set_num_threads``."""
    runtime: str | None = None
    """What runs an ``.onnx`` file: ``"onnxruntime"`` (the default) or ``"openvino"``."""
    scales: str | os.PathLike[str] | None = None
    """What ``fozo quantise`` wrote, to run a torch model quantised by PTQ4ViT (in simulation)."""

    def refuse(self, names: Sequence[str], why: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise FozoError(f"{name}= cannot be given here: {why}")


def load_engine(model: Model, options: LoadOptions | None = None, **changes: object) -> Engine:
    """Make an engine of a model.

    Examples:
        >>> fozo.load_engine(model, threads=1)
        <OnnxEngine vit-fashion: 1x28x28 to 10 classes, cpu>

    Args:
        model: an ``.onnx`` file written by ``fozo export`` (runs without PyTorch), a torch ViT (fozo's, timm's,
            transformers' or torchvision's, also inside ``torch.compile``, ``DataParallel`` and its like), a file of
            weights with timm's names (``.safetensors``, or ``.pt``/``.pth``/``.bin`` holding tensors only), a folder
            that transformers saved a model to, ``timm:NAME`` with its full tag (fetched by timm), or an engine,
            returned as it is. In an ``.onnx`` file of another program the tokens of a transformer are found
            (:mod:`fozo.engines.onnx.adopt`). Any other module, ``.onnx`` file or function of images is run as a black
            box (:mod:`fozo.engines.blackbox`).
        options: how to load it.
        changes: fields of :class:`LoadOptions` by name, ``mean=0.5`` say.
    """
    known = [field.name for field in fields(LoadOptions)]
    unknown = [name for name in changes if name not in known]
    if unknown:
        raise FozoError(f"load_engine has no option {unknown[0]!r}; its options are {', '.join(known)}")
    options = replace(options or LoadOptions(), **changes)  # type: ignore[arg-type]
    if options.dtype not in (None, *DTYPES):
        raise FozoError(f"dtype must be one of {', '.join(DTYPES)}, not {options.dtype!r}")
    if isinstance(model, Engine):
        options.refuse(known, "this is an engine already; give it when the engine is made")
        return model
    torch = sys.modules.get("torch")  # where it was never imported, nothing is a torch module
    if isinstance(model, (str, os.PathLike)):
        if Path(model).suffix == ".onnx":
            try:
                return _load_graph(model, options)
            except ForeignModelError:
                return _load_foreign(Path(model), options)
    elif torch is None or not isinstance(model, torch.nn.Module):
        return _load_black_box(model, options)
    options.refuse(("threads", "runtime"), "it is for .onnx files; this model runs in PyTorch")
    _import("torch")
    if isinstance(model, str) and model.startswith(TIMM):
        name = model.removeprefix(TIMM)
        model = _from_timm(name)
        options = replace(options, architecture=options.architecture or name)
    elif isinstance(model, (str, os.PathLike)) and Path(model).is_dir():
        model, options = _from_transformers(Path(model), options)
    engine = _load_torch(model, options)
    if options.scales is None or isinstance(engine, BlackBoxEngine):
        return engine
    from fozo.engines.ptq4vit import with_scales

    return with_scales(engine, options.scales)


def _import(library: str) -> Any:  # noqa: ANN401 - a module
    try:
        return importlib.import_module(library)
    except (ImportError, RuntimeError) as error:
        remedy = f"install it with pip install 'fozo[{library}]'"
        if "torchvision" in str(error):  # which timm imports: a CPU build of torch cannot load a CUDA build of it
            remedy = "torchvision is of another build than torch; install both from one index, pytorch.org's say"
        raise FozoError(f"cannot import {library} ({error}); {remedy}") from error


def _load_black_box(model: CallableModel | str | os.PathLike[str], options: LoadOptions) -> BlackBoxEngine:
    fixed = ("heads", "classes", "device", "dtype", "chunk", "scales")
    options.refuse(fixed, "this model is run as a black box, which is used as it is")
    if options.runtime not in (None, "onnxruntime") or (options.runtime and not isinstance(model, (str, os.PathLike))):
        raise FozoError(
            f"runtime={options.runtime!r} cannot run a black box; ONNX files of other programs run on onnxruntime"
        )
    same = ("image_size", "mean", "std", "labels", "threads")
    kwargs = {name: getattr(options, name) for name in same}
    return black_box(model, name=options.architecture, channels=options.channels or 3, **kwargs)


def adopted(path: Path, options: LoadOptions) -> Adopted:
    """Find the tokens in a graph that another program wrote; raise :class:`NoTokensError` where there are none."""
    try:
        from fozo.engines.onnx.adopt import adopt
    except ImportError as error:
        raise NoTokensError(f"{NO_ONNX}; or adopt it elsewhere: fozo adopt {path.name} -o OUT.onnx") from error
    from fozo.engines.onnx.runtimes import model_path

    wanted = both_sides(options.image_size)
    graph = adopt(model_path(path), wanted, reverse=options.channels == "bgr")
    size = graph.spec.image_size
    if wanted not in (None, size):
        raise FozoError(f"{path} takes images of {size}, not of {wanted}; leave image_size= out")
    return graph if options.architecture is None else graph.named(options.architecture)


def _load_foreign(path: Path, options: LoadOptions) -> Engine:
    """Adopt the tokens of a graph that another program wrote, or run it as a black box that can say why not."""
    try:
        graph = adopted(path, options)
    except NoTokensError as error:
        black = _load_black_box(path, options)
        black.reason = str(error)
        return black
    with graph.file() as file:
        engine = _load_graph(file, replace(options, architecture=None, image_size=None, channels=None))
    engine.reopen = partial(_load_foreign, path.resolve(), options)
    return engine


def _from_timm(name: str) -> torch.nn.Module:
    """Let timm make a model, and fetch its weights: only here does fozo use the network."""
    if "." not in name:
        raise FozoError(
            f"timm's {name!r} has meant different weights over time; name the full tag, such as "
            f"timm:vit_base_patch16_224.augreg2_in21k_ft_in1k"
        )
    timm = _import("timm")
    try:
        module: torch.nn.Module = timm.create_model(name, pretrained=True).eval()
    except (RuntimeError, OSError) as error:
        raise FozoError(f"timm cannot give {name} ({error}); check the name and the connection") from error
    return module


def _from_transformers(folder: Path, options: LoadOptions) -> tuple[torch.nn.Module, LoadOptions]:
    """Load what ``save_pretrained`` wrote to a folder; nothing is fetched and no code of the folder is run."""
    if not (folder / "config.json").is_file():
        raise FozoError(
            f"{folder} has no config.json, so it is not a transformers model; give a file of weights, or .onnx"
        )
    transformers = _import("transformers")
    read_json(folder / "config.json")  # refuses special and very long files
    try:
        model, info = transformers.AutoModelForImageClassification.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # transformers raises nearly anything on a folder that it did not write
        reason = str(error).partition("\n")[0]
        raise FozoError(
            f"{folder} cannot be loaded by transformers ({type(error).__name__}: {reason}); save the model there with "
            f"save_pretrained"
        ) from error
    missing = sorted(info["missing_keys"])
    if missing:  # which transformers would have drawn at random
        raise FozoError(f"{folder} holds no weights for {missing[0]!r}; give a model that was trained to classify")
    return model.eval(), replace(options, architecture=options.architecture or folder.resolve().name)


def _load_graph(path: str | os.PathLike[str], options: LoadOptions) -> GraphEngine:
    from fozo.engines.onnx.runtimes import OnnxEngine, OpenvinoEngine

    known = {None: OnnxEngine, "onnxruntime": OnnxEngine, "openvino": OpenvinoEngine}
    if options.runtime not in known:
        raise FozoError(f"runtime must be 'onnxruntime' or 'openvino', not {options.runtime!r}")
    size = {"threads": options.threads, "chunk": options.chunk}
    if options.dtype is not None and options.runtime == "openvino":
        engine: GraphEngine = OpenvinoEngine(path, dtype=options.dtype, **size)
        options = replace(options, dtype=None)
    else:
        engine = known[options.runtime](path, **size)
    # After opening: a file of another program has been refused above, and takes image_size.
    fixed = ("architecture", "heads", "image_size", "channels", "device", "dtype", "scales")
    options.refuse(fixed, f"{os.fspath(path)} is an exported model; choose it when exporting")
    return _adjusted(engine, options)


def _adjusted(engine: H, options: LoadOptions) -> H:
    """Give an engine what the user says of its model."""
    mean, std = (per_channel(value, engine.spec.channels) for value in (options.mean, options.std))
    labels = None if options.labels is None else tuple(options.labels)
    return engine.adjust(options.classes, name=options.architecture, mean=mean, std=std, labels=labels)


def _load_torch(model: str | os.PathLike[str] | torch.nn.Module, options: LoadOptions) -> Engine:
    import torch

    from fozo.engines.torch_engine import TorchEngine, measured_dtype
    from fozo.models.convert import (
        hints_from_name,
        names_by_tag,
        state_from_file,
        vit_from_state,
        widths_from_name,
    )
    from fozo.models.libraries import converter

    own_name = Path(model).stem if isinstance(model, (str, os.PathLike)) else "vit"
    hints = hints_from_name(options.architecture or own_name)
    hints = replace(hints, heads=options.heads or hints.heads, resize_to=both_sides(options.image_size))
    if isinstance(model, (str, os.PathLike)):
        vit = vit_from_state(state_from_file(Path(model)), hints)
    else:
        model = _unwrapped(model)
        convert = None if isinstance(model, torch.jit.ScriptModule) else converter(model)
        if convert is None:
            return _load_hooked(model, options)
        options.refuse(("channels",), "a ViT reads RGB")
        _refuse_quantised(model)
        try:
            vit, hints = convert(model, hints)
        except FozoError as refusal:
            if not any(remedy in str(refusal) for remedy in OTHER_KINDS):  # its files are wrong, say
                raise
            return _load_hooked(model, options, refusal)
    widths = widths_from_name(options.architecture or "")
    if widths and vit.architecture.dim not in widths:
        raise FozoError(
            f"{options.architecture} has tokens of width {' or '.join(map(str, widths))}, but these weights are "
            f"{vit.architecture.dim} wide, so its normalisation need not be theirs; give their own architecture, or "
            f"mean and std"
        )
    channels = vit.architecture.channels
    try:
        vit = vit.to(device=options.device)
        if options.dtype is not None:
            vit = vit.to(measured_dtype(vit) if options.dtype == "auto" else getattr(torch, options.dtype))
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise FozoError(
            f"device={options.device!r} cannot be used here ({reason}); leave it out, or give 'cpu'"
        ) from error
    return TorchEngine(
        vit,
        name=hints.name,
        mean=per_channel(options.mean, channels) or hints.mean,
        std=per_channel(options.std, channels) or hints.std,
        labels=options.labels or hints.labels or names_by_tag(hints.name, vit.architecture.classes),
        classes=options.classes,
        chunk=options.chunk,
    )


def _load_hooked(
    model: torch.nn.Module, options: LoadOptions, refusal: FozoError | None = None
) -> HookedEngine | BlackBoxEngine:
    """Move the tokens of a module by hooks, or run it as a black box that can say why not.

    ``refusal`` is why it cannot be converted; it is raised where the module cannot even be run.
    """
    import torch

    from fozo.engines.hooked import hooked

    try:
        if model.training or isinstance(model, torch.jit.ScriptModule) or options.channels == "bgr":
            raise NoTokensError("hooks need a plain module in evaluation mode that reads RGB")
        engine = hooked(model, both_sides(options.image_size), options.chunk)
    except NoTokensError as error:
        if refusal is not None and isinstance(error, NotRunError):
            raise FozoError(f"{refusal}; nor by hooks, because {error}") from error
        black = _load_black_box(model, options)
        black.reason = str(error)
        return black
    options.refuse(("heads", "device", "dtype", "scales"), "this module runs as it is, with hooks on its blocks")
    return _adjusted(engine, options)


def _unwrapped(model: Any) -> torch.nn.Module:  # noqa: ANN401 - of any of torch's wrappers
    """Take a module out of torch.compile, DataParallel and DistributedDataParallel, which share its weights."""
    import torch

    parallel = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    while isinstance(model, parallel) or hasattr(model, "_orig_mod"):  # what torch.compile wraps
        if isinstance(model, parallel):
            lost = f"{type(model).__name__} is not used, and the model runs on one device; load one engine a device"
            model = model.module
        else:
            lost = "what torch.compile made is not used because fozo runs the blocks itself; the results are the same"
            model = model._orig_mod
        warnings.warn(f"{lost}; give the module inside to hear no more of it", UserWarning, stacklevel=4)
    module: torch.nn.Module = model
    return module


def _refuse_quantised(model: torch.nn.Module) -> None:
    """Refuse modules of torch.ao and torchao: their weights are packed away, where no conversion can read them."""
    import torch

    for name, value in model.state_dict().items():
        plain = isinstance(value, torch.Tensor) and not value.is_quantized
        if not plain or type(value).__module__.startswith("torchao"):
            raise FozoError(
                f"{type(model).__name__} was quantised in PyTorch ({name} is packed), which fozo cannot adapt; give "
                f"its original weights, and quantise what fozo export writes (docs/edge.md)"
            )
