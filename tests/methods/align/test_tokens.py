"""Aligning: what blocks add, how far targets are believed, and maps of covariances."""

from dataclasses import replace

import numpy as np
import pytest

import fozo
from fozo.core.statistics import Statistics
from fozo.core.tokens import MAX_EIGENVALUE, displacement, packed, pooled_moments, power, transport, unpacked
from fozo.methods.align.slots import Slot
from fozo.methods.align.tokens import CleanTokens
from fozo.types import NO_KNOBS, Array, Knobs, Tap
from tests.helpers import random_images


def covariance(seed: int, size: int = 6) -> Array:
    factor = np.random.default_rng(seed).standard_normal((size, 4 * size))
    product: Array = factor @ factor.T / (4 * size)
    return product


def test_the_map_leads_to_the_clean_covariance_unless_it_would_amplify_too_much() -> None:
    clean = covariance(0)
    drifted = 1.3 * clean + 0.2 * covariance(1)
    to_clean = transport(power(clean, 0.5), drifted)
    np.testing.assert_allclose(to_clean @ drifted @ to_clean, clean, atol=1e-9)
    np.testing.assert_allclose(to_clean, to_clean.T, atol=1e-12)
    emptied = 0.01 * clean
    np.testing.assert_allclose(transport(power(clean, 0.5), emptied), MAX_EIGENVALUE * np.eye(6), atol=1e-6)
    assert displacement(np.eye(6), drifted) == 0
    assert displacement(2 * np.eye(6), drifted) == pytest.approx(1)


def test_moments_of_images_pool_to_those_of_their_tokens() -> None:
    tokens = np.random.default_rng(0).standard_normal((5, 7, 3)) + np.arange(5)[:, None, None]
    moments = np.stack([np.vstack([image.mean(axis=0), np.cov(image.T, bias=True)]) for image in tokens])[:, None]
    mean, pooled = pooled_moments(moments)
    flat = tokens.reshape(-1, 3)
    np.testing.assert_allclose(mean[0], flat.mean(axis=0))
    np.testing.assert_allclose(pooled[0], np.cov(flat.T, bias=True), atol=1e-12)


def knobs_of(clean: CleanTokens, slot: Slot) -> Knobs:
    return clean.knobs([clean.moves(slot, 0.15, 0.3, 0.3)], np.zeros(1, np.intp))


@pytest.fixture
def clean(engine: fozo.Engine, source: Statistics) -> CleanTokens:
    return CleanTokens(source, engine.head(), engine.spec)


def learnt(engine: fozo.Engine, source: Statistics, scale: float, shift: float, batches: int = 6) -> Slot:
    method = fozo.Align(engine, source, equaliser_strength=0.0)
    for seed in range(batches):
        method(np.float32(scale) * random_images(16, seed=seed) + np.float32(shift))
    return max(method.state().slots, key=lambda slot: slot.images)


def test_nothing_moves_without_images_and_little_does_on_clean_ones(
    engine: fozo.Engine, source: Statistics, clean: CleanTokens
) -> None:
    slot = learnt(engine, source, 1.0, 0.0)
    assert knobs_of(clean, replace(slot, images=0.0)) is NO_KNOBS
    sizes = []
    for scale, shift in ((1.0, 0.0), (0.3, 1.0)):
        knobs = knobs_of(clean, learnt(engine, source, scale, shift))
        sizes.append(0.0 if knobs.patches is None else float(np.abs(knobs.patches.shift).max()))
    assert sizes[0] < 0.1 * sizes[1]


