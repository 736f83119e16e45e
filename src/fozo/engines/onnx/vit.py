"""A ViT as one ONNX graph, knobs as inputs and taps as outputs, written out node by node.

One graph does it all: images and knobs in, taps out. The engine calls it with a few images and all candidates at
once, so the exact savings of the torch engine hold inside every call: images are embedded once, LayerNorm and QKV of
the image tokens in the first block are computed once for all candidates (unless candidates move them differently:
then broadcasting computes them for each), and the last block computes the CLS row only where the head reads nothing
else.

Why these operators. Only standard ones (opset 20), so the same file runs in ONNX Runtime, OpenVINO and whatever else
reads ONNX. Against ORT's own fused attention and against graphs without moves and moments the difference was within
the noise (a few percent), so moves are always applied and moments always computed: no ``If``, which OpenVINO 2026.4
gets wrong here, and no second graph, whose packed weights would double the memory. ORT's inference builds compute
every output, whichever are fetched; fetching fewer saves only the copy. Matrices are different: products with the
identity would take 3 % of a ViT-Tiny in float32 and 5 % in INT8, so without matrices they are of no tokens.

Where the arithmetic differs from the torch engine's by rounding: the attention's scale is folded into the query
weights, and prompts stand after the patches instead of after CLS, which makes no difference to attention.

Shapes: K candidates (k: K or 1), B images (b: B or 1), p prompts, T tokens of an image, L = depth, d = width.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import onnx

from fozo.engines.onnx.graph import Graph
from fozo.engines.onnx.schema import HEAD_BIAS, HEAD_WEIGHT, IMAGES, MATRICES, MOVES, PROMPTS
from fozo.models.vit import Architecture
from fozo.types import SAMPLED_TOKENS, Tap, aligned_blocks

OPSET, IR_VERSION = 20, 9  # opset 20 (2023) is the first with Gelu; ONNX Runtime 1.17 and OpenVINO 2024 read it
Weights = Mapping[str, npt.NDArray[np.float32]]


class ViTGraph:
    """Builds the graph of one model."""

    def __init__(self, architecture: Architecture, weights: Weights) -> None:
        self.a = architecture
        self.weights = weights
        self.g = Graph()
        self.patches = architecture.grid[0] * architecture.grid[1]
        self.first_patch = architecture.prefix
        self.tokens = self.first_patch + self.patches
        self.aligned = aligned_blocks(architecture.depth)
        self.moments: list[str] = []
        self.taps: dict[str, list[str]] = {"cls": [], "features": [], "patch_mean": [], "patch_variance": []}

    def build(self) -> onnx.ModelProto:
        g = self.g
        a = self.a
        images = g.input(IMAGES, ["B", a.channels, *a.image_size])
        self.prompts = g.input(PROMPTS, ["K", "p", a.dim])
        self.moves = [g.input(name, ["k", "b", a.depth, a.dim]) for name in MOVES]
        if self.aligned:
            self.matrices = g.input(MATRICES, ["k", "b", "a", a.dim, a.dim])
        self.candidates = g.dimension(self.prompts, 0)
        self.batch = g.dimension(images, 0)
        self.extra = g.dimension(self.prompts, 1)
        self.joined = g.op("Add", self.extra, g.ints(self.tokens))  # T + p
        x, q, k, v = self._enter(self._embed(images))
        cls_only = a.pool == "cls"
        last = a.depth - 1
        for i in range(a.depth):
            if i:
                self.taps["cls"].append(self._token(x))
                mean, variance = self._moments(g.slice(x, self.first_patch, self.tokens, 1))
                self.taps["patch_mean"].append(mean)
                self.taps["patch_variance"].append(variance)
                if i in self.aligned:
                    self._record_moments(x, i)
                x = self._move_joined(x, i)
                normed = self._norm(x, f"blocks.{i}.norm1")
                self.taps["features"].append(self._token(normed))
                q, k, v = self._qkv(normed, i, first_query_only=cls_only and i == last)
            elif cls_only and i == last:  # a model of one block
                q = g.slice(q, 0, 1, 1)
            if cls_only and i == last:
                x = g.slice(x, 0, 1, 1)
            attended = self._attend(self._heads(q, [0, 2, 1, 3]), k, v, f"blocks.{i}.attn")
            x = self._mlp(g.op("Add", x, attended), f"blocks.{i}.norm2", f"blocks.{i}.mlp")
        self._leave(x)
        return g.model("vit", OPSET, IR_VERSION)

    def _embed(self, images: str) -> str:
        """``[B, channels, height, width] -> [B, T, d]``, as ``ViT.embed``."""
        g = self.g
        a = self.a
        w = self.weights
        conv = g.op(
            "Conv",
            images,
            g.weight("patch_embed.proj.weight", w["patch_embed.proj.weight"]),
            g.weight("patch_embed.proj.bias", w["patch_embed.proj.bias"]),
            kernel_shape=a.patch_size,
            strides=a.patch_size,
        )
        flat = g.op("Transpose", g.op("Reshape", conv, g.ints(0, a.dim, -1)), perm=[0, 2, 1])
        # CLS and registers are the same for every image: their positions are added here, once and for all.
        position = w["pos_embed"]
        x = g.op("Add", flat, g.weight("position", position[:, self.first_patch :]))
        if self.first_patch:
            prefix = np.concatenate([w["cls_token"], w["reg_token"]], axis=1) + position[:, : self.first_patch]
            start = g.op("Expand", g.weight("prefix", prefix), g.shape(self.batch, 1, 1))
            x = g.op("Concat", start, x, axis=1)
        return self._norm(x, "norm_pre") if a.pre_norm else x

    def _enter(self, tokens: str) -> tuple[str, str, str, str]:
        """Move image tokens, compute their part of the first block once, and let the prompts of all candidates join."""
        g = self.g
        a = self.a
        patches = g.slice(tokens, self.first_patch, self.tokens, 1)
        mean, variance = self._moments(patches)
        one_each = g.shape(self.candidates, 1, 1, 1)
        for name, moment in (("patch_mean", mean), ("patch_variance", variance)):
            repeated = g.op("Expand", g.op("Unsqueeze", moment, g.ints(0)), one_each)
            self.taps[name].append(g.op("Reshape", repeated, g.ints(-1, 1, a.dim)))
        x = self._move(g.op("Unsqueeze", tokens, g.ints(0)), 0, joined=False)  # [k, B, T, d]
        qkv = self._linear(self._norm(x, "blocks.0.norm1"), "blocks.0.attn.qkv")
        added = self._linear(self._norm(self.prompts, "blocks.0.norm1"), "blocks.0.attn.qkv")
        q, k, v = g.ops("Split", 3, self._join(qkv, added, 3 * a.dim), axis=-1, num_outputs=3)
        return self._join(x, self.prompts, a.dim), q, k, v

    def _join(self, image: str, prompts: str, width: int) -> str:
        """``[k, B, T, w]`` and ``[K, p, w]`` to ``[K*B, T+p, w]``."""
        g = self.g
        image = g.op("Expand", image, g.shape(self.candidates, 1, 1, 1))
        prompts = g.op("Expand", g.op("Unsqueeze", prompts, g.ints(1)), g.shape(1, self.batch, 1, 1))
        return g.op("Reshape", g.op("Concat", image, prompts, axis=2), g.shape(-1, self.joined, width))

    def _move_joined(self, x: str, layer: int) -> str:
        """Apply a block's moves to ``[K*B, T+p, d]``."""
        g = self.g
        a = self.a
        grouped = g.op("Reshape", x, g.shape(self.candidates, self.batch, self.joined, a.dim))
        moved = self._move(grouped, layer, joined=True)
        return g.op("Reshape", moved, g.shape(-1, self.joined, a.dim))

    def _move(self, x: str, layer: int, *, joined: bool) -> str:
        """Apply a block's moves to ``[., B, ., d]`` whose tokens are CLS, registers, patches and perhaps prompts."""
        g = self.g
        cls_scale, cls_shift, scale, shift = (g.slice(move, layer, layer + 1, 2) for move in self.moves)  # [k, b, 1, d]
        counts = {"cls": int(self.a.class_token), "registers": self.a.registers, "patches": self.patches}
        sizes: dict[str, int | str] = {name: count for name, count in counts.items() if count}
        if layer in self.aligned:
            row = self.aligned.index(layer)
            matrix = g.slice(self.matrices, row, row + 1, 2)  # [k, b, 1, d, d], or [k, b, 0, d, d] for no product
            multiplied = g.op("Mul", g.dimension(matrix, 2), g.ints(self.patches))
            sizes["patches"] = g.op("Sub", g.ints(self.patches), multiplied)
            sizes["multiplied"] = multiplied
        if joined:
            sizes["prompts"] = self.extra
        parts = {"patches": x}
        if len(sizes) > 1:
            parts = dict(zip(sizes, g.ops("Split", len(sizes), x, g.shape(*sizes.values()), axis=2), strict=True))
        if "cls" in parts:
            parts["cls"] = g.op("Add", g.op("Mul", parts["cls"], cls_scale), cls_shift)
        if layer in self.aligned:
            parts["multiplied"] = self._multiply(parts["multiplied"], matrix)
        for name in ("patches", "multiplied"):
            if name in parts:
                parts[name] = g.op("Add", g.op("Mul", parts[name], scale), shift)
        if "registers" in parts and not joined:
            # On the way into the first block a move may be the first that differs between candidates.
            parts["registers"] = g.op("Expand", parts["registers"], g.shape(g.dimension(parts["patches"], 0), 1, 1, 1))
        return g.op("Concat", *parts.values(), axis=2) if len(parts) > 1 else parts["patches"]

    def _multiply(self, patches: str, matrix: str) -> str:
        """``[K, B, P or 0, d]`` by ``[k, b, 1 or 0, d, d]``.

        Without a matrix all shapes hold a 0, and no product is computed.
        """
        g = self.g
        count = g.dimension(patches, 2)
        by_matrix = g.shape(self.candidates, self.batch, g.dimension(matrix, 2), count, self.a.dim)
        product = g.op("MatMul", g.op("Reshape", patches, by_matrix, allowzero=1), matrix)
        return g.op("Reshape", product, g.shape(self.candidates, self.batch, count, self.a.dim), allowzero=1)

    def _record_moments(self, x: str, layer: int) -> None:
        """Note mean and covariance of every fourth patch token of ``[K*B, T+p, d]``."""
        g = self.g
        start = self.first_patch + layer % SAMPLED_TOKENS % self.patches
        bounds = (g.ints(start), g.ints(self.tokens), g.ints(1), g.ints(SAMPLED_TOKENS))
        sampled = g.op("Slice", x, *bounds)
        count = len(range(start, self.tokens, SAMPLED_TOKENS))
        mean = self._mean(sampled)
        centred = g.op("Sub", sampled, mean)
        share = g.op("Mul", centred, g.weight(f"share_{count}", np.array(1 / count, np.float32)))
        covariance = g.op("MatMul", g.op("Transpose", centred, perm=[0, 2, 1]), share)
        self.moments += [mean, covariance]

    def _qkv(self, normed: str, block: int, *, first_query_only: bool) -> tuple[str, str, str]:
        """Queries, keys and values; the queries of CLS alone where nothing else is read."""
        g = self.g
        d = self.a.dim
        name = f"blocks.{block}.attn.qkv"
        if not first_query_only:
            q, k, v = g.ops("Split", 3, self._linear(normed, name), axis=-1, num_outputs=3)
            return q, k, v
        k, v = g.ops("Split", 2, self._linear(normed, name, slice(d, 3 * d)), axis=-1, num_outputs=2)
        return self._linear(g.slice(normed, 0, 1, 1), name, slice(0, d)), k, v

    def _attend(self, q: str, k: str, v: str, name: str) -> str:
        """Attention of queries ``[N or 1, heads, T, d/heads]``, and the projection ``name``."""
        g = self.g
        scores = g.op("MatMul", q, self._heads(k, [0, 2, 3, 1]))
        mixed = g.op("MatMul", g.op("Softmax", scores, axis=-1), self._heads(v, [0, 2, 1, 3]))
        joined = g.op("Reshape", g.op("Transpose", mixed, perm=[0, 2, 1, 3]), g.ints(0, 0, self.a.dim))
        return self._linear(joined, f"{name}.proj")

    def _heads(self, x: str, order: list[int]) -> str:
        """``[N, T, d] -> [N, T, heads, d/heads]``, then reordered."""
        split = self.g.op("Reshape", x, self.g.ints(0, 0, self.a.heads, self.a.dim // self.a.heads))
        return self.g.op("Transpose", split, perm=order)

    def _mlp(self, x: str, norm: str, name: str) -> str:
        hidden = self._linear(self._norm(x, norm), f"{name}.fc1")
        return self.g.op("Add", x, self._linear(self._activation(hidden), f"{name}.fc2"))

    def _activation(self, x: str) -> str:
        if self.a.activation == "quick_gelu":
            scaled = self.g.op("Mul", x, self.g.weight("quick_gelu", np.array(1.702, np.float32)))
            return self.g.op("Mul", x, self.g.op("Sigmoid", scaled))
        return self.g.op("Gelu", x, approximate="tanh" if self.a.activation == "gelu_tanh" else "none")

    def _leave(self, x: str) -> None:
        g = self.g
        a = self.a
        token = self._token(x)
        self.taps["cls"].append(token)
        features, pooled = self._pool(x, token)
        self.taps["features"].append(features)
        for name, layers in self.taps.items():
            stacked = g.op("Concat", *layers, axis=1)
            by_candidate = g.shape(self.candidates, self.batch, a.depth, a.dim)
            g.output(name, g.op("Reshape", stacked, by_candidate), ["K", "B", a.depth, a.dim])
        if self.aligned:
            blocks = len(self.aligned)
            by_block = g.shape(self.candidates, self.batch, blocks, a.dim + 1, a.dim)
            rows = g.op("Concat", *self.moments, axis=1)
            name = Tap.PATCH_MOMENTS.value
            g.output(name, g.op("Reshape", rows, by_block), ["K", "B", blocks, a.dim + 1, a.dim])
        shape = g.shape(self.candidates, self.batch, a.head_width)
        g.output("pooled", g.op("Reshape", pooled, shape), ["K", "B", a.head_width])
        # The head is applied outside, to features that a method may have shifted first.
        head = {HEAD_WEIGHT: self.weights["head.weight"].T, HEAD_BIAS: self.weights["head.bias"]}
        for name, array in head.items():
            g.output(name, g.weight(f"head.{name}", array), array.shape)

    def _token(self, x: str) -> str:
        """CLS, or the mean patch where there is none: ``[N, T, d] -> [N, 1, d]``."""
        if self.a.class_token:
            return self.g.slice(x, 0, 1, 1)
        return self._mean(self.g.slice(x, self.first_patch, self.tokens, 1))

    def _mean(self, tokens: str) -> str:
        return self.g.op("ReduceMean", tokens, self.g.ints(1), keepdims=1)

    def _pool(self, x: str, token: str) -> tuple[str, str]:
        """Features of the last layer and what the head reads, as ``ViT.pool``: ``[N, 1, .]`` each."""
        g = self.g
        pool = self.a.pool
        if pool == "normed mean":
            pooled = self._norm(token, "norm")
            return pooled, pooled
        if not self.a.class_token:
            patches = self._norm(g.slice(x, self.first_patch, self.tokens, 1), "norm")
            pooled = self._mean(patches) if pool == "mean" else self._attention_pool(patches)
            return pooled, pooled
        features = self._norm(token, "norm")
        if pool == "cls":
            return features, features
        if pool == "cls+distilled":
            return features, g.op("Concat", features, self._norm(g.slice(x, 1, 2, 1), "norm"), axis=2)
        patches = self._norm(g.slice(x, self.first_patch, self.tokens, 1), "norm")
        return features, g.op("Concat", features, self._mean(patches), axis=2)

    def _attention_pool(self, tokens: str) -> str:
        """As ``AttentionPool``: ``[N, patches, d] -> [N, 1, d]``."""
        g = self.g
        a = self.a
        name = "attn_pool"
        k, v = g.ops("Split", 2, self._linear(tokens, f"{name}.kv"), axis=-1, num_outputs=2)
        query = self.weights[f"{name}.query"] * np.float32((a.dim // a.heads) ** -0.5)
        q = np.ascontiguousarray(query.reshape(1, 1, a.heads, -1).transpose(0, 2, 1, 3))
        return self._mlp(self._attend(g.weight(f"{name}.query", q), k, v, name), f"{name}.norm", f"{name}.mlp")

    def _moments(self, patches: str) -> tuple[str, str]:
        """Mean and variance over tokens, ``[N, patches, d] -> [N, 1, d]``; about the mean, against cancellation."""
        g = self.g
        mean = self._mean(patches)
        centred = g.op("Sub", patches, mean)
        return mean, self._mean(g.op("Mul", centred, centred))

    def _norm(self, x: str, name: str) -> str:
        weight, bias = (self.g.weight(key, self.weights[key]) for key in (f"{name}.weight", f"{name}.bias"))
        return self.g.op("LayerNormalization", x, weight, bias, axis=-1, epsilon=self.a.norm_epsilon)

    def _linear(self, x: str, name: str, rows: slice | None = None) -> str:
        weight = self.weights[f"{name}.weight"]
        bias = self.weights[f"{name}.bias"]
        if name.endswith(".qkv"):
            scale = np.ones((3 * self.a.dim, 1), np.float32)
            scale[: self.a.dim] = (self.a.dim // self.a.heads) ** -0.5
            weight = weight * scale
            bias = bias * scale[:, 0]
        suffix = ""
        if rows is not None:
            weight = weight[rows]
            bias = bias[rows]
            suffix = f".{rows.start}"
        product = self.g.op("MatMul", x, self.g.weight(f"{name}.weight{suffix}", weight.T))
        return self.g.op("Add", product, self.g.weight(f"{name}.bias{suffix}", bias))
