"""ResNet-50 (He et al., CVPR 2016) with Keras' published weights: a model that fozo knows nothing of.

The batch norms are folded into the convolutions, so that each has a weight and a bias. ``write_onnx`` writes the same
network as an ONNX file like those of other programs: images in, logits out, and no metadata.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BLOCKS = {2: "abc", 3: "abcd", 4: "abcdef", 5: "abc"}
SIZE = 224


def branches(stage: int, block: str) -> dict[str, tuple[int, int]]:
    """Stride and padding of each convolution of a block, by the end of its name."""
    stride = 2 if block == "a" and stage > 2 else 1
    shortcut = {"branch1": (stride, 0)} if block == "a" else {}
    return {"branch2a": (stride, 0), "branch2b": (1, 1), "branch2c": (1, 0), **shortcut}


class ResNet50(nn.Module):
    """Normalised images ``[B, 3, 224, 224]`` to logits ``[B, 1000]``."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.layers = nn.ParameterDict(
            {
                name.replace(".", ":"): nn.Parameter(tensor.float(), requires_grad=False)
                for name, tensor in weights.items()
            }
        )
        self.eval()

    def conv(self, x: Tensor, name: str, stride: int, padding: int) -> Tensor:
        return F.conv2d(x, self.layers[f"{name}:weight"], self.layers[f"{name}:bias"], stride, padding)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.pad(F.relu(self.conv(x, "conv1", 2, 3)), (1, 1, 1, 1)), 3, 2)
        for stage, blocks in BLOCKS.items():
            for block in blocks:
                shape, y, shortcut = branches(stage, block), x, x
                for branch in ("branch2a", "branch2b", "branch2c"):
                    y = self.conv(
                        y if branch == "branch2a" else F.relu(y), f"res{stage}{block}_{branch}", *shape[branch]
                    )
                if "branch1" in shape:
                    shortcut = self.conv(x, f"res{stage}{block}_branch1", *shape["branch1"])
                x = F.relu(shortcut + y)
        return F.linear(x.mean(dim=(2, 3)), self.layers["fc:weight"], self.layers["fc:bias"])


def load(path: Path) -> ResNet50:
    """Read the weights, which are in half precision."""
    return ResNet50(load_file(path))


def write_onnx(model: ResNet50, path: Path) -> None:
    torch.onnx.export(
        model, (torch.zeros(1, 3, SIZE, SIZE),), path, dynamo=False, opset_version=18, input_names=["input"],
        output_names=["output"], dynamic_axes={"input": {0: "N"}, "output": {0: "N"}},
    )  # fmt: skip
