"""Finding the tokens of a transformer in an ONNX graph that another program wrote.

The graph's structure names the tensors: a chain of sums ``x + f(x)``, two for each block, attention and then MLP, each
read by a norm and by the next sum alone. What they mean is found by running parts of the graph: one pixel has to change
exactly one token, prefix + row * columns + column; tokens that are the same for all images are the prefix; and changing
tokens that leave the last block shows which of them the head reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import NodeProto, TensorProto, helper

from fozo.engines.tokens import LEAST_CHANGE, NOT_A_TRANSFORMER, NoTokensError, find_layout
from fozo.types import Floats

QUANTISERS = {"QuantizeLinear", "DequantizeLinear"}
ALIASES = {"Identity", "Cast", "Dropout", *QUANTISERS}  # one value under another name
NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization", "ReduceMean"}
ELEMENTWISE = ALIASES | NORMS | {"Add", "Sub", "Mul", "Div", "Pow", "Sqrt", "Reciprocal"}  # what norms are written with
ATTENTIONS = {"Softmax", "QLinearSoftmax", "Attention", "MultiHeadAttention"}
SHAPES = {"Shape", "Size", "ConstantOfShape"}  # of which the output does not depend on values
PRODUCTS = {"Gemm", "MatMul", "FusedMatMul", "MatMulInteger", "QGemm", "QLinearMatMul"}
USUAL_SIZES = (224, 384, 256, 336, 448, 518, 512)
HEAD_ROWS = 64  # vectors that are put through the head at a time
DTYPES = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


@dataclass(frozen=True)
class Stream:
    """Where the tokens of a graph are, and what they mean."""

    entries: list[list[str]]
    """Tensors ``[B, T, d]`` that enter each block, and those that leave the last; several names for equal values."""
    normed: list[str]
    """What the first norm of each block makes of them."""
    head: Head
    tokens: int
    dim: int
    prefix: int
    """How many tokens stand before the patches."""
    grid: tuple[int, int]
    dtype: np.dtype[np.floating]
    class_token: bool
    """Whether the head reads the first of the prefix."""


class Probe:
    """Runs parts of a graph, unoptimised: any tensors as outputs, and some replaced by inputs."""

    def __init__(self, model: onnx.ModelProto, image_size: tuple[int, int] | None) -> None:
        self.model = model
        (images,) = model.graph.input
        kind = images.type.tensor_type
        sides = [side.dim_value for side in kind.shape.dim]
        if len(sides) != 4 or kind.elem_type not in DTYPES:
            raise NoTokensError("it does not take images [B, channels, height, width] in float32 or float16")
        if sides[1] not in (0, 1, 3):
            raise NoTokensError(f"it takes {sides[1]} channels, or has them last")
        graphs = [model.graph.node, *(function.node for function in model.functions)]
        if ATTENTIONS.isdisjoint(node.op_type for nodes in graphs for node in nodes):
            raise NoTokensError(f"it has no attention, {NOT_A_TRANSFORMER}")
        self.name = images.name
        self.dtype = DTYPES[kind.elem_type]
        self.batch = sides[0]  # 0 where it is free
        self.output = model.graph.output[0].name
        self.shape = (sides[1] or 3, sides[2], sides[3])
        if 0 in self.shape:
            self.shape = (self.shape[0], *(image_size or self._only_size()))
        if self.batch == 0 and not self._takes_several():
            self.batch = 1

    def _only_size(self) -> tuple[int, int]:
        sizes = []
        for size in USUAL_SIZES:
            self.shape = (self.shape[0], size, size)
            with suppress(Exception):  # whatever the runtime raises, this size does not fit
                self.run([self.output], self.image(0))
                sizes.append((size, size))
        if len(sizes) != 1:
            raise NoTokensError("it does not state the size of its images; give image_size=")
        return sizes[0]

    def _takes_several(self) -> bool:
        """Whether images of one batch do not disturb each other: some graphs promise a free batch and have none."""
        images = np.concatenate([self.image(0), self.image(1)])
        try:
            run = self.session([self.output])
            (together,) = run(images, {})
        except Exception:  # whatever the runtime raises
            return False
        alone = run(images[1:], {})[0]
        return len(together) == 2 and np.allclose(together[1:], alone, rtol=0.1, atol=0.1 * np.abs(alone).max())

    def image(self, seed: int) -> Floats:
        numbers = np.random.Generator(np.random.Philox(seed))
        image: Floats = numbers.standard_normal((self.batch or 1, *self.shape)).astype(self.dtype)
        return image

    def run(self, outputs: Sequence[str], images: Floats, replaced: Mapping[str, Floats] | None = None) -> list[Floats]:
        results: list[Floats] = self.session(outputs, replaced)(images, replaced or {})
        return results

    def session(self, outputs: Sequence[str], replaced: Mapping[str, Floats] | None = None) -> Any:  # noqa: ANN401
        """Make a function of images and of tensors that replace those of the graph, which are like ``replaced``."""
        replaced = replaced or {}
        excerpt = onnx.ModelProto()
        excerpt.CopyFrom(self.model)
        inputs = {name: f"{name} replaced" for name in replaced}
        for node in excerpt.graph.node:
            node.input[:] = [inputs.get(name, name) for name in node.input]
        for name, value in replaced.items():
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            excerpt.graph.input.append(helper.make_tensor_value_info(inputs[name], kind, None))
        del excerpt.graph.output[:]
        excerpt.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(excerpt.SerializeToString(), options, providers=["CPUExecutionProvider"])

        def run(images: Floats, values: Mapping[str, Floats]) -> list[Floats]:
            feeds = {self.name: images, **{inputs[name]: value for name, value in values.items()}}
            results: list[Floats] = session.run(None, feeds)
            return results

        return run


class Index:
    """Who makes and who reads each tensor."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes = list(graph.node)
        self.makers = {name: node for node in self.nodes for name in node.output if name}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.live = {graph.input[0].name}
        """Tensors that depend on the image's values."""
        before = 0
        while len(self.live) > before:  # some programs write nodes in no order
            before = len(self.live)
            for node in self.nodes:
                if node.op_type not in SHAPES and not self.live.isdisjoint(node.input):
                    self.live.update(filter(None, node.output))
        self.readers: dict[str, list[NodeProto]] = {}
        for node in self.nodes:
            if not self.live.isdisjoint(node.output):
                for name in set(node.input):
                    self.readers.setdefault(name, []).append(node)

    def root(self, name: str) -> str:
        """The tensor that was computed, before casts and quantisers."""
        while name in self.makers and self.makers[name].op_type in ALIASES:
            source = self.makers[name].input[0]
            computed = self.makers[source].op_type if source in self.makers else ""
            if self.makers[name].op_type == "DequantizeLinear" and computed not in QUANTISERS:
                break  # computed in integers
            name = source
        return name

    def above(self, name: str, stop: str = "") -> set[str]:
        """All live tensors that one is computed from, itself included, up to ``stop``."""
        seen: set[str] = set()
        unvisited = [name]
        while unvisited:
            name = unvisited.pop()
            if name in self.live and name != stop and name not in seen:
                seen.add(name)
                if name in self.makers:
                    unvisited += self.makers[name].input
        return seen

    def attentions(self, names: Iterable[str]) -> int:
        return sum(self.makers[name].op_type in ATTENTIONS for name in names if name in self.makers)

    def faces(self, name: str) -> list[str]:
        """Where a tensor may be moved without a quantiser clipping it: after the ones that all of its readers share."""
        faces = [name]
        while True:
            readers = [node for face in faces for node in self.readers.get(face, ())]
            kinds = {node.op_type in QUANTISERS for node in readers}
            if kinds == {True, False}:
                raise NoTokensError("its tokens are quantised beside where they are read")
            if kinds != {True}:
                return faces
            faces = [node.output[0] for node in readers]

    def normed(self, faces: Sequence[str], following: str) -> str:
        """What the one norm that reads a tensor makes of it; ``following`` is the sum that reads the tensor too."""
        seen = set(faces)
        unvisited = [node for face in faces for node in self.readers[face] if node.output[0] != following]
        kinds = set()
        results = set()
        while unvisited:
            node = unvisited.pop()
            if node.op_type in ELEMENTWISE and node.output[0] != following:
                kinds.add(node.op_type)
                if node.output[0] not in seen:
                    seen.add(node.output[0])
                    unvisited += self.readers.get(node.output[0], [])
            else:
                results |= {self.root(name) for name in node.input if name in seen}
        if len(results) != 1 or not kinds & NORMS:
            raise NoTokensError("what its blocks read is not a norm of their tokens alone")
        return results.pop()


