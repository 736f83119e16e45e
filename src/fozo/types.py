"""What passes between packages: a model's spec, knobs and taps, batches, states, and what an engine is.

NumPy only. Everything that crosses a border is NumPy, so methods and optimizers never import a deep-learning library,
and an engine may be PyTorch, ONNX Runtime, OpenVINO or anything else that can run a model.

Shapes: K candidates, B images, p prompts, L = depth, d = token width, h = head width.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from fozo.errors import FozoError

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = npt.NDArray[np.floating]
Array: TypeAlias = npt.NDArray[np.float64]
Images: TypeAlias = "Floats | torch.Tensor"
ImagesT = TypeVar("ImagesT", bound="Floats | torch.Tensor")
T = TypeVar("T")
Value: TypeAlias = bool | int | float | str  # what an option may be: what TOML, JSON and a command line all can say
LOG = logging.getLogger("fozo")  # fozo's logger: `logging.basicConfig(level=logging.INFO)` shows it
LOG.addHandler(logging.NullHandler())


SAMPLED_TOKENS = 4
"""Second moments are of one patch token in so many: neighbours tell nearly the same."""


def aligned_blocks(depth: int) -> range:
    """The blocks of :attr:`Spec.aligned`."""
    return range(1, depth // 2 + 1, 2)


@dataclass(frozen=True)
class Spec:
    """What everything else reads about a model instead of assuming it.

    A black box has no tokens: its depth and widths are 0, and its one patch is the image. Its image size and its number
    of classes are 0 until the first batch tells them.

    Examples:
        >>> spec = engine.spec
        >>> spec.image_shape, spec.depth, spec.dim, spec.label(9)
        ((1, 28, 28), 6, 64, 'Ankle boot')
    """

    name: str
    depth: int
    """Number of blocks."""
    dim: int
    """Width of a token."""
    classes: int
    """Number of outputs."""
    channels: int
    image_size: tuple[int, int]
    """Height and width."""
    patch_size: tuple[int, int]
    """Height and width."""
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
    class_token: bool = True
    """Whether there is a CLS token. The head of a model without one reads its patch tokens."""

    def __post_init__(self) -> None:
        """Refuse a mean and std that no model has: pixels are in [0, 1] (for one that reads 0..255, std is 1/255)."""
        for name, values, least, most in (("mean", self.mean, -1.0, 2.0), ("std", self.std, 1e-6, 4.0)):
            if values is not None and len(values) != self.channels:
                raise FozoError(f"{self.name} was given {len(values)} values of {name} for {self.channels} channels")
            for value in values or ():
                if not least <= value <= most:  # also NaN
                    why = "looks like 0..255 units: divide it by 255" if 2 < value < 256 else "does not fit 0..1 pixels"
                    raise FozoError(f"the {name} of {self.name} is {value:g}, which {why}")
        for name, items in (("labels", self.labels), ("subset", self.subset)):
            if items is not None and len(items) != self.classes:
                raise FozoError(
                    f"{len(items)} {name} were given for the {self.classes} classes of {self.name}; give one for each"
                )

    def label(self, output: int) -> str:
        """Name an output: its class where that is known, else its number."""
        return str(int(output)) if self.labels is None else self.labels[output]

    def restricted(self, classes: Sequence[int]) -> Spec:
        """The same model with only some classes of its head."""
        if self.subset is not None:
            raise FozoError(f"{self.name} has only {self.classes} of its classes already; leave classes= out")
        if not classes or len(set(classes)) < len(classes) or min(classes) < 0 or max(classes) >= self.classes:
            raise FozoError(
                f"classes must be distinct indices below {self.classes}, at least one; check the class mask"
            )
        labels = None if self.labels is None else tuple(self.labels[i] for i in classes)
        return replace(self, classes=len(classes), subset=tuple(classes), labels=labels)

    @cached_property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and std, where both are known."""
        return None if self.mean is None or self.std is None else (self.mean, self.std)

    @cached_property
    def image_shape(self) -> tuple[int, int, int]:
        """Shape of one image as the model reads it: channels, height, width."""
        return (self.channels, *self.image_size)

    @property
    def patches(self) -> int:
        """Patch tokens of one image."""
        return (self.image_size[0] // self.patch_size[0]) * (self.image_size[1] // self.patch_size[1])

    @property
    def aligned(self) -> range:
        """Blocks before which patch tokens can be multiplied by a matrix: 1, 3, 5 ... of the first half."""
        return aligned_blocks(self.depth)

    def normalise(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Turn ``uint8`` images ``[B, height, width, channels]`` into the model's input ``[B, channels, ...]``.

        The wrong mean and std cost about twenty points of accuracy, so they come from the model or
        from the user, never from a constant.
        """
        if self.mean is None or self.std is None:
            raise FozoError(
                f"the mean and std of {self.name} are unknown; pass mean= and std=, or --mean and --std "
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


def short(fingerprint: str) -> str:
    """Shorten the hash in a fingerprint, and keep what tells it from others of the same weights: ``-int8-...``."""
    return re.sub(r"[0-9a-f]{12,}", lambda match: match[0][:12], fingerprint)


@dataclass(frozen=True)
class Move:
    """An affine move ``scale * token + shift`` of tokens as they enter each block.

    Both arrays are ``[K or 1, B or 1, L, d]``: one move for all, or one for each candidate, or for each image.

    Examples:
        >>> still = np.ones((1, 1, engine.spec.depth, engine.spec.dim), dtype=np.float32)
        >>> knobs = fozo.Knobs(patches=fozo.Move(scale=still, shift=0.1 * still))
        >>> engine.run(engine.check(batch), knobs)[fozo.Tap.LOGITS].shape
        (1, 8, 10)
    """

    scale: Floats
    shift: Floats


@dataclass(frozen=True)
class Knobs:
    """All that may be turned without touching a weight. Every knob left at ``None`` is off.

    Examples:
        >>> knobs = fozo.Knobs(prompts=np.zeros((4, 3, engine.spec.dim)))  # four candidates of three prompts
        >>> engine.run(engine.check(batch), knobs)[fozo.Tap.LOGITS].shape
        (4, 8, 10)
    """

    prompts: Floats | None = None
    """``[K, p, d]``: tokens inserted after CLS, once positions are added."""
    cls: Move | None = None
    """Moves the CLS token, and nothing where there is none."""
    patches: Move | None = None
    """Moves the patch tokens."""
    matrices: Floats | None = None
    """``[K or 1, B or 1, A, d, d]``: patch tokens entering the A blocks of ``spec.aligned`` are multiplied by it
    (``token @ matrix``) before they are moved."""

    def candidates(self) -> int:
        """Return K, the number of forward passes that these knobs ask for."""
        counts = [len(self.prompts)] if self.prompts is not None else []
        for move in (self.cls, self.patches):
            if move is not None:
                counts += [len(move.scale), len(move.shift)]
        if self.matrices is not None:
            counts.append(len(self.matrices))
        return max(counts, default=1)

    def check(self, spec: Spec, batch: int) -> int:
        """Refuse knobs whose shapes do not fit the model and the batch; return K."""
        k = self.candidates()
        p = self.prompts
        if p is not None and (p.ndim != 3 or p.shape[0] != k or p.shape[2] != spec.dim):
            raise FozoError(f"prompts have shape {list(p.shape)}, but [{k}, p, {spec.dim}] is needed")
        for name, move in (("cls", self.cls), ("patches", self.patches)):
            for factors in () if move is None else (move.scale, move.shift):
                fits = factors.ndim == 4 and factors.shape[0] in (1, k) and factors.shape[1] in (1, batch)
                if not fits or factors.shape[2:] != (spec.depth, spec.dim):
                    raise FozoError(
                        f"the {name} move has shape {list(factors.shape)}, but [{k} or 1, {batch} or 1, "
                        f"{spec.depth}, {spec.dim}] is needed"
                    )
        matrices = self.matrices
        if matrices is not None:
            wanted = (len(spec.aligned), spec.dim, spec.dim)
            fits = matrices.ndim == 5 and matrices.shape[0] in (1, k) and matrices.shape[1] in (1, batch)
            if not fits or matrices.shape[2:] != wanted:
                raise FozoError(
                    f"the matrices have shape {list(matrices.shape)}, but [{k} or 1, {batch} or 1, "
                    f"{', '.join(map(str, wanted))}] is needed"
                )
        return k


NO_KNOBS = Knobs()


class Tap(str, Enum):
    """What a pass can report. Only the taps asked for are fetched and copied, and computed where that can be spared.

    Examples:
        >>> taps = engine.run(engine.check(batch), taps=[fozo.Tap.POOLED, fozo.Tap.PATCH_MEAN])
        >>> taps[fozo.Tap.POOLED].shape, taps[fozo.Tap.PATCH_MEAN].shape
        ((1, 8, 64), (1, 8, 6, 64))
    """

    LOGITS = "logits"
    """``[K, B, classes]``: the head's output, the one tap that every engine has."""
    POOLED = "pooled"
    """``[K, B, h]``: what the head reads. For most models the last layer's ``FEATURES``."""
    CLS = "cls"
    """``[K, B, L, d]``: the CLS token as it leaves each block, before any move; the mean patch where there is none."""
    FEATURES = "features"
    """``[K, B, L, d]``: CLS after the norm that reads it next: the next block's, and the final one for the last. Where
    there is none the mean of the patches after that norm, and for the last what the head reads."""
    PATCH_MEAN = "patch_mean"
    """``[K, B, L, d]``: mean over the patch tokens of each image as they enter each block, before any move."""
    PATCH_VARIANCE = "patch_variance"
    """``[K, B, L, d]``: their variance about that mean (divided by the number of patches)."""
    PATCH_MOMENTS = "patch_moments"
    """``[K, B, A, d + 1, d]``: mean and covariance of every fourth patch token (``patches[l % 4 :: 4]``) of each image
    as they enter the A blocks l of ``spec.aligned``, before any move."""


Taps: TypeAlias = dict[Tap, Floats]


@dataclass(frozen=True)
class Affine:
    """A model's head: ``logits = pooled @ weight + bias``."""

    weight: Floats
    """``[h, classes]``."""
    bias: Floats
    """``[classes]``."""

    def __call__(self, pooled: Floats) -> Floats:
        """Apply it: ``[..., h] -> [..., classes]``."""
        # On the calling thread: BLAS would wake its own, which spin for longer than so small a product takes.
        logits: Floats = np.einsum("...h,hc->...c", np.asarray(pooled, dtype=self.weight.dtype), self.weight)
        logits += self.bias
        return logits


@dataclass(frozen=True)
class Answer:
    """What a black box returned instead of logits (boxes, masks): passed through unchanged."""

    value: object


class Output(dict[str, Images]):
    """Logits ``[B, classes]`` as models of transformers return them: ``.logits``, ``["logits"]`` or ``[0]``."""

    @property
    def logits(self) -> Images:
        return self["logits"]

    def __missing__(self, key: object) -> Images:
        if key != 0:
            raise KeyError(key)
        return self.logits


class Batch(Protocol):
    """Images that an engine has checked and converted, once. It belongs to the engine that made it."""

    @property
    def images(self) -> Floats:
        """``[B, channels, height, width]`` in the model's precision."""

    def __len__(self) -> int: ...

    def part(self, images: slice) -> Batch: ...

    def with_images(self, images: Floats) -> Batch:
        """The same batch with other pixels, which are not checked again."""


class ForkSafeLock:
    """A reentrant lock that a forked child finds open: the thread that held it in the parent does not exist there."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._process = os.getpid()

    def __enter__(self) -> None:
        if self._process != os.getpid():
            self._lock = threading.RLock()
            self._process = os.getpid()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[Any, ...]:
        return ForkSafeLock, ()


@dataclass
class Threads:
    """At most ``count`` threads, for work that releases Python's lock; started when there is work for several."""

    count: int
    _pools: dict[int, ThreadPoolExecutor] = field(default_factory=dict, init=False, repr=False)
    """By process: threads do not survive a fork."""

    def each(self, call: Callable[[T], object], parts: Sequence[T]) -> None:
        """Call a function with every part, ``count`` at a time. All calls have ended when it raises what one raised."""
        if self.count == 1 or len(parts) == 1:
            for part in parts:
                call(part)
            return
        pool = self._pools.get(os.getpid())
        if pool is None:  # setdefault is atomic, and an executor that lost the race has not started a thread yet
            pool = self._pools.setdefault(os.getpid(), ThreadPoolExecutor(self.count, thread_name_prefix="fozo"))
        calls = [pool.submit(call, part) for part in parts]
        wait(calls)
        for done in calls:
            done.result()

    def __reduce__(self) -> tuple[Any, ...]:
        return Threads, (self.count,)


@runtime_checkable
class Engine(Protocol):
    """Runs a frozen model. ``check`` once per batch, then ``run`` as often as a method likes.

    Examples:
        >>> checked = engine.check(batch)
        >>> pooled = engine.run(checked, taps=[fozo.Tap.POOLED])[fozo.Tap.POOLED]
        >>> len(checked), engine.head()(pooled).shape
        (8, (1, 8, 10))
    """

    @property
    def spec(self) -> Spec: ...

    @property
    def device(self) -> str:
        """Where it computes: ``cpu``, ``cuda:0``."""

    @property
    def abilities(self) -> frozenset[str]:
        """What it can do beyond images to logits.

        ``tokens``: moves and taps of a ViT. ``prompts``: prompts join its tokens. ``matrices``: the knob of that name,
        and the tap of patch moments. ``torch``: a torch model, whose LayerNorms a copy may change. ``gradient``:
                gradients flow through it. ``blocks``: it is a :class:`BlockEngine`. A black box has none of them.
        """

    @property
    def threads(self) -> Threads:
        """Threads for what is done to its images on this machine's processors; no more than it computes with."""

    def check(self, images: Images) -> Batch:
        """Refuse images that the model cannot read, and convert the others. This is done here only.

        :func:`fozo.core.normalisation.check_images` has the rules, which are the same for all engines.
        """

    def run(self, batch: Batch, knobs: Knobs = NO_KNOBS, taps: Sequence[Tap] = (Tap.LOGITS,)) -> Taps:
        """Run one forward pass of the batch for each candidate, and report the taps asked for."""

    def head(self) -> Affine:
        """The head, for methods that change what it reads or replace it."""


def taps_of(engine: Engine) -> tuple[Tap, ...]:
    """The taps that an engine can give, by its abilities."""
    if "tokens" not in engine.abilities:
        return (Tap.LOGITS,)
    return tuple(tap for tap in Tap if tap is not Tap.PATCH_MOMENTS or "matrices" in engine.abilities)
