"""A twin of a torch model, to change some of its tensors: the user's model is never touched.

A twin shares every tensor with the model, except those that a method changes. What these hold between two steps means
nothing: a step writes its state's numbers into them first. So all clones of a method may use one twin, but not two at
once, and every thread has its own. (``torch.func.functional_call`` would not do instead: it swaps the parameters of a
shared module while it runs, and a thread that predicts meanwhile gets another camera's.)

torch is imported inside the functions: a method has to be known to ``import fozo`` where torch is not installed.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fozo.errors import FozoError
from fozo.types import Batch, Engine, Floats

if TYPE_CHECKING:
    from torch import Tensor

    from fozo.engines.torch_engine import TorchBatch, TorchEngine

T = TypeVar("T")


def torch_engine(engine: Engine) -> TorchEngine:
    """Return the engine, or refuse one that runs no torch model."""
    from fozo.engines.torch_engine import TorchEngine

    if not isinstance(engine, TorchEngine):
        raise FozoError(f"a copy is made of torch models, and {type(engine).__name__} runs none")
    return engine


def torch_batch(batch: Batch) -> TorchBatch:
    from fozo.engines.torch_engine import TorchBatch

    if not isinstance(batch, TorchBatch):
        raise FozoError(f"this batch ({type(batch).__name__}) is another engine's; check the images with this one")
    return batch


def twin(engine: Engine, changed: Collection[str] = ()) -> TorchEngine:
    """Return an engine on a copy of the model that shares all tensors except the parameters ``changed``."""
    import torch

    original = torch_engine(engine)
    shared = [tensor for name, tensor in original.vit.named_parameters() if name not in changed]
    memo: dict[int, object] = {id(tensor): tensor for tensor in [*shared, *original.vit.buffers()]}
    copied = copy.copy(original)
    with torch.inference_mode(False):
        copied.vit = copy.deepcopy(original.vit, memo)
    return copied


class PerThread(Generic[T]):
    """One value for each thread, made when the thread first asks for it. A forked child keeps its thread's."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._local = threading.local()

    def __call__(self) -> T:
        """Return the calling thread's value."""
        if not hasattr(self._local, "value"):
            self._local.value = self._make()
        value: T = self._local.value
        return value

    def __reduce__(self) -> tuple[Any, ...]:
        return PerThread, (self._make,)


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Join the numbers of tensors, one tensor after the other."""
    import torch

    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def write(values: Floats, tensors: Sequence[Tensor]) -> None:
    """Write numbers into tensors, in the order of :func:`flat`."""
    import torch

    with torch.inference_mode(False), torch.no_grad():
        parts = torch.split(torch.tensor(values), [tensor.numel() for tensor in tensors])
        for tensor, part in zip(tensors, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
