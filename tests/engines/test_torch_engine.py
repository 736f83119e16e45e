"""The engine's shortcuts and its walk from block to block against the plain pass, and its manners."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fozo
from fozo.core.moments import TokenMoments
from fozo.engines.torch_engine import TorchEngine
from fozo.engines.walk import MatrixMove
from fozo.errors import FozoError
from fozo.types import Tap
from tests.helpers import KNOBS, SMALL, VARIANTS, naive, random_images, random_knobs, random_vit, run
from tests.refusals import refuses


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KNOBS)
@pytest.mark.parametrize("chunk", [1, 2, 64])
@torch.inference_mode()
def test_shortcuts_equal_the_naive_pass(variant: str, kind: str, chunk: int) -> None:
    a = VARIANTS[variant]
    vit = random_vit(a)
    engine = TorchEngine(vit, chunk=chunk)
    images = random_images(3, architecture=a)
    knobs = random_knobs(a, 3, 3, kind)
    taps = run(engine, images, knobs)
    for k in range(knobs.candidates()):
        for tap, expected in naive(vit, a, images, knobs, k).items():
            np.testing.assert_allclose(taps[tap][k], expected, atol=1e-5, rtol=1e-5, err_msg=tap.value)
    if kind == "prompts":
        assert knobs.prompts is not None
        for k in range(3):
            prompts = torch.from_numpy(knobs.prompts[k]).float()
            plain = vit(torch.from_numpy(images), prompts).numpy()
            np.testing.assert_allclose(taps[Tap.LOGITS][k], plain, atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_the_position_of_prompts_does_not_matter() -> None:
    """The paper puts prompts before CLS, the program after it: without positions, attention is the same."""
    vit = random_vit().double()
    x = vit.embed(torch.from_numpy(random_images(2)).double())
    prompts = torch.randn(3, SMALL.dim, generator=torch.Generator().manual_seed(0)).double().expand(2, -1, -1)
    after = torch.cat([x[:, :1], prompts, x[:, 1:]], dim=1)
    before = torch.cat([prompts, x], dim=1)
    for block in vit.blocks:
        after, before = block(after), block(before)
    torch.testing.assert_close(after[:, 0], before[:, 3], rtol=0, atol=1e-12)


def test_float64_is_kept() -> None:
    engine = fozo.load_engine(random_vit(), dtype="float64")
    taps = run(engine, random_images(2))
    assert {value.dtype for value in taps.values()} == {np.dtype(np.float64)}
    assert engine.head()(taps[Tap.POOLED]).dtype == np.float64


def test_leaves_the_users_model_and_torch_as_they_were() -> None:
    vit = random_vit().train()
    vit.requires_grad_(True)
    before = {name: tensor.clone() for name, tensor in vit.state_dict().items()}
    threads, grad = torch.get_num_threads(), torch.is_grad_enabled()
    engine = fozo.load_engine(vit)
    source = fozo.calibrate(engine, [random_images(8)])
    for method in (fozo.Align(engine, source), fozo.FOZO(engine, source)):
        for i in range(10):
            method(random_images(4, seed=i))
    for name, tensor in vit.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert vit.training and all(p.requires_grad and p.grad is None for p in vit.parameters())
    assert torch.get_num_threads() == threads and torch.is_grad_enabled() == grad


def test_fingerprints_distinguish_models_but_not_precisions() -> None:
    one = fozo.load_engine(random_vit())
    assert fozo.load_engine(random_vit(), dtype="float64").spec.fingerprint == one.spec.fingerprint
    assert fozo.load_engine(random_vit(seed=1)).spec.fingerprint != one.spec.fingerprint
    nudged = random_vit()
    nudged.head.bias[0] += 1e-3
    assert fozo.load_engine(nudged).spec.fingerprint != one.spec.fingerprint
    other_epsilon = replace(SMALL, norm_epsilon=1e-5)
    assert fozo.load_engine(random_vit(other_epsilon)).spec.fingerprint != one.spec.fingerprint


def test_the_head_is_the_models(engine: fozo.Engine) -> None:
    pooled, vit, head = random_images(1).reshape(-1, SMALL.dim)[:4], random_vit(), engine.head()
    expected = vit.head(torch.from_numpy(pooled)).numpy()
    np.testing.assert_allclose(head(pooled), expected, atol=1e-6)
    np.testing.assert_allclose(pooled @ head.weight + head.bias, expected, atol=1e-6)


def test_normalise_uses_the_models_own_mean_and_std() -> None:
    pixels = np.full((2, 16, 16, 3), 255, dtype=np.uint8)
    engine = fozo.load_engine(random_vit(), mean=0.5, std=(0.5, 0.25, 1.0))
    images = engine.spec.normalise(pixels)
    assert images.shape == (2, 3, 16, 16) and images.dtype == np.float32
    np.testing.assert_allclose(images[0, :, 0, 0], [1.0, 2.0, 0.5])
    refuses("pass mean= and std=", fozo.load_engine(random_vit()).spec.normalise, pixels)
    refuses("uint8 images of shape", engine.spec.normalise, pixels[:, :8])


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


def test_moments_need_two_tokens() -> None:
    with pytest.raises(FozoError, match="at least two tokens, not 1"):
        _ = TokenMoments(1, np.zeros(2), np.zeros((2, 2))).covariance
