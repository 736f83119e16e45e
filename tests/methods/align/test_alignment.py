"""Moves: what they promise for mean and variance, on numbers and on a real pass through a model."""

from __future__ import annotations

import numpy as np
import pytest

import fozo
from fozo.core.moments import log_variance
from fozo.methods.align.alignment import MAX_LOG_SCALE, BlockUpdates, TokenStatistics, moved_cls, plan
from fozo.types import Floats, Knobs, Move, Tap, Taps
from tests.helpers import random_images, run

RNG = np.random.default_rng(0)


def tokens(images: int, depth: int = 3, dim: int = 4) -> TokenStatistics:
    """Random updates or targets."""
    patches = RNG.standard_normal((2, images, depth, dim))
    return TokenStatistics(patches[0], patches[1] / 4, RNG.standard_normal((images, moved_cls(depth), dim)))


def strength(mean: float, log_variance: float, cls: float, depth: int = 3) -> TokenStatistics:
    """The same strengths in every layer."""
    layers = np.ones((1, depth, 1))
    return TokenStatistics(mean * layers, log_variance * layers, cls * layers[:, : moved_cls(depth)])


def moves(knobs: Knobs) -> tuple[Move, Floats]:
    """The move of the patches and the shift of CLS, which is never scaled."""
    assert knobs.patches is not None and knobs.cls is not None
    np.testing.assert_array_equal(knobs.cls.scale, 1)
    return knobs.patches, knobs.cls.shift


def test_no_strength_moves_nothing() -> None:
    patches, cls = moves(plan(tokens(1), tokens(1), strength(0, 0, 0)))
    np.testing.assert_array_equal(patches.scale, 1)
    np.testing.assert_allclose(patches.shift, 0, atol=1e-15)
    np.testing.assert_array_equal(cls, 0)


