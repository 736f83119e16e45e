"""Giving a transformer that another program wrote as ONNX fozo's knobs and taps, and proving that they are right.

What :mod:`fozo.engines.onnx.stream` found is not believed. A graph is adopted only if its logits without knobs are the
original's, if moving the tokens that enter a block does what feeding moved tokens into the original does, and if every
move reaches the blocks after it and none before.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import NodeProto, TensorProto, compose, helper, inliner
from scipy.special import log_softmax

from fozo.engines.onnx.export import ONE_FILE_BYTES, write_model
from fozo.engines.onnx.graph import Graph
from fozo.engines.onnx.runtimes import OnnxEngine
from fozo.engines.onnx.schema import (
    HEAD_BIAS,
    HEAD_WEIGHT,
    IMAGES,
    MATRICES,
    MOVES,
    PROMPTS,
    model_fingerprint,
)
from fozo.engines.onnx.stream import QUANTISERS, Probe, Stream, find_stream, unfused
from fozo.engines.tokens import NoTokensError, check_reach
from fozo.types import SAMPLED_TOKENS, Floats, Knobs, Move, Spec, Tap, taps_of

LEAST_OPSET = 10  # the first whose Slice takes its bounds as inputs
LEAST_IR = 4  # the first whose constants need not be inputs
ORIGINAL = "original/"
INSERTED = "fozo/"
TOLERANCE = 1e-5
"""By how much logits may differ, as a part of the largest one: a runtime fuses the two graphs differently."""
HALF_TOLERANCE = 2e-2
INT8_TOLERANCE = 0.15
END = 1 << 62
BRANCHES = {"If", "Loop", "Scan"}


@dataclass(frozen=True)
class Adopted:
    """A graph with knobs and taps, and what it is."""

    model: onnx.ModelProto
    spec: Spec

    def write(self, path: Path) -> None:
        write_model(self.model, self.spec, path)

    def named(self, name: str) -> Adopted:
        return replace(self, spec=replace(self.spec, name=name))

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Write it to a file that is there until the engine is made."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "adopted.onnx"
            self.write(path)
            yield path

    def prompts(self) -> bool:
        return any(value.name == PROMPTS for value in self.model.graph.input)


def adopt(path: Path, image_size: tuple[int, int] | None = None, *, reverse: bool = False) -> Adopted:
    """Find the tokens of a graph, and give it knobs and taps; ``reverse`` for one that reads blue first.

    Raises :class:`NoTokensError` if anything is not as in a plain transformer.
    """
    try:
        return _adopt(path, image_size, reverse=reverse)
    except NoTokensError:
        raise
    except Exception as error:  # a graph may be broken in any way, and what reads it raises anything
        reason = str(error).partition("\n")[0][:200]
        raise NoTokensError(f"its graph cannot be taken apart ({type(error).__name__}: {reason})") from error


def _adopt(path: Path, image_size: tuple[int, int] | None, *, reverse: bool) -> Adopted:
    model = _load(path)
    probe = Probe(model, image_size)
    stream = find_stream(model, probe)
    height, width = probe.shape[1:]
    rows, columns = stream.grid
    spec = Spec(
        path.stem,
        depth=len(stream.entries) - 1,
        dim=stream.dim,
        classes=len(stream.head.bias),
        channels=probe.shape[0],
        image_size=(height, width),
        patch_size=(height // rows, width // columns),
        head_width=len(stream.head.weight),
        fingerprint=f"adopted-{model_fingerprint(path)}",
        class_token=stream.class_token,
    )
    if spec.head_width < spec.dim:
        raise NoTokensError(f"its head reads {spec.head_width} numbers, fewer than the {spec.dim} of a token")
    proof = Proof(model, probe, stream, spec, reverse=reverse)
    if probe.batch == 0:
        growing = Adopted(Insertion(model, stream, probe, spec, reverse, takes_prompts=True).build(), spec)
        if proof.takes_prompts(growing):
            proof.check(growing)
            return growing
    adopted = Adopted(Insertion(model, stream, probe, spec, reverse, takes_prompts=False).build(), spec)
    proof.check(adopted)
    return adopted


def _load(path: Path) -> onnx.ModelProto:
    """Read a graph, its names out of the way of fozo's, its nodes in order and its sums apart from their norms."""
    model = onnx.load(path)
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > ONE_FILE_BYTES:
        raise NoTokensError("it is larger than 2 GB")
    if model.functions:
        model = inliner.inline_local_functions(model)
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 0)
    if opset < LEAST_OPSET:
        raise NoTokensError(f"it is of opset {opset}, and {LEAST_OPSET} is the oldest that can be adopted")
    compose.add_prefix(model, ORIGINAL, inplace=True)
    graph = model.graph
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1:
        raise NoTokensError(f"it takes {len(inputs)} inputs, not images alone")
    branches = BRANCHES & {node.op_type for node in graph.node}
    if branches:
        raise NoTokensError(f"its graph branches ({branches.pop()})")
    nodes = _sorted(list(unfused(graph)), {*constants, inputs[0].name, ""})
    del graph.input[:], graph.node[:], graph.value_info[:]
    graph.input.extend(inputs)
    graph.node.extend(nodes)
    model.ir_version = max(model.ir_version, LEAST_IR)
    return model


