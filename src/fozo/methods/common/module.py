"""An adapter as a layer of PyTorch, for ``nn.Sequential``, Lightning and whatever else takes modules."""

from typing import Any

import torch
from torch import nn

from fozo.methods.method import Method


class AdapterModule(nn.Module):
    """Calls an adapter, which adapts in evaluation mode too. It has no parameters, and no gradient flows through it.

    ``torch.compile`` leaves it as it is. What was learnt is in its ``state_dict()``.
    """

    def __init__(self, adapter: Method[Any, Any]) -> None:
        super().__init__()
        self.adapter = adapter

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def forward(self, *images: object, **inputs: object) -> Any:  # noqa: ANN401 - as the adapter answers
        return self.adapter(*images, **inputs)

    def get_extra_state(self) -> dict[str, Any]:
        """Return what was learnt, for ``state_dict()``."""
        return self.adapter.state_dict()

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.adapter.load_state_dict(state)