def find_stream(model: onnx.ModelProto, probe: Probe) -> Stream:
    """Find the tokens, or raise :class:`NoTokensError` with the reason."""
    index = Index(model.graph)
    chain = _chain(index, probe)
    depth = len(chain) // 2
    if len(chain) != 2 * depth + 1:
        raise NoTokensError(f"its tokens go through {len(chain) - 1} sums, which are not two for each block")
    for i, (skipped, total) in enumerate(pairwise(chain)):
        attends = index.attentions(index.above(total, stop=skipped)) > 0
        is_first_sum = i % 2 == 0
        if attends != is_first_sum:
            raise NoTokensError("its blocks are not attention and then an MLP")
        index.normed(index.faces(skipped), total)
    entries = [index.faces(name) for name in chain[::2]]
    normed = [index.normed(faces, total) for faces, total in zip(entries, chain[1::2], strict=False)]
    head = _head(model, index, probe)
    after = index.above(head.logits) - index.above(chain[-1])
    if index.attentions(after) > 1:
        raise NoTokensError(f"it attends {index.attentions(after)} times after the {depth} blocks that were found")
    run = probe.session(entries[0][:1])
    layout = find_layout(lambda images: run(images, {})[0], probe.image(0), probe.image(1))
    tokens = layout.tokens
    reads_first, reads_patches = _read_by(probe, entries[-1], head.pooled, layout.prefix)
    if not reads_first and not reads_patches:
        raise NoTokensError("its head reads none of the tokens that were found")
    return Stream(
        entries=entries,
        normed=normed,
        head=head,
        tokens=tokens.shape[1],
        dim=tokens.shape[2],
        prefix=layout.prefix,
        grid=layout.grid,
        dtype=tokens.dtype,
        class_token=reads_first,
    )


