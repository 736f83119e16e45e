"""What an engine is: it runs a frozen model, turns knobs that touch no weight, and reports taps.

Everything that crosses this border is NumPy, so methods and optimizers never import a deep-learning
library. An engine may be PyTorch, ONNX Runtime, OpenVINO or anything else that can run a ViT.

Shapes: K candidates, B images, p prompts, L = depth, d = token width, h = head width.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = npt.NDArray[np.floating]
Images: TypeAlias = "Floats | torch.Tensor"
ImagesT = TypeVar("ImagesT", bound="Floats | torch.Tensor")


CPU_TOKENS = 1600
"""How many tokens go through the blocks together on a CPU: eight images of 224 px in patches of 16. Fewer make the
matrix products too small, more leave the cache; ``benchmarks/engine.py --chunk`` measures it."""


@dataclass(frozen=True)
class Spec:
    """The facts about a model that everything else reads instead of assuming."""

    name: str
    depth: int
    dim: int
    classes: int
    channels: int
    image_size: tuple[int, int]
    patch_size: tuple[int, int]
    head_width: int
    """Width of what the head reads: ``dim``, or ``2 * dim`` where it reads [CLS, mean of patches]."""
    fingerprint: str
    """Hash of architecture and weights; files made for one model are refused by another."""
    mean: tuple[float, ...] | None = None
    """Per-channel normalisation of the pixels in [0, 1]; ``None`` when the model's file does not tell."""
    std: tuple[float, ...] | None = None
    subset: tuple[int, ...] | None = None
    """Indices of the classes that the head was restricted to (ImageNet-R has 200 of 1000), else ``None``."""
    labels: tuple[str, ...] | None = None
    """Names of the classes in the order of the logits, where they are known."""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of one image as the model reads it: channels, height, width."""
        return (self.channels, *self.image_size)

    @property
    def patches(self) -> int:
        """Number of patch tokens of one image."""
        return (self.image_size[0] // self.patch_size[0]) * (self.image_size[1] // self.patch_size[1])

    def normalise(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Turn ``uint8`` images ``[B, height, width, channels]`` into the model's input ``[B, channels, ...]``.

        The wrong mean and std cost about twenty points of accuracy, so they come from the model or
        from the user, never from a constant.
        """
        if self.mean is None or self.std is None:
            raise FozoError(
                f"the mean and std of {self.name} are unknown; pass mean= and std= to load_engine "
                f"(augreg ViTs use 0.5 for both, DeiT uses ImageNet's)"
            )
        height, width = self.image_size
        if pixels.dtype != np.uint8 or pixels.shape[1:] != (height, width, self.channels):
            raise FozoError(
                f"normalise takes uint8 images of shape [B, {height}, {width}, {self.channels}], "
                f"not {pixels.dtype} of shape {list(pixels.shape)}; resize and crop them first"
            )
        scaled = pixels.astype(np.float32) / np.float32(255)
        scaled -= np.asarray(self.mean, dtype=np.float32)
        scaled /= np.asarray(self.std, dtype=np.float32)
        return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


@dataclass(frozen=True)
class Move:
    """An affine move ``scale * token + shift`` of tokens as they enter each block.

    Both arrays are ``[K or 1, B or 1, L, d]``: one move for all, or one for each candidate, or for each image.
    """

    scale: Floats
    shift: Floats


@dataclass(frozen=True)
class Knobs:
    """All that may be turned without touching a weight. Every knob left at ``None`` is off."""

    prompts: Floats | None = None
    """``[K, p, d]``: tokens inserted after CLS, after the position embedding."""
    cls: Move | None = None
    patches: Move | None = None

    def candidates(self) -> int:
        """Return K, the number of forward passes that these knobs ask for."""
        counts = [len(self.prompts)] if self.prompts is not None else []
        for move in (self.cls, self.patches):
            if move is not None:
                counts += [len(move.scale), len(move.shift)]
        return max(counts, default=1)

    def check(self, spec: Spec, batch: int) -> None:
        """Refuse knobs whose shapes do not fit the model and the batch."""
        k = self.candidates()
        p = self.prompts
        if p is not None and (p.ndim != 3 or p.shape[0] != k or p.shape[2] != spec.dim):
            raise FozoError(f"prompts have shape {list(p.shape)}, but [{k}, p, {spec.dim}] is needed")
        for name, move in (("cls", self.cls), ("patches", self.patches)):
            for part in () if move is None else (move.scale, move.shift):
                fits = part.ndim == 4 and part.shape[0] in (1, k) and part.shape[1] in (1, batch)
                if not fits or part.shape[2:] != (spec.depth, spec.dim):
                    raise FozoError(
                        f"the {name} move has shape {list(part.shape)}, but [{k} or 1, {batch} or 1, "
                        f"{spec.depth}, {spec.dim}] is needed"
                    )


