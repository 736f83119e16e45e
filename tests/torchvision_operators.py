"""Let the tests import timm where torchvision was built for another torch.

PyPI's torchvision is built for CUDA. Beside a CPU build of torch its extension does not load, and then its import fails
for two operators that nothing here calls.
"""

import importlib.util
from pathlib import Path

import torch

SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def declare_missing() -> None:
    """Declare the operators that ``import torchvision`` asks for, where its extension cannot declare them."""
    package = importlib.util.find_spec("torchvision")
    if package is None or package.origin is None:
        return
    for extension in Path(package.origin).parent.glob("_C.*"):
        try:
            torch.ops.load_library(extension)  # type: ignore[no-untyped-call]
        except OSError:
            for operator in ("nms", "qnms"):
                torch.library.define(f"torchvision::{operator}", SCHEMA)