def _chain(index: Index, probe: Probe) -> list[str]:
    """The longest chain of sums ``x + f(x)`` over ``[B, T, d]``, from what enters the first block."""
    sums = [node for node in index.nodes if node.op_type == "Add" and index.live.issuperset(node.input)]
    names = [node.output[0] for node in sums]
    values = probe.run([*names, probe.output], probe.image(0))
    shapes = {name: value.shape for name, value in zip(names, values, strict=False)}
    chains: dict[str, list[str]] = {}
    for node in sorted(sums, key=lambda node: len(index.above(node.output[0]))):
        one, other = (index.root(name) for name in node.input)
        skipped = one if one in index.above(other) else other
        total = node.output[0]
        shape = shapes[total]
        related = one in index.above(other) or other in index.above(one)
        if not related or len(shape) != 3 or shape[1] < 2 or shapes.get(skipped, shape) != shape:
            continue
        chains[total] = [*chains.get(skipped, [skipped]), total]
    if not chains:
        raise NoTokensError(f"it has no sums x + f(x) over [B, tokens, width], {NOT_A_TRANSFORMER} of that kind")
    return max(chains.values(), key=len)


@dataclass(frozen=True)
class Head:
    """What is affine between some tensors and the logits."""

    output: str
    """The graph's output, which may be probabilities."""
    final: str
    """What makes it of the logits: ``Softmax``, ``LogSoftmax`` or nothing."""
    logits: str
    pooled: list[str]
    widths: list[int]
    weight: Floats
    bias: Floats


