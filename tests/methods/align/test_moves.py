"""Moves: what they promise for mean and variance, on numbers and on a real pass through a model."""

from dataclasses import dataclass
from typing import cast

import numpy as np
import pytest

import fozo
from fozo.core.moments import log_variance
from fozo.methods.align.moves import BlockUpdates, Single, Targets, layer_counts, plan, split, unmoved
from fozo.types import Floats, Knobs, Move, Tap, Taps
from tests.helpers import random_images, run

RNG = np.random.default_rng(0)


@dataclass
class Clean:
    """What blocks add to clean images."""

    depth: int
    centre: Single
    unit: Single


def tokens(images: int, depth: int = 3, dim: int = 4) -> Floats:
    """Random updates or targets."""
    layers = RNG.standard_normal((images, sum(layer_counts(depth)), dim))
    layers[:, depth : 2 * depth] /= 4
    return layers


def strength(mean: float, log_variance: float, cls: float, depth: int = 3) -> Floats:
    """The same strengths in every layer."""
    return np.repeat([mean, log_variance, cls], layer_counts(depth))[None, :, None]


def moves(knobs: Knobs) -> tuple[Move, Floats]:
    """The move of the patches and the shift of CLS, which is never scaled."""
    assert knobs.patches is not None and knobs.cls is not None
    np.testing.assert_array_equal(knobs.cls.scale, 1)
    return knobs.patches, knobs.cls.shift


def test_no_strength_moves_nothing() -> None:
    patches, cls = moves(plan(tokens(1), tokens(1), strength(0, 0, 0), 3))
    np.testing.assert_array_equal(patches.scale, 1)
    np.testing.assert_allclose(patches.shift, 0, atol=1e-15)
    np.testing.assert_array_equal(cls, 0)


