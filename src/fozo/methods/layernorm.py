"""What the methods that change LayerNorms share: a twin of the model to change, and gradient descent on it.

The user's model is never touched. A :class:`LayerNorms` holds a *twin* of it that shares every tensor except the
LayerNorm weights and biases being adapted: a few tens of thousands of numbers.

torch is imported inside the functions: a method has to be known to ``import fozo`` where torch is not installed.
"""

from __future__ import annotations

import copy
import sys
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine, Floats, ImagesT, Tokens, check_images, like, refuse_broken
from fozo.errors import FozoError
from fozo.methods.base import Method, State
from fozo.methods.presets import positive

if TYPE_CHECKING:
    from torch import Tensor

    from fozo.engines.torch_engine import TorchEngine

Array = npt.NDArray[np.float64]

PUBLISHED_BATCH = 64
"""The batch size that the published learning rates are for."""


def torch_engine(engine: Engine, method: str, need: str, *, gradients: bool = True) -> TorchEngine:
    """Return ``engine`` if it is a torch engine, and one with ``gradients``, else say what the method needs it for."""
    # Whoever made a torch engine has imported its module; without it torch may not even be installed.
    if "fozo.engines.torch_engine" in sys.modules:
        from fozo.engines.torch_engine import TorchEngine

        if isinstance(engine, TorchEngine):
            if gradients and not engine.differentiable:
                raise FozoError(
                    f"{method} needs {need}, and rounding has none: use the model in full precision, or a method that "
                    f"only runs forward"
                )
            return engine
    raise FozoError(f"{method} needs {need}: use a torch engine")


