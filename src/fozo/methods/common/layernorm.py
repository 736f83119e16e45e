"""What the methods that change LayerNorms share: the LayerNorms of a twin of the model, and gradient descent on them.

torch is imported inside the functions: a method has to be known to ``import fozo`` where torch is not installed.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar, cast

import numpy as np

from fozo.engines.blackbox import to_numpy
from fozo.errors import FozoError
from fozo.methods.common.options import below_one, positive
from fozo.methods.common.twin import PerThread, flat, torch_batch, torch_engine, twin, write
from fozo.methods.method import Method, Result
from fozo.state import State
from fozo.types import Batch, Engine, Floats, Tap

if TYPE_CHECKING:
    from torch import Tensor

PUBLISHED_BATCH = 64  # the batch size that the published learning rates are for


def lower_blocks(depth: int, first: int = 0) -> range:
    """Blocks from ``first`` on without the last quarter: 0-8 of 12, which SAR found safe to adapt."""
    return range(first, max(first + 1, depth * 3 // 4))


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy of the softmax of each row, differentiable: ``[B, classes] -> [B]``."""
    return -(logits.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


class LayerNorms:
    """The LayerNorm weights and biases of a model, in a twin that shares all its other tensors."""

    def __init__(self, engine: Engine, blocks: range | None = None) -> None:
        """Take the norms of ``blocks``, or every LayerNorm of the model, the final one included."""
        import torch

        self.names: list[str] = []
        for name, module in torch_engine(engine).vit.named_modules():
            inside = blocks is None or any(name.startswith(f"blocks.{block}.") for block in blocks)
            if isinstance(module, torch.nn.LayerNorm) and inside:
                self.names += [f"{name}.weight", f"{name}.bias"]
        if not self.names:
            depth = engine.spec.depth
            raise FozoError(f"{engine.spec.name} has no LayerNorms in blocks {blocks} of {depth}; use a deeper model")
        self.engine = twin(engine, self.names)
        parameters = dict(self.engine.vit.named_parameters())
        with torch.inference_mode(False):
            self.parameters: list[Tensor] = [parameters[name].requires_grad_(True) for name in self.names]

    def values(self) -> Floats:
        """All weights and biases in the order of ``names``, flat, in the model's precision."""
        return to_numpy(flat(self.parameters))

    def write(self, values: Floats) -> None:
        write(values, self.parameters)

    def logits(self, images: Tensor) -> Tensor:
        logits: Tensor = self.engine.vit(images)
        if not bool(logits.isfinite().all()):
            raise FozoError("the adapted logits are not finite; nothing was changed: reset it or lower its rate")
        return logits

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """Differentiate a loss by backpropagation, refusing what is not finite."""
        import torch

        gradients = list(torch.autograd.grad(loss, self.parameters))
        if not all(bool(tensor.isfinite().all()) for tensor in [loss, *gradients]):
            raise FozoError(f"the loss {loss.item()} or its gradient is not finite; nothing was changed")
        return gradients


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent with momentum, as TENT, SAR, EATA and DeYO all use it."""

    rate: float = 1e-3
    """Learning rate for batches of 64."""
    momentum: float = 0.9
    """Weight of the past in the direction of descent."""
    batch_size: int = PUBLISHED_BATCH
    """Size of the stream's batches. As in the authors' programs the rate is multiplied by ``batch_size / 64``;
    a short last batch does not change it."""

    def __post_init__(self) -> None:
        positive("gradient descent", rate=self.rate, batch_size=self.batch_size)
        below_one("gradient descent", momentum=self.momentum)

    @property
    def step_size(self) -> float:
        return self.rate * self.batch_size / PUBLISHED_BATCH


@dataclass(frozen=True)
class DescentState(State):
    """Weights and biases of the adapted LayerNorms, one after the other, and their momentum."""

    norms: Floats
    velocity: Floats


D = TypeVar("D", bound=Descent)
G = TypeVar("G", bound=DescentState)


class GradientMethod(Method[D, G]):
    """A method that descends a loss of the twin's logits by backpropagation. Subclasses implement ``learn``."""

    LOWER_BLOCKS: ClassVar[bool] = False
    """Whether only norms of :func:`lower_blocks` are adapted, or all."""

    def prepare(self) -> None:
        engine = self.engine
        blocks = lower_blocks(engine.spec.depth) if self.LOWER_BLOCKS else None
        self._twins = PerThread(partial(LayerNorms, engine, blocks))
        self._start = self._twins().values()
        self.parameter_count = self._start.size

    def init(self) -> G:
        return cast("G", DescentState(norms=self._start, velocity=np.zeros_like(self._start)))

    @abstractmethod
    def learn(self, state: G, norms: LayerNorms, images: Tensor) -> Result[G]:
        """Take one step on a batch; ``norms`` are the state's."""

    def step(self, state: G, batch: Batch) -> Result[G]:
        import torch

        norms = self._twins()
        norms.write(state.norms)
        with torch.inference_mode(False), torch.enable_grad():
            images = torch_batch(batch).x.clone()  # which autograd accepts, whatever mode the user's was made in
            return self.learn(state, norms, images)

    def predict_step(self, state: G, batch: Batch) -> Result[G]:
        from fozo.engines.torch_engine import TorchBatch

        norms = self._twins()
        norms.write(state.norms)
        images = torch_batch(batch)
        unembedded = TorchBatch(images.x, norms.engine.vit, images.chunk)  # some models have a norm in the embedding
        return Result(norms.engine.run(unembedded)[Tap.LOGITS][0], state)

    def _descend(self, state: G, gradients: list[Tensor]) -> G:
        """One step: v = momentum v + g; w = w - rate v."""
        import torch

        with torch.no_grad():
            gradient = flat(gradients)
            velocity = self.config.momentum * torch.tensor(state.velocity).to(gradient) + gradient
            norms = torch.sub(torch.tensor(state.norms).to(gradient), velocity, alpha=self.config.step_size)
        return replace(state, norms=to_numpy(norms), velocity=to_numpy(velocity))

    def _entropy_share(self, share: float) -> float:
        """A margin that papers give as a share of the largest entropy, ln(classes)."""
        return share * math.log(self.engine.spec.classes)
