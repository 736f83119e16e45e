"""What the methods that change LayerNorms share: a twin of the model to change, and gradient descent on it.

The user's model is never touched. A :class:`LayerNorms` holds a *twin* of it that shares every tensor except the
LayerNorm weights and biases being adapted: a few tens of thousands of numbers.

torch is imported inside the functions: a method has to be known to ``import fozo`` where torch is not installed.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.common.options import below_one, positive
from fozo.types import Array, Batch, Engine, Floats, State, Tap

if TYPE_CHECKING:
    from torch import Tensor

    from fozo.engines.torch_engine import TorchEngine

PUBLISHED_BATCH = 64  # The batch size that the published learning rates are for


def lower_blocks(depth: int, first: int = 0) -> range:
    """Blocks from ``first`` on without the last quarter: 0-8 of 12, which SAR found safe to adapt."""
    return range(first, max(first + 1, depth * 3 // 4))


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of the softmax of each row, differentiable: ``[B, classes] -> [B]``."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


def twin(engine: Engine, changed: Collection[str] = ()) -> TorchEngine:
    """Return an engine on a copy of the model that shares all tensors except the parameters ``changed``."""
    import torch

    from fozo.engines.torch_engine import TorchEngine

    if not isinstance(engine, TorchEngine):
        raise FozoError(f"a copy is made of torch models, and {type(engine).__name__} runs none")
    shared = [tensor for name, tensor in engine.vit.named_parameters() if name not in changed]
    memo: dict[int, object] = {id(tensor): tensor for tensor in [*shared, *engine.vit.buffers()]}
    made = copy.copy(engine)
    with torch.inference_mode(False):
        made.vit = copy.deepcopy(engine.vit, memo)
    return made


class LayerNorms:
    """The LayerNorm weights and biases of a model, in a twin that shares all its other tensors."""

    def __init__(self, engine: Engine, blocks: range | None = None) -> None:
        """Take the norms of ``blocks``, or every LayerNorm of the model, the final one included."""
        from torch.nn import LayerNorm

        self.names: list[str] = []
        for name, module in twin(engine).vit.named_modules():
            inside = blocks is None or any(name.startswith(f"blocks.{block}.") for block in blocks)
            if isinstance(module, LayerNorm) and inside:
                self.names += [f"{name}.weight", f"{name}.bias"]
        if not self.names:
            name, depth = engine.spec.name, engine.spec.depth
            raise FozoError(f"{name} has no LayerNorms in blocks {blocks} of {depth}; use a deeper model")
        self.engine = twin(engine, self.names)
        parameters = dict(self.engine.vit.named_parameters())
        self.parameters: list[Tensor] = [parameters[name].requires_grad_(True) for name in self.names]
        self.start: Array = self.values()

    def __len__(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters)

    def values(self) -> Array:
        return flat(self.parameters)

    def assign(self, values: Array) -> None:
        fill(self.parameters, values)

    def logits(self, images: Tensor) -> Tensor:
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
        return found


def flat(tensors: Iterable[Tensor]) -> Array:
    return np.concatenate([tensor.detach().double().cpu().numpy().ravel() for tensor in tensors])


def fill(tensors: Sequence[Tensor], values: Array) -> None:
    """Write numbers into tensors, in the order of :func:`flat`."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        parts = np.split(values, np.cumsum([tensor.numel() for tensor in tensors])[:-1])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(torch.from_numpy(part).view_as(tensor))


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent with momentum, as TENT, SAR, EATA and DeYO all use it."""

    rate: float = 1e-3  # Learning rate for batches of 64
    momentum: float = 0.9
    batch_size: int = PUBLISHED_BATCH
    """Size of the stream's batches. As in the authors' programs the rate is multiplied by ``batch_size / 64``;
    a short last batch does not change it."""

    def __post_init__(self) -> None:
        positive("gradient descent", rate=self.rate, batch_size=self.batch_size)
        below_one("gradient descent", momentum=self.momentum)

    @property
    def step_size(self) -> float:
        return self.rate * self.batch_size / PUBLISHED_BATCH


D = TypeVar("D", bound=Descent)


class GradientMethod(Method[D]):
    """A method that descends a loss of the twin's logits by backpropagation. Subclasses implement ``learn``."""

    LOWER_BLOCKS: ClassVar[bool] = False  # whether only norms of :func:`lower_blocks` are adapted, or all
    SHARES_PREPARED = False

    def prepare(self) -> None:
        self.norms = LayerNorms(self.engine, lower_blocks(self.engine.spec.depth) if self.LOWER_BLOCKS else None)
        self.parameters = len(self.norms)
        self.velocity = [parameter.detach().clone().zero_() for parameter in self.norms.parameters]

    def entropy_share(self, share: float) -> float:
        """A margin that papers give as a share of the largest entropy, ln(classes)."""
        return share * math.log(self.engine.spec.classes)

    def step(self, batch: Batch) -> Floats:
        import torch

        from fozo.engines.blackbox import to_numpy
        from fozo.engines.torch_engine import TorchBatch

        assert isinstance(batch, TorchBatch)
        with torch.inference_mode(False), torch.enable_grad():
            # The copy makes a tensor that autograd accepts, whatever mode the user's was made in.
            return to_numpy(self.learn(batch.x.clone()))

    def predict(self, batch: Batch) -> Floats:
        self.passes_per_image = 1.0
        logits: Floats = self.norms.engine.run(batch)[Tap.LOGITS][0]
        return logits

    @abstractmethod
    def learn(self, images: Tensor) -> Tensor:
        """Take one step on a batch and return the logits to report."""

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Differentiate a loss, and report it; nothing is reported where no image was fit to learn from."""
        found = self.norms.gradients(loss)
        self.report(loss=loss.item())
        return found

    def descend(self, gradients: list[Tensor]) -> None:
        """One step: v = momentum v + g; w = w - rate v."""
        import torch

        with torch.no_grad():
            for weight, velocity, gradient in zip(self.norms.parameters, self.velocity, gradients, strict=True):
                velocity.mul_(self.config.momentum).add_(gradient)
                weight.sub_(velocity, alpha=self.config.step_size)

    def stop(self) -> None:
        for velocity in self.velocity:
            velocity.zero_()

    def begin(self) -> None:
        self.norms.assign(self.norms.start)
        self.stop()

    def variables(self) -> State:
        return {"norms": self.norms.values(), "velocity": flat(self.velocity)} | super().variables()

    def assign(self, variables: State) -> None:
        super().assign(variables)
        self.norms.assign(variables["norms"].astype(np.float64))
        fill(self.velocity, variables["velocity"].astype(np.float64))
