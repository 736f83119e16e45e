"""An adapter as a layer of PyTorch, for ``nn.Sequential``, Lightning and whatever else takes modules."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from fozo.methods.method import Method


class AdapterModule(nn.Module):
    """Calls an adapter, which adapts in evaluation mode too. It has no parameters, and no gradient flows through it.

    ``torch.compile`` leaves it as it is. What was learnt is in its ``state_dict()``. It has what a pipeline of
    transformers asks of a model that classifies images.
    """

    dtype = torch.float32
    """Of the images that it takes, whatever the model computes in."""

    def __init__(self, adapter: Method[Any, Any]) -> None:
        super().__init__()
        self.adapter = adapter
        spec = adapter.engine.spec
        names = {number: spec.label(number) for number in range(spec.classes)}
        self.config = SimpleNamespace(id2label=names, num_labels=spec.classes, problem_type=None)

    @property
    def device(self) -> torch.device:
        return torch.device(self.adapter.engine.device)

    def forward(self, *images: object, **inputs: object) -> Any:  # noqa: ANN401 - as the adapter answers
        return self.adapter(*images, **inputs)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what was learnt, for ``state_dict()``; as tensors, which ``torch.load`` reads without pickle."""
        learnt = self.adapter.state_dict().items()
        return {name: torch.from_numpy(leaf.copy()) if isinstance(leaf, np.ndarray) else leaf for name, leaf in learnt}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        leaves = {name: leaf.numpy(force=True) if torch.is_tensor(leaf) else leaf for name, leaf in state.items()}
        self.adapter.load_state_dict(leaves)