def test_full_strength_brings_every_layer_to_its_target() -> None:
    """If blocks add what was expected, mean and variance after each move are the target's: one correction."""
    expected, goal = tokens(1), tokens(1)
    patches, _ = moves(plan(expected, goal, strength(1, 1, 0)))
    mean = np.zeros(4)
    log_var = np.zeros(4)
    for layer in range(3):
        mean = mean + expected.mean[0, layer]
        log_var = log_var + expected.log_variance[0, layer]
        scale, shift = patches.scale[0, 0, layer], patches.shift[0, 0, layer]
        mean, log_var = scale * mean + shift, log_var + 2 * np.log(scale)
        np.testing.assert_allclose(mean, goal.mean[0, layer], atol=1e-12)
        np.testing.assert_allclose(log_var, goal.log_variance[0, layer], atol=1e-12)


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_full_strength_brings_the_cls_token_to_its_target_in_the_first_half_of_the_model(depth: int) -> None:
    """It is moved as it enters the second block and on, and left alone in the second half."""
    expected, goal = tokens(1, depth), tokens(1, depth)
    _, shift = moves(plan(expected, goal, strength(0, 0, 1, depth)))
    cls = np.zeros(4)
    for layer in range(depth // 2):
        cls = cls + expected.cls[0, layer] + shift[0, 0, layer + 1]
        np.testing.assert_allclose(cls, goal.cls[0, layer], atol=1e-12)
    still = [layer for layer in range(depth) if not 1 <= layer <= depth // 2]
    np.testing.assert_array_equal(shift[:, :, still], 0)


def test_part_of_the_way() -> None:
    expected, goal = tokens(1, depth=2), tokens(1, depth=2)
    patches, cls = moves(plan(expected, goal, strength(0.25, 0.5, 0.75, depth=2)))
    before = expected.mean[0, 0]
    moved = patches.scale[0, 0, 0] * before + patches.shift[0, 0, 0]
    np.testing.assert_allclose(moved, before + 0.25 * (goal.mean[0, 0] - before))
    np.testing.assert_allclose(
        2 * np.log(patches.scale[0, 0, 0]), 0.5 * (goal.log_variance[0, 0] - expected.log_variance[0, 0])
    )
    np.testing.assert_allclose(cls[0, 0, 1], 0.75 * (goal.cls[0, 0] - expected.cls[0, 0]))


def test_images_have_moves_of_their_own() -> None:
    expected, goal = tokens(3), tokens(3)
    layers = RNG.uniform(0, 1, (3, 3, 3, 1))
    strengths = TokenStatistics(layers[0], layers[1], layers[2][:, :1])
    patches, cls = moves(plan(expected, goal, strengths))
    assert patches.scale.shape == cls.shape == (1, 3, 3, 4)
    for i in range(3):
        own, wanted, by = (each.each(lambda part, i=i: part[i : i + 1]) for each in (expected, goal, strengths))
        alone, alone_cls = moves(plan(own, wanted, by))
        np.testing.assert_array_equal(patches.scale[:, i], alone.scale[:, 0])
        np.testing.assert_array_equal(patches.shift[:, i], alone.shift[:, 0])
        np.testing.assert_array_equal(cls[:, i], alone_cls[:, 0])


def test_a_dead_feature_is_not_blown_up() -> None:
    nothing = np.zeros((1, 0, 1))
    dead = TokenStatistics(np.zeros((1, 1, 1)), np.full((1, 1, 1), float(log_variance(0.0))), nothing)
    goal = TokenStatistics(np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), nothing)
    patches, _ = moves(plan(dead, goal, strength(1, 1, 1, depth=1)))
    assert patches.scale.max() == pytest.approx(np.exp(MAX_LOG_SCALE))


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_flat_vectors_are_read_back_as_they_were(depth: int) -> None:
    """What the memory keeps is what :func:`plan` gets."""
    rows = tokens(3, depth)
    assert rows.flat().shape == (3, TokenStatistics.width(depth, 4))
    again = TokenStatistics.of_flat(rows.flat(), depth, 4)
    for name in ("mean", "log_variance", "cls"):
        np.testing.assert_array_equal(getattr(again, name), getattr(rows, name))


def updates(engine: fozo.Engine, taps: Taps, knobs: Knobs) -> TokenStatistics:
    """What the blocks added, in its own unit."""
    depth, dim = engine.spec.depth, engine.spec.dim
    one = np.ones((1, TokenStatistics.width(depth, dim) // dim, dim))
    return TokenStatistics.of_layers(BlockUpdates(knobs, 0 * one, one, depth)(taps), depth)


def test_updates_are_told_in_a_unit_and_about_a_centre(engine: fozo.Engine) -> None:
    """And where nothing is moved, no knobs are as good as those that move nothing."""
    spec, taps = engine.spec, run(engine, random_images(2))
    layers = TokenStatistics.width(spec.depth, spec.dim) // spec.dim
    centre, unit = RNG.standard_normal((1, layers, spec.dim)), RNG.uniform(0.5, 2, (1, layers, spec.dim))
    still = Move(np.ones((1, 1, spec.depth, spec.dim)), np.zeros((1, 1, spec.depth, spec.dim)))
    for knobs in (Knobs(), Knobs(cls=still, patches=still)):
        plain = updates(engine, taps, knobs).layers()
        told = BlockUpdates(knobs, centre, unit, spec.depth)(taps)
        np.testing.assert_allclose(told * unit + centre, plain, atol=1e-4)


def test_block_updates_predict_the_pass_that_showed_them(engine: fozo.Engine) -> None:
    """Adding up what each block added gives the taps again, with and without moves."""
    spec, images = engine.spec, random_images(4)
    still = Move(np.ones((1, 1, spec.depth, spec.dim)), np.zeros((1, 1, spec.depth, spec.dim)))
    plain_taps = run(engine, images)
    plain = updates(engine, plain_taps, Knobs(cls=still, patches=still))
    unmoved, half = TokenStatistics.unmoved(plain), moved_cls(spec.depth)
    np.testing.assert_allclose(unmoved.mean, plain_taps[Tap.PATCH_MEAN][0], atol=1e-4)
    np.testing.assert_allclose(unmoved.log_variance, log_variance(plain_taps[Tap.PATCH_VARIANCE][0]), atol=1e-4)
    np.testing.assert_allclose(unmoved.cls, plain_taps[Tap.CLS][0][:, :half], atol=1e-4)
    zero = plain.each(np.zeros_like)
    used = plan(plain, zero, strength(0.3, 0.3, 0.3, spec.depth))
    patches, cls_shift = moves(used)
    assert np.abs(cls_shift[:, :, 1 : 1 + half]).max() > 0.01
    taps = run(engine, images, used)
    seen = updates(engine, taps, used)
    mean, log_var, cls = seen.mean[:, 0], seen.log_variance[:, 0], np.zeros((4, spec.dim))
    for layer in range(spec.depth):
        np.testing.assert_allclose(mean, taps[Tap.PATCH_MEAN][0][:, layer], atol=1e-4)
        np.testing.assert_allclose(log_var, log_variance(taps[Tap.PATCH_VARIANCE][0][:, layer]), atol=1e-4)
        if layer + 1 < spec.depth:
            scale = patches.scale[0, :, layer]
            mean = scale * mean + patches.shift[0, :, layer] + seen.mean[:, layer + 1]
            log_var = log_var + 2 * np.log(scale) + seen.log_variance[:, layer + 1]
        if layer < half:
            cls = cls + seen.cls[:, layer]
            np.testing.assert_allclose(cls, taps[Tap.CLS][0][:, layer], atol=1e-4)
            cls = cls + cls_shift[0, :, layer + 1]
