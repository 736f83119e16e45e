"""Targets: deviations are believed as far as they are beyond chance, content and what the camera has shown."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.core.statistics import SourceStatistics
from fozo.methods.align.alignment import TokenStatistics, moved_cls
from fozo.methods.align.targets import BASELINE_IMAGES, NAMES, CameraBaseline, Targets
from fozo.types import Affine, Array, Floats
from tests.helpers import invented_source

DEPTH, DIM, KINDS = 4, 50, 3
CONTENT_ERROR = 0.4
HEAD = Affine(np.concatenate([np.eye(KINDS), -np.eye(KINDS)], axis=1), np.zeros(2 * KINDS))
LAW = np.random.default_rng(0).standard_normal((KINDS, DEPTH, DIM))
"""How tokens follow from content, for each of the three statistics alike."""
BIRDS, FISH = np.eye(KINDS)[:2]
"""Two contents that have nothing in common."""
EMPTY = CameraBaseline(0.0, np.zeros(KINDS), np.zeros(TokenStatistics.width(DEPTH, DIM)))


def calibrated(law: Array = LAW) -> SourceStatistics:
    """On 3000 images of all kinds of content, whose tokens follow it by a law, with a noise of variance 1."""
    rng = np.random.default_rng(1)
    shown = rng.standard_normal((3000, KINDS))
    follows = 5 + np.tensordot(shown, law, 1)
    values: dict[str, Array] = {name: follows + rng.standard_normal(follows.shape) for name in NAMES}
    values |= {name: rng.standard_normal((3000, 9)) for name in ("features", "pooled", "descriptor")}
    return invented_source(shown, values)


def targets(content_error: float = CONTENT_ERROR, source: SourceStatistics | None = None) -> Targets:
    return Targets(source or SOURCE, HEAD, DEPTH, 1.0, content_error)


SOURCE, INDIFFERENT = calibrated(), calibrated(0 * LAW)


def at(made: Targets, tokens: TokenStatistics, off: float = 0.0) -> TokenStatistics:
    """Block updates of images whose unmoved tokens are ``off`` by so many standard deviations in each feature."""
    moved = tokens.each(lambda part, scale: part + off * scale, made.scale)
    return moved.each(lambda part: np.diff(part, axis=1, prepend=0.0))


def residual(value: float) -> Array:
    return np.full(TokenStatistics.width(DEPTH, DIM), value)


def parts(rows: TokenStatistics) -> tuple[Floats, Floats, Floats]:
    return rows.mean, rows.log_variance, rows.cls


def squared_shift(content: Array) -> TokenStatistics:
    """The squared correction for a content in each layer, in units of the variance over clean images."""
    made = targets()
    return made.shift(content[None]).each(
        lambda part, scale: np.square(part / scale).mean(axis=2, keepdims=True), made.scale
    )


def test_a_deviation_within_chance_is_not_believed_and_one_far_beyond_it_is() -> None:
    """Sixteen images are off by a quarter of a standard deviation by chance."""
    made, none, images = targets(source=INDIFFERENT), np.zeros((1, KINDS)), np.array([16.0])
    start = made.average
    for off, least, most in ((0.0, 0, 0), (0.1, 0, 0), (0.23, 0, 0), (0.25, 0, 0.2), (0.5, 0.7, 0.8), (3.0, 0.99, 1)):
        target, believed = made.find(at(made, start, off), none, images, EMPTY)
        for found, wanted in zip(parts(target), parts(start), strict=True):
            np.testing.assert_allclose(found, wanted)
        for part in parts(believed):
            assert least <= part.min() and part.max() <= most
    assert believed.mean.shape == believed.log_variance.shape == (1, DEPTH, 1)
    assert believed.cls.shape == (1, moved_cls(DEPTH), 1)


def test_the_more_images_the_smaller_a_deviation_is_believed() -> None:
    made = targets(source=INDIFFERENT)
    updates = at(made, made.average, 0.5).each(lambda part: np.repeat(part, 4, axis=0))
    images = np.array([0.0, 1.0, 8.0, 200.0])
    _, believed = made.find(updates, np.zeros((4, KINDS)), images, EMPTY)
    for part in parts(believed):
        assert (part[:2] == 0).all() and (part[2] < part[3]).all() and (part[3] > 0.95).all()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_without_images_nothing_is_believed_however_well_content_explains_the_tokens(noise: float) -> None:
    """Tokens that follow from content alone leave no error by chance, and none of them may follow from no image."""
    rng = np.random.default_rng(1)
    shown = rng.standard_normal((40, KINDS))
    law = np.tensordot(shown, LAW, 1)
    values = {name: law + noise * rng.standard_normal(law.shape) for name in SourceStatistics.PARTS}
    made = targets(source=invented_source(shown, values))
    nothing = TokenStatistics.of_flat(EMPTY.residual[None], DEPTH, DIM)
    target, believed = made.find(nothing, np.zeros((1, KINDS)), np.zeros(1), EMPTY)
    assert all((part == 0).all() for part in parts(believed)) and np.isfinite(target.flat()).all()


def test_tokens_that_were_the_same_on_all_clean_images_are_no_trouble() -> None:
    shown = np.random.default_rng(1).standard_normal((20, KINDS))
    made = targets(source=invented_source(shown, {name: np.ones((20, DEPTH, DIM)) for name in SourceStatistics.PARTS}))
    updates = made.average.each(lambda part: np.diff(part + 0.1, axis=1, prepend=0.0))
    for images in (0.0, 20.0):
        target, believed = made.find(updates, np.ones((1, KINDS)), np.array([images]), EMPTY)
        np.testing.assert_allclose(target.flat(), 1)
        assert all(((part >= 0) & (part <= 1)).all() for part in parts(believed))


def test_narrow_content_has_a_target_of_its_own() -> None:
    """Where calibration's law puts the tokens of birds there is nothing to correct; at the average image there is."""
    made, images, content = targets(), np.array([1000.0]), 2 * BIRDS[None]
    calm, believed = made.find(at(made, made.average), content, images, EMPTY)
    for found, average, correction in zip(
        parts(calm), parts(made.average), parts(squared_shift(2 * BIRDS)), strict=True
    ):
        law = 2 * LAW[None, 0, : found.shape[1]]
        np.testing.assert_allclose(found - average, law, atol=0.25)
        assert np.square(found - average - law).mean() < 0.01 * np.square(law).mean() and (correction > 0.5).all()
    # The tokens of birds that look like any image: all of the correction is missing, but a part of it is doubtful.
    for part in parts(believed):
        np.testing.assert_allclose(part, 1 - CONTENT_ERROR, atol=0.01)
    _, believed = made.find(at(made, calm), content, images, EMPTY)
    assert all((part == 0).all() for part in parts(believed))