def test_full_strength_brings_every_layer_to_its_target() -> None:
    """If blocks add what was expected, mean and variance after each move are the target's: one correction."""
    expected, goal = tokens(1), tokens(1)
    patches, _ = moves(plan(expected, goal, strength(1, 1, 0), 3))
    (means, log_vars, _), (mean_goals, log_goals, _) = split(expected, 3), split(goal, 3)
    mean = np.zeros(4)
    log_var = np.zeros(4)
    for layer in range(3):
        mean = mean + means[0, layer]
        log_var = log_var + log_vars[0, layer]
        scale, shift = patches.scale[0, 0, layer], patches.shift[0, 0, layer]
        mean, log_var = scale * mean + shift, log_var + 2 * np.log(scale)
        np.testing.assert_allclose(mean, mean_goals[0, layer], atol=1e-12)
        np.testing.assert_allclose(log_var, log_goals[0, layer], atol=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_full_strength_brings_the_cls_token_to_its_target_in_the_first_half_of_the_model(depth: int) -> None:
    expected, goal = tokens(1, depth), tokens(1, depth)
    _, shift = moves(plan(expected, goal, strength(0, 0, 1, depth), depth))
    added, goals = split(expected, depth)[2], split(goal, depth)[2]
    cls = np.zeros(4)
    for layer in range(depth // 2):
        cls = cls + added[0, layer] + shift[0, 0, layer + 1]
        np.testing.assert_allclose(cls, goals[0, layer], atol=1e-12)
    others = [layer for layer in range(depth) if not 1 <= layer <= depth // 2]
    np.testing.assert_array_equal(shift[:, :, others], 0)


def test_part_of_the_way() -> None:
    expected, goal = tokens(1, depth=2), tokens(1, depth=2)
    patches, cls = moves(plan(expected, goal, strength(0.25, 0.5, 0.75, depth=2), 2))
    before, log_before, cls_before = expected[0, [0, 2, 4]]
    wanted, log_wanted, cls_wanted = goal[0, [0, 2, 4]]
    scale = patches.scale[0, 0, 0]
    np.testing.assert_allclose(scale * before + patches.shift[0, 0, 0], before + 0.25 * (wanted - before))
    np.testing.assert_allclose(2 * np.log(scale), 0.5 * (log_wanted - log_before))
    np.testing.assert_allclose(cls[0, 0, 1], 0.75 * (cls_wanted - cls_before))


def test_images_have_moves_of_their_own() -> None:
    expected, goal, strengths = tokens(3), tokens(3), RNG.uniform(0, 1, (3, 7, 1))
    patches, cls = moves(plan(expected, goal, strengths, 3))
    assert patches.scale.shape == cls.shape == (1, 3, 3, 4)
    for i in range(3):
        alone, alone_cls = moves(plan(expected[[i]], goal[[i]], strengths[[i]], 3))
        np.testing.assert_array_equal(patches.scale[:, i], alone.scale[:, 0])
        np.testing.assert_array_equal(patches.shift[:, i], alone.shift[:, 0])
        np.testing.assert_array_equal(cls[:, i], alone_cls[:, 0])


def test_no_feature_is_scaled_by_more_than_two() -> None:
    """One that is dead in the stream, or on clean images, has no sensible ratio."""
    dead, alive = np.array([[[0.0], [float(log_variance(0.0))]]]), np.zeros((1, 2, 1))
    for before, goal, scale in ((dead, alive, 2.0), (alive, dead, 0.5)):
        patches, _ = moves(plan(before, goal, strength(1, 1, 1, depth=1), 1))
        assert patches.scale.item() == pytest.approx(scale)


def updates(engine: fozo.Engine, taps: Taps, knobs: Knobs) -> Floats:
    """What the blocks added, in its own unit."""
    depth, dim = engine.spec.depth, engine.spec.dim
    one = np.ones((1, sum(layer_counts(depth)), dim), dtype=np.float32)
    return BlockUpdates(knobs, cast("Targets", Clean(depth, 0 * one, one)))(taps)


def test_updates_are_read_in_a_unit_and_about_a_centre(engine: fozo.Engine) -> None:
    """And no knobs mean the same as those that move nothing."""
    spec, taps = engine.spec, run(engine, random_images(2))
    shape = (1, sum(layer_counts(spec.depth)), spec.dim)
    centre, unit = RNG.standard_normal(shape), RNG.uniform(0.5, 2, shape)
    identity = Move(np.ones((1, 1, spec.depth, spec.dim)), np.zeros((1, 1, spec.depth, spec.dim)))
    for knobs in (Knobs(), Knobs(cls=identity, patches=identity)):
        clean = Clean(spec.depth, centre.astype(np.float32), unit.astype(np.float32))
        read = BlockUpdates(knobs, cast("Targets", clean))(taps)
        np.testing.assert_allclose(read * unit + centre, updates(engine, taps, knobs), atol=1e-4)


def test_block_updates_predict_the_pass_that_showed_them(engine: fozo.Engine) -> None:
    """Adding up what each block added gives the taps again, with and without moves."""
    spec, images, half = engine.spec, random_images(4), engine.spec.depth // 2
    plain_taps = run(engine, images)
    plain = updates(engine, plain_taps, Knobs())
    mean, log_var, cls = split(unmoved(plain, spec.depth), spec.depth)
    np.testing.assert_allclose(mean, plain_taps[Tap.PATCH_MEAN][0], atol=1e-4)
    np.testing.assert_allclose(log_var, log_variance(plain_taps[Tap.PATCH_VARIANCE][0]), atol=1e-4)
    np.testing.assert_allclose(cls, plain_taps[Tap.CLS][0][:, :half], atol=1e-4)
    used = plan(plain, np.zeros_like(plain), strength(0.3, 0.3, 0.3, spec.depth), spec.depth)
    patches, cls_shift = moves(used)
    assert np.abs(cls_shift[:, :, 1 : 1 + half]).max() > 0.01
    taps = run(engine, images, used)
    mean_seen, log_seen, cls_seen = split(updates(engine, taps, used), spec.depth)
    mean, log_var, cls = mean_seen[:, 0], log_seen[:, 0], np.zeros((4, spec.dim))
    for layer in range(spec.depth):
        np.testing.assert_allclose(mean, taps[Tap.PATCH_MEAN][0][:, layer], atol=1e-4)
        np.testing.assert_allclose(log_var, log_variance(taps[Tap.PATCH_VARIANCE][0][:, layer]), atol=1e-4)
        if layer + 1 < spec.depth:
            scale = patches.scale[0, :, layer]
            mean = scale * mean + patches.shift[0, :, layer] + mean_seen[:, layer + 1]
            log_var = log_var + 2 * np.log(scale) + log_seen[:, layer + 1]
        if layer < half:
            cls = cls + cls_seen[:, layer]
            np.testing.assert_allclose(cls, taps[Tap.CLS][0][:, layer], atol=1e-4)
            cls = cls + cls_shift[0, :, layer + 1]