def test_what_blocks_add_predicts_the_pass_that_showed_it(
    engine: fozo.Engine, source: Statistics, clean: CleanTokens
) -> None:
    slot = clean.mapped(learnt(engine, source, 0.3, 1.0))
    knobs = knobs_of(clean, slot)
    assert knobs.matrices is not None
    taps = engine.run(engine.check(0.3 * random_images(16, seed=50) + 1.0), knobs, (Tap.PATCH_MEAN, Tap.CLS))
    means = taps[Tap.PATCH_MEAN][0].mean(axis=0, dtype=np.float64)
    cls = taps[Tap.CLS][0].mean(axis=0, dtype=np.float64)
    mean_update, cls_update = clean.added(clean.moves(slot, 0.15, 0.3, 0.3), means, cls)
    entering = mean_update[0]
    for layer in range(1, engine.spec.depth):
        matrix = np.eye(engine.spec.dim)
        if layer - 1 in engine.spec.aligned:
            matrix = knobs.matrices[0, 0, engine.spec.aligned.index(layer - 1)]
        assert knobs.patches is not None
        entering = entering @ matrix + knobs.patches.shift[0, 0, layer - 1] + mean_update[layer]
        np.testing.assert_allclose(entering, means[layer], atol=1e-4)
    np.testing.assert_allclose(cls_update[0], cls[0])
    assert len(cls_update) == engine.spec.depth // 2


def test_narrow_content_is_given_the_benefit_of_the_doubt(
    engine: fozo.Engine, source: Statistics, clean: CleanTokens
) -> None:
    """The farther the content from calibration's, the less of a displaced covariance is believed to be drift."""
    slot = clean.mapped(learnt(engine, source, 0.3, 1.0))
    assert slot.covariances is not None
    known = replace(slot.covariances, displacement=np.full_like(slot.covariances.displacement, 0.5))
    displaced = replace(slot, covariances=known)
    beliefs = []
    for square in (0.0, 0.2, 1.0):
        squares = np.full(engine.spec.depth, square)
        beliefs.append(clean.matrix_belief(displaced, squares).max())
    assert beliefs[0] > beliefs[1] > beliefs[2] == 0
    assert not clean.matrix_belief(replace(displaced, covariances=None), squares).size


def test_maps_are_made_again_when_half_as_many_images_have_come(
    engine: fozo.Engine, source: Statistics, clean: CleanTokens
) -> None:
    slot = learnt(engine, source, 0.3, 1.0)
    known = slot.covariances
    assert known is not None
    mapped = clean.mapped(replace(slot, covariances=replace(known, unmapped=known.images)))
    assert mapped.covariances is not None
    assert mapped.covariances.unmapped == 0 and mapped.covariances.transport.any()
    waiting = replace(mapped, covariances=replace(mapped.covariances, unmapped=0.4 * known.images))
    assert clean.mapped(waiting) is waiting


def test_a_packed_matrix_is_the_same_again() -> None:
    matrices = np.stack([covariance(3), covariance(4)])
    assert packed(matrices).shape == (2, 21)
    np.testing.assert_array_equal(unpacked(packed(matrices), 6), matrices)


def test_a_slot_keeps_the_covariance_of_all_its_images(clean: CleanTokens) -> None:
    blocks, width = clean.units.shape
    numbers = np.random.default_rng(0)
    tokens = numbers.standard_normal((12, blocks, 40, width)) * clean.units[:, None] + numbers.random((12, 1, 1, 1))
    mean = tokens.mean(axis=2, keepdims=True)
    centred = tokens - mean
    moments = np.concatenate([mean, centred.swapaxes(2, 3) @ centred / 40], axis=2)
    known = clean.no_covariances()
    for start in range(0, 12, 4):
        known = clean.with_moments(known, moments[start : start + 4])
    weights = np.repeat([0.5 ** (8 / 64), 0.5 ** (4 / 64), 1.0], 4 * 40)
    for block in range(blocks):
        expected = np.cov(tokens[:, block].reshape(-1, width).T, aweights=weights, ddof=0)
        second = unpacked(known.second * clean.squared_units, width)[block]
        scale = np.outer(clean.units[block], clean.units[block])
        np.testing.assert_allclose(second / scale, expected / scale, atol=3e-3)
    assert known.images == pytest.approx(weights.sum() / 40)