def test_doubt_says_how_far_the_correction_for_content_is_taken_for_sure() -> None:
    images, content = np.array([1000.0]), 2 * BIRDS[None]
    found = []
    for content_error in (0.0, 0.4, 1.0, 5.0):
        made = targets(content_error)
        found.append(made.find(at(made, made.average), content, images, EMPTY)[1].mean.mean())
    assert found[0] > 0.99 and found[0] > found[1] > found[2] and found[2:] == [0, 0]


def test_content_is_read_from_predictions() -> None:
    """Sure predictions have the content of their class, less that of calibration, whatever its logit's size."""
    made = targets()
    logits = np.full((2, 2 * KINDS), -50.0, dtype=np.float32)
    logits[0, 0] = logits[1, 1] = 50.0
    np.testing.assert_allclose(made.offsets(logits), [BIRDS, FISH] - SOURCE.content.mean, atol=1e-12)


def test_residuals_are_what_content_does_not_explain() -> None:
    made = targets()
    content = np.stack([BIRDS, -FISH])
    tokens = made.average.each(lambda average, shift: average + shift, made.shift(content))
    np.testing.assert_allclose(made.residuals(at(made, tokens), content), 0, atol=1e-9)
    off = made.residuals(at(made, tokens, 2.0), content)
    wanted = TokenStatistics(*(2 * scale for scale in parts(made.scale))).flat()
    np.testing.assert_allclose(off, np.repeat(wanted, 2, axis=0), atol=1e-9)


