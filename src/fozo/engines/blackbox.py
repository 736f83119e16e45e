"""The black-box engine: any model that takes images.

A ResNet, a detector, a segmenter, a cloud service: anything callable. It has neither tokens nor knobs, so it is
adapted at its input (:class:`fozo.methods.equalise.Equalise`). Where the model
returns logits ``[B, classes]`` it is an engine like any other; any other output :meth:`BlackBoxEngine.answer` passes
through unchanged.

What a function does not state is taken from the first batch (the size of the images) and from the first answer (the
number of classes). All images of one engine have one size: drift is detected by the detail at each scale, which can be
compared between images of one size only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from fozo.core.normalisation import check_images
from fozo.engines.base import EngineBase, foreign
from fozo.engines.onnx.schema import graph_hash
from fozo.errors import FozoError
from fozo.types import NO_KNOBS, Affine, Batch, Floats, Images, Knobs, Spec, Tap, Taps, Threads

if TYPE_CHECKING:
    import torch

CallableModel: TypeAlias = Callable[[Any], object]
UNNAMED = "unnamed"  # fingerprint of functions without a name: states of another such function are not refused


class BlackBatch:
    """Checked images as the user gave them, and as NumPy."""

    def __init__(self, given: Images) -> None:
        self.given = given

    def __len__(self) -> int:
        return len(self.given)

    @cached_property
    def images(self) -> Floats:
        return to_numpy(self.given)

    def part(self, images: slice) -> BlackBatch:
        return BlackBatch(self.given[images])

    def with_images(self, images: Floats) -> BlackBatch:
        """Give the same batch with other pixels, of the same type and on the same device."""
        if isinstance(self.given, np.ndarray):
            return BlackBatch(images.astype(self.given.dtype, copy=False))
        return BlackBatch(sys.modules["torch"].as_tensor(np.ascontiguousarray(images)).to(self.given))


def to_numpy(array: Images) -> Floats:
    """Give a tensor or an array as NumPy, in single precision or better: NumPy has no bfloat16."""
    if not isinstance(array, np.ndarray):
        tensor = array.detach()
        array = cast("Floats", (tensor if tensor.dtype.itemsize >= 4 else tensor.float()).cpu().numpy())
    return array if array.dtype.itemsize >= 4 else array.astype(np.float32)


class BlackBoxEngine(EngineBase):
    """Runs a model by calling it, images in and anything out. :func:`black_box` makes one."""

    abilities: frozenset[str] = frozenset()
    threads = Threads(1)
    reason = ""
    """Why its tokens cannot be used, where somebody looked for them."""
    outputs: Mapping[str, Sequence[int]] = {}  # shapes of a file's outputs by their names; -1 is for a side that varies

    def __init__(self, model: CallableModel, spec: Spec, *, takes: str | None = None, device: str = "cpu") -> None:
        self.model = model
        self.spec = spec
        self.takes = takes
        self.device = device
        self._warned: set[str] = set()

    def check(self, images: Images) -> BlackBatch:
        """Refuse what is not an image; an unknown size is that of the first batch."""
        spec = self.spec
        shape = tuple(images.shape)
        if 0 in spec.image_size and len(shape) == 4 and min(shape[2:]) > 0:
            size = (int(shape[2]), int(shape[3]))
            spec = replace(spec, image_size=size, patch_size=size)
        check_images(images, spec, self._warned)
        self.spec = spec  # now that these are images
        return BlackBatch(images)

    def answer(self, batch: Batch) -> object:
        """Call the model on images and give back what it returned."""
        if not isinstance(batch, BlackBatch) or tuple(batch.given.shape[1:]) != self.spec.image_shape:
            raise foreign(batch)
        given: Any = batch.given
        torch = sys.modules.get("torch")
        if self.takes == "torch" and torch is not None:
            given = torch.as_tensor(given)
        elif self.takes == "numpy":
            given = batch.images
        with nullcontext() if torch is None else torch.no_grad():
            return self.model(given)

    def logits(self, answer: object, images: int) -> Floats | None:
        """Read an answer as logits ``[images, classes]``; ``None`` if it is something else."""
        answer = getattr(answer, "logits", answer)  # what models of transformers call it
        torch = sys.modules.get("torch")
        if not isinstance(answer, np.ndarray) and (torch is None or not isinstance(answer, torch.Tensor)):
            return None
        array: Any = answer
        if array.ndim != 2 or len(array) != images or "float" not in str(array.dtype):
            return None
        classes = int(array.shape[1])
        if self.spec.classes not in (0, classes):
            raise FozoError(
                f"{self.spec.name} returned {classes} logits for each image, where it has {self.spec.classes} classes"
            )
        self.spec = replace(self.spec, classes=classes)
        return to_numpy(array)

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        """Run the model, which has logits and nothing else to report."""
        other = [tap.value for tap in taps if tap is not Tap.LOGITS]
        has_knobs = any(knob is not None for knob in vars(knobs).values())
        if other or has_knobs:
            what = f"{other[0]!r} cannot be read" if other else "its tokens cannot be moved"
            raise FozoError(
                f"{self.spec.name} is a black box, so {what}; use a method that needs only images or logits"
            )
        if not taps:
            return {}
        answer = self.answer(batch)
        logits = self.logits(answer, len(batch))
        if logits is None:
            shape = f" of shape {list(answer.shape)}" if hasattr(answer, "shape") else ""
            raise FozoError(
                f"{self.spec.name} returned {type(answer).__name__}{shape} and no logits [{len(batch)}, classes]; what "
                f"needs no logits is the method 'equalise', which fozo.adapter makes for it"
            )
        return {Tap.LOGITS: logits[None]}

    def head(self) -> Affine:
        raise FozoError(f"{self.spec.name} is a black box, whose head cannot be read; use a method that needs none")


def black_box(
    model: CallableModel | str | os.PathLike[str],
    *,
    name: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | str = 3,
    mean: tuple[float, ...] | float | None = None,
    std: tuple[float, ...] | float | None = None,
    labels: Sequence[str] | None = None,
    takes: str | None = None,
    threads: int | None = None,
) -> BlackBoxEngine:
    """Make an engine of any model.

    Examples:
        >>> black_box(lambda images: images.mean(axis=(2, 3)), name="colours", image_size=224)
        <BlackBoxEngine colours: 3x224x224 to 0 classes, cpu>

    Args:
        model: a torch module in evaluation mode, an ``.onnx`` file of any program, or a function of a batch of images
            ``[B, channels, height, width]``.
        name: identifies a function's states and statistics: give another one when the model behind it changes. Modules
            and files are identified by their weights.
        image_size: one number or (height, width), where the model has none; by default that of the first batch.
        channels: how many an image has; a file states them itself. ``"bgr"`` is for a model that reads blue first:
            images are RGB in fozo, and are reversed before the model gets them.
        mean: per-channel mean that pixels in [0, 1] are normalised with before they come here; 0 where they are not.
        std: the same; 1 where they are not.
        labels: names of the classes, in the order of the logits.
        takes: ``"torch"`` or ``"numpy"``, where a function can read only one of them; by default it gets what came.
        threads: of an ``.onnx`` file; by default every processor that this process may use.
    """
    if takes not in (None, "torch", "numpy"):
        raise FozoError(f"takes must be 'torch' or 'numpy', not {takes!r}")
    if channels not in (*range(1, 65), "bgr", "rgb"):
        raise FozoError(f"channels is {channels!r}; give a number of them, 'rgb' or 'bgr'")
    reverse = channels == "bgr"
    channels = channels if isinstance(channels, int) else 3
    size = both_sides(image_size)
    if size is not None and (len(size) != 2 or min(size) < 1):
        raise FozoError(f"image_size must be one or two numbers of pixels, not {image_size!r}")
    if threads is not None and not isinstance(model, (str, os.PathLike)):
        raise FozoError("threads= is for .onnx files; this model sets its own")
    classes = 0
    device = "cpu"
    outputs = dict[str, Sequence[int]]()
    torch = sys.modules.get("torch")
    if isinstance(model, (str, os.PathLike)):
        if Path(model).suffix != ".onnx":
            raise FozoError(
                f"{os.fspath(model)} is not an .onnx file; give a function, a torch module or an .onnx file"
            )
        from fozo.engines.onnx.runtimes import ForeignGraph

        graph = ForeignGraph(model, size, threads)
        default_name = graph.path.stem
        fingerprint = graph.fingerprint
        channels = graph.channels
        size = graph.image_size
        classes = graph.classes
        outputs = {**graph.outputs}
        model = graph
        takes = "numpy"
    elif torch is not None and isinstance(model, torch.nn.Module):
        default_name = type(model).__name__
        fingerprint = _module_fingerprint(model)
        weight = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
        device = device if weight is None else str(weight.device)
        dtype = None if weight is None else weight.dtype
        model = partial(_on_its_device, model, device, dtype)
        takes = "torch"
    elif callable(model):
        default_name = getattr(model, "__name__", type(model).__name__)
        if torch is not None and isinstance(getattr(model, "__self__", None), torch.nn.Module):
            takes = takes or "torch"  # a module's method, such as CLIP's get_image_features
        fingerprint = UNNAMED if name is None else "named-" + graph_hash(name.encode()).hexdigest()
    else:
        raise FozoError(
            f"{type(model).__name__} cannot be called; give a function, a torch module or an .onnx file of any program"
        )
    if reverse:
        model = partial(_reversed, model)
    mean, std = (per_channel(value, channels) for value in (mean, std))
    names = None if labels is None else tuple(labels)
    classes = classes or len(names or ())
    size = size or (0, 0)
    spec = Spec(name or default_name, 0, 0, classes, channels, size, size, 0, fingerprint, mean, std, labels=names)
    engine = BlackBoxEngine(model, spec, takes=takes, device=device)
    engine.outputs = outputs
    return engine


def both_sides(size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Height and width, of one number for both."""
    return (size, size) if isinstance(size, int) else size


