"""Moves: what they promise for mean and spread, on numbers and on a real pass through a model."""

from __future__ import annotations

import numpy as np
import pytest

import fozo
from fozo.core.alignment import LARGEST, Plan, Responses, Target, observe, plan
from fozo.core.statistics import spread
from fozo.engines.base import Knobs
from tests.helpers import random_images

RNG = np.random.default_rng(0)


def responses(images: int, depth: int = 3, dim: int = 4) -> Responses:
    return Responses(RNG.standard_normal((images, depth, dim)), RNG.standard_normal((images, depth, dim)) / 4)


def target(depth: int = 3, dim: int = 4) -> Target:
    return Target(RNG.standard_normal((depth, dim)), RNG.standard_normal((depth, dim)) / 4)


def test_no_strength_moves_nothing() -> None:
    none = plan(responses(1), target(), np.zeros((1, 2)))
    np.testing.assert_array_equal(none.scale, 1)
    np.testing.assert_allclose(none.shift, 0, atol=1e-15)


def test_full_strength_brings_every_layer_to_its_target() -> None:
    """If blocks answer as expected, mean and spread after each move are the target's: corrected once, not L times."""
    expected, goal = responses(1), target()
    moves = plan(expected, goal, np.ones((1, 2)))
    mean = np.zeros(4)
    log_variance = np.zeros(4)
    for layer in range(3):
        mean = mean + expected.mean[0, layer]
        log_variance = log_variance + expected.spread[0, layer]
        scale, shift = moves.scale[0, 0, layer], moves.shift[0, 0, layer]
        mean, log_variance = scale * mean + shift, log_variance + 2 * np.log(scale)
        np.testing.assert_allclose(mean, goal.mean[layer], atol=1e-12)
        np.testing.assert_allclose(log_variance, goal.spread[layer], atol=1e-12)


def test_part_of_the_way() -> None:
    expected, goal = responses(1, depth=1), target(depth=1)
    moves = plan(expected, goal, np.array([[0.25, 0.5]]))
    before = expected.mean[0, 0]
    moved = moves.scale[0, 0, 0] * before + moves.shift[0, 0, 0]
    np.testing.assert_allclose(moved, before + 0.25 * (goal.mean[0] - before))
    np.testing.assert_allclose(2 * np.log(moves.scale[0, 0, 0]), 0.5 * (goal.spread[0] - expected.spread[0, 0]))


def test_images_have_moves_of_their_own() -> None:
    expected, goal = responses(3), target()
    strengths = RNG.uniform(0, 1, (3, 2))
    together = plan(expected, goal, strengths)
    assert together.scale.shape == (1, 3, 3, 4)
    for i in range(3):
        alone = plan(Responses(expected.mean[i : i + 1], expected.spread[i : i + 1]), goal, strengths[i : i + 1])
        np.testing.assert_array_equal(together.shift[:, i], alone.shift[:, 0])


def test_a_dead_feature_is_not_blown_up() -> None:
    dead = Responses(np.zeros((1, 1, 1)), np.full((1, 1, 1), float(spread(0.0))))
    moves = plan(dead, Target(np.zeros((1, 1)), np.zeros((1, 1))), np.ones((1, 2)))
    assert moves.scale.max() == pytest.approx(np.exp(LARGEST))


def test_observed_responses_predict_the_pass_that_showed_them(engine: fozo.Engine) -> None:
    """Adding up what was observed gives the taps again, with and without moves."""
    spec = engine.spec
    tokens, layers = engine.embed(random_images(4)), (1, 1, spec.depth, spec.dim)
    plain = observe(engine.run(tokens, patch_moments=True), Plan(np.ones(layers), np.zeros(layers)))
    goal = Target(np.zeros((spec.depth, spec.dim)), np.zeros((spec.depth, spec.dim)))
    used = plan(plain, goal, np.full((4, 2), 0.3))
    taps = engine.run(tokens, Knobs(patches=used.move()), patch_moments=True)
    assert taps.patch_mean is not None and taps.patch_variance is not None
    seen = observe(taps, used)
    mean, log_variance = seen.mean[:, 0], seen.spread[:, 0]
    for layer in range(spec.depth):
        np.testing.assert_allclose(mean, taps.patch_mean[0][:, layer], atol=1e-4)
        np.testing.assert_allclose(log_variance, spread(taps.patch_variance[0][:, layer]), atol=1e-4)
        if layer + 1 < spec.depth:
            scale = used.scale[0, :, layer]
            mean = scale * mean + used.shift[0, :, layer] + seen.mean[:, layer + 1]
            log_variance = log_variance + 2 * np.log(scale) + seen.spread[:, layer + 1]