def lower_blocks(depth: int, first: int = 0) -> range:
    """Blocks from ``first`` on without the last quarter: 0-8 of 12, which SAR found safe to adapt."""
    return range(first, max(first + 1, depth * 3 // 4))


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of the softmax of each row, differentiable: ``[B, classes] -> [B]``."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


class LayerNorms:
    """The LayerNorm weights and biases of a model, in a twin that shares all its other tensors."""

    def __init__(self, engine: TorchEngine, blocks: range | None = None) -> None:
        """Take the norms of ``blocks``, or every LayerNorm of the model, the final one included."""
        import torch
        from torch import nn

        self.names: list[str] = []
        for name, module in engine.vit.named_modules():
            inside = blocks is None or any(name.startswith(f"blocks.{block}.") for block in blocks)
            if isinstance(module, nn.LayerNorm) and inside:
                self.names += [f"{name}.weight", f"{name}.bias"]
        if not self.names:
            raise FozoError(
                f"{engine.spec.name} has no LayerNorms in blocks {blocks} of {engine.spec.depth}; use a deeper model"
            )
        own = set(self.names)
        shared = [tensor for name, tensor in engine.vit.named_parameters() if name not in own]
        memo: dict[int, object] = {id(tensor): tensor for tensor in [*shared, *engine.vit.buffers()]}
        with torch.inference_mode(False):
            twin = copy.deepcopy(engine.vit, memo)
        self.engine = copy.copy(engine)
        self.engine.vit = twin
        parameters = dict(twin.named_parameters())
        self.parameters: list[Tensor] = [parameters[name].requires_grad_(True) for name in self.names]
        self.start: Array = self.values()
        self.loss: float | None = None  # what was differentiated last

    def __len__(self) -> int:
        """How many numbers are adapted."""
        return sum(parameter.numel() for parameter in self.parameters)

    def values(self) -> Array:
        """All weights and biases, one after another, norm by norm."""
        return _flat(self.parameters)

    def assign(self, values: Array) -> None:
        """Put ``values`` in force."""
        _fill(self.parameters, values)

    def logits(self, images: Tensor) -> Tensor:
        """Predict with the twin, differentiably in its LayerNorms."""
        logits: Tensor = self.engine.vit(images)
        if not bool(logits.isfinite().all()):
            raise FozoError("the adapted logits are not finite; nothing was changed: reset it or lower its rate")
        return logits

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Differentiate a loss by backpropagation, refusing what is not finite."""
        import torch

        found = list(torch.autograd.grad(loss, self.parameters))
        if not all(bool(gradient.isfinite().all()) for gradient in [loss, *found]):
            raise FozoError(f"the loss {loss.item()} or its gradient is not finite; nothing was changed")
        self.loss = loss.item()
        return found


def _flat(tensors: list[Tensor]) -> Array:
    return np.concatenate([tensor.detach().double().cpu().numpy().ravel() for tensor in tensors])


def _fill(tensors: list[Tensor], values: Array) -> None:
    import torch

    with torch.inference_mode(False), torch.no_grad():
        start = 0
        for tensor in tensors:
            part = values[start : start + tensor.numel()].reshape(tuple(tensor.shape))
            tensor.copy_(torch.from_numpy(part))
            start += tensor.numel()


@contextmanager
def all_or_nothing(method: Method) -> Iterator[None]:
    """Put a method back to where it was if the body raises."""
    before = method.state()
    try:
        yield
    except BaseException:
        method.restore_state(before)
        raise


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent with momentum, as TENT, SAR, EATA and DeYO all use it."""

    rate: float = 1e-3
    """Learning rate for batches of 64."""
    momentum: float = 0.9
    batch_size: int = PUBLISHED_BATCH
    """Size of the stream's batches. As in the authors' programs the rate is multiplied by ``batch_size / 64``;
    a short last batch does not change it."""

    def __post_init__(self) -> None:
        """Refuse values that cannot descend."""
        positive("gradient descent", rate=self.rate, batch_size=self.batch_size)
        if not 0 <= self.momentum < 1:
            raise FozoError(f"momentum must lie in [0, 1), not {self.momentum}")

    @property
    def step_size(self) -> float:
        """The rate in force."""
        return self.rate * self.batch_size / PUBLISHED_BATCH


@dataclass(frozen=True)
class Pixels:
    """Checked images on the model's device. Gradients start at the image, so these methods do not embed first."""

    x: Tensor

    @property
    def batch(self) -> int:
        """Number of images."""
        return len(self.x)


class GradientMethod(Method):
    """A method that descends a loss of the twin's logits by backpropagation. Subclasses implement ``learn``."""

    def __init__(
        self, engine: Engine, source: SourceStatistics | None, descent: Descent, blocks: range | None = None
    ) -> None:
        """Make the twin; ``blocks`` are those whose norms are adapted, all norms by default."""
        super().__init__(engine, source)
        self.descent = descent
        self.torch_engine = torch_engine(engine, self.info.name, "gradients")
        self.norms = LayerNorms(self.torch_engine, blocks)
        self.velocity = [parameter.detach().clone().zero_() for parameter in self.norms.parameters]

    @property
    def parameters(self) -> int:
        """How many numbers of the model are adapted."""
        return len(self.norms)

    def __call__(self, images: ImagesT) -> ImagesT:
        """Adapt to normalised images and return their logits, as :class:`Method` says."""
        import torch

        check_images(tuple(images.shape), images.dtype, self.engine.spec)
        with torch.inference_mode(False):
            # The copy makes a tensor that autograd accepts, whatever mode the user's was made in.
            batch = torch.as_tensor(images).clone().to(self.torch_engine.device, self.torch_engine.dtype)
        refuse_broken(batch.flatten(1).isfinite().all(dim=1).cpu().numpy())
        return like(images, self.adapt(Pixels(batch)))

    def telling(self) -> dict[str, float]:
        """Return the loss descended; nothing where no image of the batch was fit to learn from."""
        return {} if self.norms.loss is None else {"loss": self.norms.loss}

    def adapt(self, tokens: Tokens) -> Floats:
        """Learn from a batch of :class:`Pixels` and return its logits."""
        import torch

        if not isinstance(tokens, Pixels):
            raise FozoError(f"{self.info.name} learns from images, not from embedded tokens: call it with the images")
        self.norms.loss = None
        with all_or_nothing(self), torch.inference_mode(False), torch.enable_grad():
            logits = self.learn(tokens.x).detach()
        prediction: Floats = (logits if logits.dtype.itemsize >= 4 else logits.float()).cpu().numpy()
        return prediction

    @abstractmethod
    def learn(self, images: Tensor) -> Tensor:
        """Take one step on a batch and return the logits to report."""

    def descend(self, gradients: list[Tensor]) -> None:
        """One step: v = momentum v + g; w = w - rate v."""
        import torch

        with torch.no_grad():
            for weight, velocity, gradient in zip(self.norms.parameters, self.velocity, gradients, strict=True):
                velocity.mul_(self.descent.momentum).add_(gradient)
                weight.sub_(velocity, alpha=self.descent.step_size)

    def stop(self) -> None:
        """Forget the momentum."""
        for velocity in self.velocity:
            velocity.zero_()

    def reset(self) -> None:
        """Forget everything adapted."""
        self.norms.assign(self.norms.start)
        self.stop()

    def state(self) -> State:
        """The LayerNorms and their momentum."""
        return {"norms": self.norms.values(), "velocity": _flat(self.velocity)}

    def restore_state(self, state: State) -> None:
        """Continue from a state."""
        for name in ("norms", "velocity"):
            if name not in state or state[name].shape != (len(self.norms),):
                raise FozoError(f"the state's {name!r} does not hold {len(self.norms)} numbers; save the state again")
        self.norms.assign(state["norms"])
        _fill(self.velocity, state["velocity"])