@dataclass(frozen=True)
class Taps:
    """What a pass reports."""

    cls: Floats
    """``[K, B, L, d]``: the CLS token as it leaves each block, before any move."""
    features: Floats
    """``[K, B, L, d]``: CLS after the norm that reads it next: the next block's, and the final one for the last."""
    pooled: Floats
    """``[K, B, h]``: what the head reads. For most models the last layer's ``features``."""
    patch_mean: Floats | None = None
    """``[K, B, L, d]``: mean over the patch tokens of each image as they enter each block, before any move."""
    patch_variance: Floats | None = None
    """``[K, B, L, d]``: their variance about that mean (divided by the number of patches)."""


NO_KNOBS = Knobs()


class Tokens(Protocol):
    """A batch after patch and position embedding: opaque, owned by the engine that made it."""

    @property
    def batch(self) -> int:
        """Number of images."""


@runtime_checkable
class Engine(Protocol):
    """Runs a frozen model. ``embed`` once per batch, ``run`` for the candidates, ``logits`` at the end."""

    @property
    def spec(self) -> Spec:
        """The model's facts."""

    def embed(self, images: Images) -> Tokens:
        """Check and embed normalised images ``[B, channels, height, width]``."""

    def run(self, tokens: Tokens, knobs: Knobs = NO_KNOBS, *, patch_moments: bool = False) -> Taps:
        """Run one forward pass of the batch for each candidate."""

    def logits(self, pooled: Floats) -> Floats:
        """Apply the head: ``[..., h] -> [..., classes]``."""


def check_images(shape: tuple[int, ...], dtype: object, spec: Spec) -> None:
    """Refuse a batch that the model cannot read, saying what it was given."""
    want = f"float images of shape [B, {', '.join(map(str, spec.image_shape))}]"
    if len(shape) != 4 or tuple(shape[1:]) != spec.image_shape:
        raise FozoError(f"{spec.name} reads {want}, but the batch has shape {list(shape)}; resize the images")
    if shape[0] == 0:
        raise FozoError("the batch has no images; give at least one")
    if "float" not in str(dtype):
        raise FozoError(
            f"{spec.name} reads {want}, but the batch holds {dtype}; use engine.spec.normalise on uint8 pixels"
        )


def refuse_broken(finite: npt.NDArray[np.bool_]) -> None:
    """Raise naming the first image with a NaN or an infinite value; ``finite`` has one flag an image."""
    if not finite.all():
        broken = np.flatnonzero(~finite)
        more = f" ({len(broken)} such images in the batch)" if len(broken) > 1 else ""
        raise FozoError(f"image {broken[0]} of the batch holds NaN or infinite values{more}; leave it out")


def as_numpy(images: Images) -> Floats:
    """Give a batch as a NumPy array; one of a torch tensor on the CPU shares its memory if NumPy has its type."""
    if isinstance(images, np.ndarray):
        return images
    tensor = images.detach().cpu()
    array: Floats = (tensor if tensor.dtype.itemsize >= 4 else tensor.float()).numpy()  # NumPy has no bfloat16
    return array


def like(images: ImagesT, array: Floats) -> ImagesT:
    """Give ``array`` back as what the user handed in: a torch tensor on the same device, or NumPy."""
    if isinstance(images, np.ndarray):
        return cast("ImagesT", array)
    torch = sys.modules["torch"]
    tensor: ImagesT = torch.from_numpy(np.ascontiguousarray(array)).to(images.device)
    return tensor
