"""Writing ONNX graphs node by node."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from fozo.engines.onnx.schema import PRODUCER

Shape = Sequence[int | str]
Attribute = int | float | str | Sequence[int]


class Graph:
    """A graph under construction, over ``onnx.helper``: nodes are written as calls, and a tensor is its name."""

    def __init__(self, prefix: str = "") -> None:
        """``prefix`` begins the names of nodes and constants, where they join a graph that has names of its own."""
        self.prefix = prefix
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, shape: Shape) -> str:
        """Declare a float input; a dimension given by name is dynamic."""
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))
        return name

    def output(self, name: str, tensor: str, shape: Shape) -> None:
        self.nodes.append(helper.make_node("Identity", [tensor], [name], name=f"output_{name}"))
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def weight(self, name: str, array: npt.NDArray[np.generic]) -> str:
        """Store a tensor under a name; asking for the same name again gives the stored one."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def ints(self, *values: int) -> str:
        """Store a list of integers: a shape, axes, indices."""
        return self.weight(f"{self.prefix}ints_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def op(self, kind: str, *inputs: str, **attributes: Attribute) -> str:
        """Add a node with one output."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, outputs: int, *inputs: str, **attributes: Attribute) -> list[str]:
        """Add a node with several outputs."""
        name = f"{self.prefix}{kind}_{len(self.nodes)}"
        names = [f"{name}_{i}" for i in range(outputs)]
        node = helper.make_node(kind, list(inputs), names, name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self.nodes.append(node)
        return names

    def slice(self, x: str, start: int, stop: int, axis: int) -> str:
        """``x[start:stop]`` along an axis."""
        return self.op("Slice", x, self.ints(start), self.ints(stop), self.ints(axis))

    def shape(self, *dimensions: int | str) -> str:
        """Put a shape together from numbers and from dimensions that :meth:`dimension` read."""
        parts = [self.ints(part) if isinstance(part, int) else part for part in dimensions]
        return self.op("Concat", *parts, axis=0)

    def dimension(self, x: str, axis: int) -> str:
        """Length of ``x`` along an axis, read when the model runs."""
        return self.op("Shape", x, start=axis, end=axis + 1)

    def model(self, name: str, opset: int, ir_version: int) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, name, self.inputs, self.outputs, initializer=list(self.initializers.values())
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], producer_name=PRODUCER)
        model.ir_version = ir_version
        return model