def batch(size: int, seed: int, width: int = 5) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((size, KINDS)), rng.standard_normal((size, width)), rng.uniform(0, 1, size)


def test_the_reference_is_a_weighted_average_of_the_images_it_learnt() -> None:
    baseline = CameraBaseline(0.0, np.zeros(KINDS), np.zeros(5))
    batches = [batch(size, seed) for seed, size in enumerate((1, 8, 8, 3))]
    for offsets, residuals, weights in batches:
        baseline = baseline.learn(offsets, residuals, weights)
    offsets, residuals, weights = (np.concatenate(column) for column in zip(*batches, strict=True))
    assert baseline.images == pytest.approx(weights.sum())
    np.testing.assert_allclose(baseline.offset, np.average(offsets, axis=0, weights=weights))
    np.testing.assert_allclose(baseline.residual, np.average(residuals, axis=0, weights=weights))


def test_images_without_weight_teach_nothing() -> None:
    for baseline in (
        CameraBaseline(0.0, np.zeros(KINDS), np.zeros(5)),
        CameraBaseline(BASELINE_IMAGES, BIRDS, np.ones(5)),
    ):
        offsets, residuals, weights = batch(8, seed=0)
        again = baseline.learn(offsets, residuals, 0 * weights)
        assert again.images == baseline.images
        np.testing.assert_array_equal(again.offset, baseline.offset)
        np.testing.assert_array_equal(again.residual, baseline.residual)
        # Among others they do not count either.
        some, alone = weights * (np.arange(8) < 3), slice(0, 3)
        mixed = baseline.learn(offsets, residuals, some)
        expected = baseline.learn(offsets[alone], residuals[alone], weights[alone])
        np.testing.assert_allclose(mixed.residual, expected.residual)
        assert mixed.images == pytest.approx(expected.images)


def test_the_reference_forgets_slowly_beyond_its_number_of_images() -> None:
    """A full one gives an eighth of its weight to 64 images, and its number stays."""
    baseline = CameraBaseline(BASELINE_IMAGES, np.zeros(KINDS), np.zeros(5))
    for i in range(1, 4):
        baseline = baseline.learn(np.ones((64, KINDS)), np.ones((64, 5)), np.ones(64))
        assert baseline.images == BASELINE_IMAGES
        np.testing.assert_allclose(baseline.residual, 1 - (1 - 64 / BASELINE_IMAGES) ** i)
    np.testing.assert_allclose(baseline.offset, baseline.residual[0])


def test_more_images_at_once_than_the_reference_counts_are_averaged_and_not_overshot() -> None:
    baseline = CameraBaseline(100.0, np.zeros(KINDS), np.zeros(5))
    size = int(BASELINE_IMAGES) + 300
    learnt = baseline.learn(np.ones((size, KINDS)), np.ones((size, 5)), np.ones(size))
    assert learnt.images == BASELINE_IMAGES
    np.testing.assert_allclose(learnt.offset, 1)
    np.testing.assert_allclose(learnt.residual, 1)


@pytest.mark.parametrize(
    ("content", "part"),
    [(BIRDS, 1.0), (2 * BIRDS, 1.0), (0.5 * BIRDS, 0.5), (FISH, 0.0), (-BIRDS, 0.0), (0 * BIRDS, 0.0)],
    ids=["same", "more of it", "half of it", "other", "opposite", "none"],
)
def test_a_reference_counts_as_far_as_it_agrees_in_content(content: Array, part: float) -> None:
    """The camera has shown birds, clean ones, whose tokens were off by 0.7."""
    made, images = targets(), np.array([50.0])
    updates = at(made, made.average)
    without, _ = made.find(updates, content[None], images, EMPTY)
    with_it, _ = made.find(updates, content[None], images, CameraBaseline(BASELINE_IMAGES, BIRDS, residual(0.7)))
    moved = with_it.flat() - without.flat()
    np.testing.assert_allclose(moved, part * 0.7, atol=0.02 * part)