def _head(model: onnx.ModelProto, index: Index, probe: Probe) -> Head:
    """Find what the last products read, and measure the head: its answers to unit vectors are its weights."""
    names = [output.name for output in model.graph.output]
    values = probe.run(names, probe.image(0))
    outputs = [name for name, value in zip(names, values, strict=True) if value.ndim == 2 and name in index.live]
    if len(outputs) != 1:
        raise NoTokensError(f"{len(outputs)} of its {len(names)} outputs are [B, classes], where one is needed")
    logits = index.root(outputs[0])
    maker = index.makers.get(logits)
    final = ""
    if maker is not None and maker.op_type in ("Softmax", "LogSoftmax"):
        final = maker.op_type
        logits = index.root(maker.input[0])
    pooled = sorted(_read_by_products(index, logits))
    read = dict(zip(pooled, probe.run(pooled, probe.image(0)), strict=True))
    widths = [value.shape[-1] for value in read.values()]
    run = probe.session([logits], read)
    rows = probe.batch or HEAD_ROWS
    images = np.repeat(probe.image(0)[:1], rows, axis=0)
    units = np.eye(sum(widths) + rows, sum(widths), k=-1, dtype=np.float32)  # zeros first
    answers = []
    for start in range(0, len(units) - rows + 1, rows):
        parts = np.split(units[start : start + rows], np.cumsum(widths)[:-1], axis=1)
        vectors = {
            name: part.reshape(rows, *value.shape[1:]).astype(value.dtype)
            for (name, value), part in zip(read.items(), parts, strict=True)
        }
        answers.append(run(images, vectors)[0].reshape(rows, -1))
    table = np.concatenate(answers).astype(np.float32)
    return Head(outputs[0], final, logits, pooled, widths, table[1 : 1 + sum(widths)] - table[0], table[0])


def _read_by_products(index: Index, logits: str) -> set[str]:
    """What the last matrix products before the logits read, as floats."""
    pooled = set()
    unvisited = [logits]
    while unvisited:
        node = index.makers.get(unvisited.pop())
        if node is None:
            raise NoTokensError("its output is not a linear head's")
        live = [name for name in node.input if name in index.live]
        if node.op_type in PRODUCTS or node.op_type == "DynamicQuantizeLinear":
            maker = index.makers.get(live[0], node)
            quantised = maker.op_type in ("DynamicQuantizeLinear", "QuantizeLinear")
            pooled.add(maker.input[0] if quantised else live[0])
        else:
            unvisited += live
    return pooled


def _read_by(probe: Probe, exits: Sequence[str], pooled: Sequence[str], prefix: int) -> tuple[bool, bool]:
    """Whether the head reads the first token, and the patches."""
    image = probe.image(0)
    (tokens,) = probe.run(exits[:1], image)
    run = probe.session(pooled, dict.fromkeys(exits, tokens))

    def reads(token: int) -> bool:
        changed = tokens.copy()
        changed[:, token] = np.random.Generator(np.random.Philox(2)).permuted(changed[:, token], axis=-1)
        before = run(image, dict.fromkeys(exits, tokens))
        after = run(image, dict.fromkeys(exits, changed))
        return any(np.abs(a - b).max() > LEAST_CHANGE * np.std(b) for a, b in zip(after, before, strict=True))

    return prefix > 0 and reads(0), reads((prefix + tokens.shape[1]) // 2)


def unfused(graph: onnx.GraphProto) -> Iterator[NodeProto]:
    """Write sums that were fused with norms or quantisers as sums, so that they have a name."""
    makers = {name: node.op_type for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type == "QLinearAdd":
            terms = [f"{node.output[0]} one", f"{node.output[0]} other"]
            total = f"{node.output[0]} sum"
            yield helper.make_node("DequantizeLinear", node.input[:3], terms[:1])
            yield helper.make_node("DequantizeLinear", node.input[3:6], terms[1:])
            yield helper.make_node("Add", terms, [total])
            yield helper.make_node("QuantizeLinear", [total, *node.input[6:]], node.output)
        elif node.op_type == "SkipLayerNormalization":
            terms = list(node.input[:2])
            bias = node.input[4] if len(node.input) > 4 else ""
            named = node.output[3] if len(node.output) > 3 else ""
            total = named or f"{node.output[0]} sum"
            if bias:  # it belongs to the branch, not to the tokens
                branch = 0 if makers.get(terms[0]) == "MatMul" else 1
                yield helper.make_node("Add", [terms[branch], bias], [f"{total} branch"])
                terms[branch] = f"{total} branch"
            yield helper.make_node("Add", terms, [total])
            scale_and_shift = node.input[2:4]
            norm = helper.make_node("LayerNormalization", [total, *scale_and_shift], node.output[:1], axis=-1)
            norm.attribute.extend(attribute for attribute in node.attribute if attribute.name == "epsilon")
            yield norm
        else:
            yield node