def _sorted(nodes: list[NodeProto], known: set[str]) -> list[NodeProto]:
    """Nodes in an order in which each comes after those that it reads."""
    order = []
    waiting = deque(nodes)
    idle = 0
    while waiting and idle < len(waiting):
        node = waiting.popleft()
        if known.issuperset(node.input):
            known.update(node.output)
            order.append(node)
            idle = 0
        else:
            waiting.append(node)
            idle += 1
    if waiting:
        raise NoTokensError(f"its graph reads {waiting[0].input[0]!r}, which nothing makes")
    return order


@dataclass(eq=False)
class Insertion:
    """Writes knobs and taps into a graph, between the tokens that enter a block and all that reads them."""

    original: onnx.ModelProto
    stream: Stream
    probe: Probe
    spec: Spec
    reverse: bool
    takes_prompts: bool

    def __post_init__(self) -> None:
        probe = self.probe
        spec = self.spec
        self.model = onnx.ModelProto()
        self.model.CopyFrom(self.original)
        self.g = Graph(INSERTED)
        batch = probe.batch or "B"
        self.images = self.g.input(IMAGES, [batch, *probe.shape])
        rows = 1 if probe.batch == 1 else "n"
        self.moves = [self.g.input(name, [rows, spec.depth, spec.dim]) for name in MOVES]
        self.prompts = self.g.input(PROMPTS, [batch, "p", spec.dim]) if self.takes_prompts else None
        share = np.full((1, 1, spec.patches), 1 / spec.patches, np.float32)
        self.share = self.g.weight(f"{INSERTED}share", share)
        if spec.aligned:
            self.matrices = self.g.input(MATRICES, [rows, "a", spec.dim, spec.dim])
        self.moments: list[str] = []
        self.taps: dict[Tap, list[str]] = {}
        self.read_instead: dict[str, str] = {}

    def build(self) -> onnx.ModelProto:
        stream = self.stream
        last = self.spec.depth
        for i, faces in enumerate(stream.entries):
            tokens = faces[0]
            patches = self._patches(tokens)
            if i > 0:
                self._tap(Tap.CLS, self._token(tokens))
            if i < last:
                self._tap_moments(patches, i)
            if 0 < i < last:
                self._tap(Tap.FEATURES, self._token(stream.normed[i]))
            moved = self._moved(tokens, patches, i) if i < last else self._without_prompts(tokens)
            self.read_instead |= dict.fromkeys(faces, moved)
        self._leave()
        return self._joined()

    def _patches(self, tokens: str) -> str:
        return self.g.slice(tokens, self.stream.prefix, self.stream.tokens, 1)

    def _moved(self, tokens: str, patches: str, block: int) -> str:
        """Tokens as the block reads them: CLS, other prefix tokens, patches, prompts."""
        g = self.g
        cls_scale, cls_shift, scale, shift = (
            self._like_tokens(g.slice(move, block, block + 1, 1)) for move in self.moves
        )
        if block in self.spec.aligned:
            patches = self._multiplied(patches, block)
        parts = [g.op("Add", g.op("Mul", patches, scale), shift)]
        first_fixed = 0
        if self.spec.class_token:
            cls = g.slice(tokens, 0, 1, 1)
            parts.insert(0, g.op("Add", g.op("Mul", cls, cls_scale), cls_shift))
            first_fixed = 1
        if first_fixed < self.stream.prefix:
            parts.insert(first_fixed, g.slice(tokens, first_fixed, self.stream.prefix, 1))
        if self.prompts is not None:
            added = self._like_tokens(self.prompts) if block == 0 else g.slice(tokens, self.stream.tokens, END, 1)
            parts.append(added)
        return g.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]

    def _multiplied(self, patches: str, block: int) -> str:
        """Patches by the matrix of a block; the input may have none, and then no product is computed."""
        g = self.g
        row = self.spec.aligned.index(block)
        matrix = self._like_tokens(g.slice(self.matrices, row, row + 1, 1))  # [n or 1, 1 or 0, d, d]
        matrices = g.slice(g.op("Shape", matrix), 1, 2, 0)
        count = g.op("Mul", matrices, g.ints(self.spec.patches))
        with_matrix = g.op("Slice", patches, g.ints(0), count, g.ints(1))
        without = g.op("Slice", patches, count, g.ints(self.spec.patches), g.ints(1))
        # A 0 in a shape keeps the dimension of its place. Where the counts are 0, those dimensions are 0, or d.
        by_matrix = g.op("Concat", g.ints(0), matrices, count, g.ints(self.spec.dim), axis=0)
        product = g.op("MatMul", g.op("Reshape", with_matrix, by_matrix), matrix)
        joined = g.op("Concat", g.ints(0), count, g.ints(self.spec.dim), axis=0)
        return g.op("Concat", g.op("Reshape", product, joined), without, axis=1)

    def _without_prompts(self, tokens: str) -> str:
        return tokens if self.prompts is None else self.g.slice(tokens, 0, self.stream.tokens, 1)

    def _token(self, tokens: str) -> str:
        """CLS, or the mean patch where there is none: ``[n, 1, d]``."""
        if self.spec.class_token:
            return self._float(self.g.slice(tokens, 0, 1, 1))
        return self._mean(self._float(self._patches(tokens)))

    def _tap_moments(self, patches: str, block: int) -> None:
        """Mean and variance over tokens; about the mean, against cancellation. Before some blocks covariances, too."""
        g = self.g
        patches = self._float(patches)
        mean = self._mean(patches)
        centred = g.op("Sub", patches, mean)
        self._tap(Tap.PATCH_MEAN, mean)
        self._tap(Tap.PATCH_VARIANCE, self._mean(g.op("Mul", centred, centred)))
        if block not in self.spec.aligned:
            return
        count = self.spec.patches
        start = block % SAMPLED_TOKENS % count
        sampled = g.op("Slice", patches, g.ints(start), g.ints(count), g.ints(1), g.ints(SAMPLED_TOKENS))
        samples = len(range(start, count, SAMPLED_TOKENS))
        share = np.full((1, 1, samples), 1 / samples, np.float32)
        sampled_mean = g.op("MatMul", g.weight(f"{INSERTED}share_{samples}", share), sampled)
        sampled_centred = g.op("Sub", sampled, sampled_mean)
        scaled = g.op("Mul", sampled_centred, g.weight(f"{INSERTED}part_{samples}", share[:, :, :1]))
        covariance = g.op("MatMul", g.op("Transpose", sampled_centred, perm=[0, 2, 1]), scaled)
        self.moments += [sampled_mean, covariance]

    def _mean(self, patches: str) -> str:
        return self.g.op("MatMul", self.share, patches)  # ReduceMean takes its axes differently in each opset

    def _tap(self, tap: Tap, layer: str) -> None:
        self.taps.setdefault(tap, []).append(layer)

    def _leave(self) -> None:
        g = self.g
        head = self.stream.head
        pooled = [
            self._float(g.op("Reshape", name, g.ints(-1, width)))
            for name, width in zip(head.pooled, head.widths, strict=True)
        ]
        joined = g.op("Concat", *pooled, axis=1) if len(pooled) > 1 else pooled[0]
        features = g.slice(joined, 0, self.spec.dim, 1)
        self._tap(Tap.FEATURES, g.op("Reshape", features, g.ints(-1, 1, self.spec.dim)))
        for tap, layers in self.taps.items():
            g.output(tap.value, g.op("Concat", *layers, axis=1), ["N", self.spec.depth, self.spec.dim])
        if self.moments:
            blocks = len(self.spec.aligned)
            shape = (blocks, self.spec.dim + 1, self.spec.dim)
            moments = g.op("Reshape", g.op("Concat", *self.moments, axis=1), g.ints(-1, *shape))
            g.output(Tap.PATCH_MOMENTS.value, moments, ["N", *shape])
        g.output(Tap.POOLED.value, joined, ["N", self.spec.head_width])
        for name, array in ((HEAD_WEIGHT, head.weight), (HEAD_BIAS, head.bias)):
            g.output(name, g.weight(f"{INSERTED}{name}", array), array.shape)

    def _joined(self) -> onnx.ModelProto:
        """Put both graphs together."""
        g = self.g
        graph = self.model.graph
        pixels = g.op("Gather", self.images, g.ints(2, 1, 0), axis=1) if self.reverse else self.images
        names = {**self.read_instead, graph.input[0].name: self._cast(pixels, self.probe.dtype)}
        for node in graph.node:
            node.input[:] = [names.get(name, name) for name in node.input]
        graph.initializer.extend(g.initializers.values())
        known = {"", *(tensor.name for tensor in graph.initializer), *(value.name for value in g.inputs)}
        nodes = _sorted([*graph.node, *g.nodes], known)
        del graph.node[:], graph.input[:], graph.output[:]
        graph.node.extend(nodes)
        graph.input.extend(g.inputs)
        graph.output.extend(g.outputs)
        return self.model

    def _cast(self, name: str, dtype: npt.DTypeLike) -> str:
        return self.g.op("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def _like_tokens(self, name: str) -> str:
        return self._cast(name, self.stream.dtype)

    def _float(self, name: str) -> str:
        return self._cast(name, np.float32)


class Proof:
    """Compares an adopted graph with the original, part by part."""

    def __init__(self, model: onnx.ModelProto, probe: Probe, stream: Stream, spec: Spec, *, reverse: bool) -> None:
        self.probe = probe
        self.stream = stream
        self.spec = spec
        self.image = probe.image(3)
        seen = self.image[:1, ::-1] if reverse else self.image[:1]
        self.seen = np.ascontiguousarray(seen, np.float32)
        kinds = {node.op_type for node in model.graph.node}
        self.tolerance = TOLERANCE
        if any(tensor.data_type == TensorProto.FLOAT16 for tensor in model.graph.initializer):
            self.tolerance = HALF_TOLERANCE
        if kinds & QUANTISERS or any("Integer" in kind or kind.startswith("QLinear") for kind in kinds):
            self.tolerance = INT8_TOLERANCE
        self.numbers = np.random.Generator(np.random.Philox(4))

    def takes_prompts(self, adopted: Adopted) -> bool:
        """Whether the sequence may grow: attending to every token twice is attending to every token once."""
        engine = opened(adopted)
        batch = engine.check(self.seen)
        (tokens,) = self.probe.run(self.stream.entries[0][:1], self.image)
        tokens = np.asarray(tokens[:1], np.float32)
        try:
            doubled = engine.run(batch, Knobs(prompts=tokens))[Tap.LOGITS]
            changed = engine.run(batch, Knobs(prompts=np.roll(tokens, 1, axis=2)))[Tap.LOGITS]
        except Exception:  # whatever the runtime raises: the graph wants its own number of tokens
            return False
        plain = engine.run(batch)[Tap.LOGITS]
        return _distance(doubled, plain) <= 10 * self.tolerance < _distance(changed, plain)

    def check(self, adopted: Adopted) -> None:
        """Raise :class:`NoTokensError` where knobs or taps are not those of the original graph."""
        engine = opened(adopted)
        batch = engine.check(self.seen)
        taps = engine.run(batch, taps=taps_of(engine))
        self._check_taps(taps)
        for block in {0, *self.spec.aligned, self.spec.depth - 1}:
            self._check_move(engine, block)
        check_reach(engine, batch, taps)

    def _check_taps(self, taps: dict[Tap, Floats]) -> None:
        depth = self.spec.depth
        stream = self.stream
        names = [faces[0] for faces in stream.entries]
        *entries, output = self.probe.run([*names, stream.head.output], self.image)
        tokens = np.stack([entry[0].astype(np.float32) for entry in entries])  # [L + 1, T, d]
        patches = tokens[:, stream.prefix :]
        cls = tokens[1:, 0] if self.spec.class_token else patches[1:].mean(axis=1)
        expected = {
            Tap.LOGITS: output[0],
            Tap.CLS: cls,
            Tap.PATCH_MEAN: patches[:depth].mean(axis=1),
            Tap.PATCH_VARIANCE: patches[:depth].var(axis=1),
        }
        if self.spec.aligned:
            expected[Tap.PATCH_MOMENTS] = np.stack([_sampled_moments(patches[i], i) for i in self.spec.aligned])
        values = {tap: taps[tap][0, 0] for tap in expected}
        if stream.head.final:
            values[Tap.LOGITS] = log_softmax(values[Tap.LOGITS])
        if stream.head.final == "Softmax":
            values[Tap.LOGITS] = np.exp(values[Tap.LOGITS])
        for tap, value in expected.items():
            distance = _distance(values[tap], value)
            if not distance <= self.tolerance * (1 if tap is Tap.LOGITS else 10):
                raise NoTokensError(
                    f"its {tap.value} would differ from the original's by {distance:.1e} of the largest"
                )

    def _check_move(self, engine: OnnxEngine, block: int) -> None:
        """Compare a random move of the tokens that enter a block with feeding moved tokens into the original."""
        faces = self.stream.entries[block]
        (tokens,) = self.probe.run(faces[:1], self.image)
        shape = (1, 1, self.spec.depth, self.spec.dim)
        moves = []
        moved = tokens.copy()
        prefix = self.stream.prefix
        matrices = None
        if block in self.spec.aligned:
            identity = np.eye(self.spec.dim)
            matrices = np.tile(identity, (1, 1, len(self.spec.aligned), 1, 1))
            noise = self.numbers.standard_normal(identity.shape) / self.spec.dim**0.5
            matrices[0, 0, self.spec.aligned.index(block)] += 0.3 * noise
            moved[:, prefix:] = moved[:, prefix:] @ matrices[0, 0, self.spec.aligned.index(block)]
        for which in (slice(0, int(self.spec.class_token)), slice(prefix, None)):
            scale = np.ones(shape, np.float32)
            shift = np.zeros(shape, np.float32)
            scale[0, 0, block] += 0.2 * self.numbers.standard_normal(self.spec.dim)
            shift[0, 0, block] = tokens.std() * self.numbers.standard_normal(self.spec.dim)
            moves.append(Move(scale, shift))
            moved[:, which] = moved[:, which] * scale[0, 0, block] + shift[0, 0, block]
        moved = moved.astype(tokens.dtype)
        (expected,) = self.probe.run([self.stream.head.logits], self.image, dict.fromkeys(faces, moved))
        logits = engine.run(engine.check(self.seen), Knobs(cls=moves[0], patches=moves[1], matrices=matrices))[
            Tap.LOGITS
        ][0, 0]
        distance = _distance(logits, expected[0].reshape(-1))
        if not distance <= 10 * self.tolerance:
            raise NoTokensError(f"moves of the tokens of block {block + 1} do not do what they should")


def opened(adopted: Adopted) -> OnnxEngine:
    """One row a call: where INT8 ranges are measured in every call, rows of one disturb each other."""
    with adopted.file() as file:
        return OnnxEngine(file, threads=1, chunk=1)


def _sampled_moments(patches: Floats, block: int) -> Floats:
    """Mean and covariance of every fourth token of ``[patches, d]``."""
    sampled = patches[block % SAMPLED_TOKENS % len(patches) :: SAMPLED_TOKENS]
    mean = sampled.mean(axis=0, keepdims=True)
    centred = sampled - mean
    return np.concatenate([mean, centred.T @ centred / len(sampled)])


def _distance(values: Floats, expected: Floats) -> float:
    """The largest difference, as a part of the largest value."""
    expected = expected.astype(np.float64)
    return float(np.abs(values - expected).max() / max(float(np.abs(expected).max()), 1e-12))
