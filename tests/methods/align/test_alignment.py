"""Moves: what they promise for mean and variance, on numbers and on a real pass through a model."""

from __future__ import annotations

import numpy as np
import pytest

import fozo
from fozo.core.moments import log_variance
from fozo.methods.align.alignment import MAX_LOG_SCALE, PatchStatistics, block_updates, plan
from fozo.types import Knobs, Move, Tap
from tests.helpers import random_images, run

RNG = np.random.default_rng(0)


def updates(images: int, depth: int = 3, dim: int = 4) -> PatchStatistics:
    return PatchStatistics(RNG.standard_normal((images, depth, dim)), RNG.standard_normal((images, depth, dim)) / 4)


def target(depth: int = 3, dim: int = 4) -> PatchStatistics:
    return PatchStatistics(RNG.standard_normal((depth, dim)), RNG.standard_normal((depth, dim)) / 4)


def test_no_strength_moves_nothing() -> None:
    none = plan(updates(1), target(), np.zeros((1, 2)))
    np.testing.assert_array_equal(none.scale, 1)
    np.testing.assert_allclose(none.shift, 0, atol=1e-15)


def test_full_strength_brings_every_layer_to_its_target() -> None:
    """If blocks add what was expected, mean and variance after each move are the target's: one correction."""
    expected, goal = updates(1), target()
    moves = plan(expected, goal, np.ones((1, 2)))
    mean = np.zeros(4)
    log_var = np.zeros(4)
    for layer in range(3):
        mean = mean + expected.mean[0, layer]
        log_var = log_var + expected.log_variance[0, layer]
        scale, shift = moves.scale[0, 0, layer], moves.shift[0, 0, layer]
        mean, log_var = scale * mean + shift, log_var + 2 * np.log(scale)
        np.testing.assert_allclose(mean, goal.mean[layer], atol=1e-12)
        np.testing.assert_allclose(log_var, goal.log_variance[layer], atol=1e-12)


def test_part_of_the_way() -> None:
    expected, goal = updates(1, depth=1), target(depth=1)
    moves = plan(expected, goal, np.array([[0.25, 0.5]]))
    before = expected.mean[0, 0]
    moved = moves.scale[0, 0, 0] * before + moves.shift[0, 0, 0]
    np.testing.assert_allclose(moved, before + 0.25 * (goal.mean[0] - before))
    np.testing.assert_allclose(
        2 * np.log(moves.scale[0, 0, 0]), 0.5 * (goal.log_variance[0] - expected.log_variance[0, 0])
    )


def test_images_have_moves_of_their_own() -> None:
    expected, goal = updates(3), target()
    strengths = RNG.uniform(0, 1, (3, 2))
    together = plan(expected, goal, strengths)
    assert together.scale.shape == (1, 3, 3, 4)
    for i in range(3):
        own = PatchStatistics(expected.mean[i : i + 1], expected.log_variance[i : i + 1])
        alone = plan(own, goal, strengths[i : i + 1])
        np.testing.assert_array_equal(together.shift[:, i], alone.shift[:, 0])


def test_a_dead_feature_is_not_blown_up() -> None:
    dead = PatchStatistics(np.zeros((1, 1, 1)), np.full((1, 1, 1), float(log_variance(0.0))))
    moves = plan(dead, PatchStatistics(np.zeros((1, 1)), np.zeros((1, 1))), np.ones((1, 2)))
    assert moves.scale.max() == pytest.approx(np.exp(MAX_LOG_SCALE))


def test_block_updates_predict_the_pass_that_showed_them(engine: fozo.Engine) -> None:
    """Adding up what each block added gives the taps again, with and without moves."""
    spec, images = engine.spec, random_images(4)
    still = Move(np.ones((1, 1, spec.depth, spec.dim)), np.zeros((1, 1, spec.depth, spec.dim)))
    plain = block_updates(run(engine, images), still)
    zero = np.zeros((spec.depth, spec.dim))
    used = plan(plain, PatchStatistics(zero, zero), np.full((4, 2), 0.3))
    taps = run(engine, images, Knobs(patches=used))
    seen = block_updates(taps, used)
    mean, log_var = seen.mean[:, 0], seen.log_variance[:, 0]
    for layer in range(spec.depth):
        np.testing.assert_allclose(mean, taps[Tap.PATCH_MEAN][0][:, layer], atol=1e-4)
        np.testing.assert_allclose(log_var, log_variance(taps[Tap.PATCH_VARIANCE][0][:, layer]), atol=1e-4)
        if layer + 1 < spec.depth:
            scale = used.scale[0, :, layer]
            mean = scale * mean + used.shift[0, :, layer] + seen.mean[:, layer + 1]
            log_var = log_var + 2 * np.log(scale) + seen.log_variance[:, layer + 1]
