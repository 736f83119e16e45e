"""A pass that stops between blocks, against every token of every block the long way."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fozo
from fozo.core.moments import TokenMoments
from fozo.engines.torch_engine import TorchEngine
from fozo.engines.walk import BlockEngine, MatrixMove
from fozo.types import Tap
from tests.helpers import VARIANTS, random_images, random_vit


@pytest.mark.parametrize("variant", sorted(VARIANTS))
@pytest.mark.parametrize("chunk", [1, 2, 64])
def test_moments_and_moves_are_those_of_all_tokens(variant: str, chunk: int) -> None:
    a = VARIANTS[variant]
    vit = random_vit(a).double()
    engine = TorchEngine(vit, chunk=chunk)
    images = random_images(3, architecture=a).astype(np.float64)
    rng = np.random.default_rng(3)
    moves = [
        MatrixMove(np.eye(a.dim) + 0.1 * rng.standard_normal((a.dim, a.dim)), rng.standard_normal(a.dim))
        if layer % 2 == 0
        else None
        for layer in range(a.depth)
    ]
    seen: list[TokenMoments] = []

    def visit(layer: int, moments: TokenMoments) -> MatrixMove | None:
        assert layer == len(seen)
        seen.append(moments)
        return moves[layer]

    taps = engine.walk(engine.check(images), visit)
    x = vit.embed(torch.from_numpy(images))
    for layer, block in enumerate(vit.blocks):
        x = block(x)
        flat = x.flatten(0, 1).numpy()
        assert seen[layer].count == len(flat)
        np.testing.assert_allclose(seen[layer].mean, flat.mean(axis=0), atol=1e-10)
        np.testing.assert_allclose(seen[layer].covariance, np.cov(flat.T), atol=1e-9)
        move = moves[layer]
        if move is not None:
            x = x @ torch.from_numpy(move.matrix) + torch.from_numpy(move.shift)
    pooled = vit.pool(x)
    np.testing.assert_allclose(taps[Tap.POOLED][0], pooled.numpy(), atol=1e-9)
    np.testing.assert_allclose(taps[Tap.LOGITS][0], vit.head(pooled).numpy(), atol=1e-9)


def test_an_engine_says_whether_it_can() -> None:
    engine = TorchEngine(random_vit())
    assert "blocks" in engine.abilities and isinstance(engine, BlockEngine)
    with pytest.raises(fozo.FozoError, match="another engine's"):
        engine.walk([1, 2], lambda *_: None)  # type: ignore[arg-type]


def test_moments_need_two_tokens() -> None:
    with pytest.raises(fozo.FozoError, match="at least two tokens, not 1"):
        _ = TokenMoments(1, np.zeros(2), np.zeros((2, 2))).covariance