def test_domains_are_judged_one_by_one() -> None:
    made, baseline = targets(), CameraBaseline(BASELINE_IMAGES, BIRDS, residual(0.7))
    content, images = np.stack([BIRDS, FISH, -BIRDS]), np.array([4.0, 16.0, 64.0])
    tokens = made.average.each(lambda part: np.repeat(part, 3, axis=0))
    updates = at(made, tokens, 0.5)
    target, believed = made.find(updates, content, images, baseline)
    for i in range(3):
        one = slice(i, i + 1)
        alone = made.find(updates.each(lambda part, one=one: part[one]), content[one], images[one], baseline)
        np.testing.assert_allclose(target.flat()[one], alone[0].flat())
        np.testing.assert_allclose(believed.flat()[one], alone[1].flat(), atol=1e-12)


def test_a_reference_of_few_images_is_trusted_little() -> None:
    """It is a measurement of what ``content_error`` expects to be wrong, and so few images measure badly."""
    made, images = targets(), np.array([50.0])
    moved = []
    for count in (0.0, 0.01, 1.0, 8.0, BASELINE_IMAGES):
        target, _ = made.find(at(made, made.average), BIRDS[None], images, CameraBaseline(count, BIRDS, residual(0.7)))
        moved.append(
            float((target.flat() - made.find(at(made, made.average), BIRDS[None], images, EMPTY)[0].flat()).mean())
        )
    assert moved[0] == pytest.approx(0, abs=1e-6) and moved[1] < 0.1 * 0.7
    assert sorted(moved) == moved and moved[-1] == pytest.approx(0.7, rel=0.02)
    sure = targets(content_error=0.0)  # if content says all, the camera has nothing to add
    target, _ = sure.find(
        at(sure, sure.average), BIRDS[None], images, CameraBaseline(BASELINE_IMAGES, BIRDS, residual(0.7))
    )
    np.testing.assert_allclose(target.flat(), sure.find(at(sure, sure.average), BIRDS[None], images, EMPTY)[0].flat())


def test_a_camera_of_average_content_has_no_baseline() -> None:
    """Without narrow content there is no error of the regression to mend: what differs then is drift."""
    made, images, content = targets(), np.array([50.0]), 2 * BIRDS[None]
    for doubtful in (content, np.zeros((1, KINDS))):
        average = CameraBaseline(BASELINE_IMAGES, np.zeros(KINDS), residual(0.7))
        found, expected = (made.find(at(made, made.average, 0.3), doubtful, images, each) for each in (average, EMPTY))
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one.flat(), two.flat())


def test_a_reference_removes_the_doubt_where_it_agrees() -> None:
    """A deviation from what this camera has shown of the same content is believed more than one from a regression."""
    made, images, content = targets(), np.array([1000.0]), 2 * BIRDS[None]
    deviating = at(made, made.find(at(made, made.average), content, images, EMPTY)[0], 0.5)
    guess = made.find(deviating, content, images, EMPTY)[1]
    for own, agrees in ((2 * BIRDS, True), (2 * FISH, False)):
        known = made.find(deviating, content, images, CameraBaseline(BASELINE_IMAGES, own, residual(0.0)))[1]
        for one, two in zip(parts(known), parts(guess), strict=True):
            if agrees:
                assert (two < 0.6).all() and (one > 0.9).all()
            else:
                np.testing.assert_allclose(one, two)


def test_nothing_is_known_of_a_camera_at_first() -> None:
    empty = targets().no_baseline(DIM)
    assert (
        empty.images == 0 and empty.offset.shape == EMPTY.offset.shape and empty.residual.shape == EMPTY.residual.shape
    )
    assert not empty.offset.any() and not empty.residual.any()