def per_channel(value: tuple[float, ...] | float | None, channels: int) -> tuple[float, ...] | None:
    """A mean or std for each channel, of one for all or one for each."""
    if value is None:
        return None
    return (float(value),) * channels if isinstance(value, (int, float)) else tuple(map(float, value))


def _module_fingerprint(model: torch.nn.Module) -> str:
    import torch

    if model.training:
        raise FozoError(
            f"{type(model).__name__} is in training mode, in which every batch may change it; call model.eval() first"
        )
    digest = graph_hash()

    def add(value: object) -> None:
        if isinstance(value, torch.Tensor):
            plain = value.dequantize() if value.is_quantized else value
            whole = plain.detach().to("cpu", torch.float32 if plain.is_floating_point() else None)
            digest.update(whole.contiguous().reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, (tuple, list)):  # packed parameters of quantised layers
            for item in value:
                add(item)
        else:
            digest.update(repr(value).encode())

    for key, value in sorted(model.state_dict().items()):
        digest.update(key.encode())
        add(value)
    return "torch-" + digest.hexdigest()


def _reversed(model: CallableModel, images: Any) -> object:  # noqa: ANN401 - NumPy's or torch's
    return model(images[:, [2, 1, 0]])


def _on_its_device(model: torch.nn.Module, device: str, dtype: torch.dtype | None, images: torch.Tensor) -> object:
    return model(images.to(device, dtype))
