"""ResNet-50 (He et al., CVPR 2016) with Keras' published weights: a model that fozo knows nothing of.

The batch norms are folded into the convolutions, so that each has a weight and a bias. ``write_onnx`` writes the same
network as an ONNX file like those of other programs: images in, logits out, and no metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper
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
    """Write the network with ``onnx.helper``, as a program would that never heard of fozo."""
    nodes: list[onnx.NodeProto] = []
    values = [numpy_helper.from_array(tensor.numpy(), name) for name, tensor in model.layers.items()]

    def op(kind: str, *inputs: str, **attributes: int | list[int]) -> str:
        node = helper.make_node(kind, list(inputs), [f"v{len(nodes)}"])
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        nodes.append(node)
        return f"v{len(nodes) - 1}"

    def conv(x: str, name: str, stride: int, padding: int) -> str:
        weight, bias = f"{name}:weight", f"{name}:bias"
        return op("Conv", x, weight, bias, strides=[stride] * 2, pads=[padding] * 4)

    def constant(name: str, value: npt.NDArray[np.int64]) -> str:
        values.append(numpy_helper.from_array(value, name))
        return name

    # After a ReLU nothing is below 0, so the pooling may pad with minus infinity where the model pads with 0.
    x = op("MaxPool", op("Relu", conv("input", "conv1", 2, 3)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, blocks in BLOCKS.items():
        for block in blocks:
            shape, y, shortcut = branches(stage, block), x, x
            for branch in ("branch2a", "branch2b", "branch2c"):
                y = conv(y if branch == "branch2a" else op("Relu", y), f"res{stage}{block}_{branch}", *shape[branch])
            if "branch1" in shape:
                shortcut = conv(x, f"res{stage}{block}_branch1", *shape["branch1"])
            x = op("Relu", op("Add", shortcut, y))
    pooled = op("ReduceMean", x, constant("axes", np.array([2, 3], dtype=np.int64)), keepdims=0)
    nodes.append(helper.make_node("Gemm", [pooled, "fc:weight", "fc:bias"], ["output"], transB=1))
    images = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, SIZE, SIZE])
    logits = helper.make_tensor_value_info("output", TensorProto.FLOAT, ["N", 1000])
    graph = helper.make_graph(nodes, "resnet50", [images], [logits], initializer=values)
    file = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    file.ir_version = 9
    onnx.checker.check_model(file)
    onnx.save(file, path)
