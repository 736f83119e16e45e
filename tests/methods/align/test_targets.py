"""Targets: deviations are believed as far as they are beyond chance, content and what the camera has shown."""

from __future__ import annotations

import numpy as np
import pytest

from fozo.core.content import contents
from fozo.core.statistics import SourceStatistics
from fozo.methods.align.alignment import layer_counts, split
from fozo.methods.align.targets import NAMES, CameraBaseline, Targets
from fozo.types import Affine, Array, Floats
from tests.helpers import invented_source

DEPTH, DIM, KINDS = 4, 50, 3
LAYERS = sum(layer_counts(DEPTH))
CONTENT_ERROR = 0.4
HEAD = Affine(np.concatenate([np.eye(KINDS), -np.eye(KINDS)], axis=1), np.zeros(2 * KINDS))
LAW = np.random.default_rng(0).standard_normal((KINDS, DEPTH, DIM))
"""How tokens follow from content, the same for each of the three statistics."""
BIRDS, FISH = np.eye(KINDS)[:2]
"""Two contents that have nothing in common."""
NO_CONTENT = np.zeros((1, KINDS))
FULL = 512.0
"""Images that a baseline is an average of, at most."""
EMPTY = CameraBaseline(0.0, np.zeros(KINDS), np.zeros((LAYERS, DIM)))


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


def added(tokens: Floats) -> Floats:
    """Block updates of images whose unmoved tokens are these."""
    return np.concatenate([np.diff(part, axis=1, prepend=0.0) for part in split(tokens, DEPTH)], axis=1)


def at(made: Targets, tokens: Floats, off: float = 0.0) -> Floats:
    """The same for tokens that are ``off`` by this many standard deviations in each feature."""
    return added(tokens + off * made.scale)


def baseline(offset: Array, residual: float = 0.7, images: float = FULL) -> CameraBaseline:
    """Of a camera whose clean tokens were off by ``residual``."""
    return CameraBaseline(images, offset, np.full((LAYERS, DIM), residual))


SOURCE, INDIFFERENT = calibrated(), calibrated(0 * LAW)


def test_a_deviation_within_chance_is_not_believed_and_one_far_beyond_it_is() -> None:
    """Sixteen images are off by a quarter of a standard deviation by chance."""
    made, images = targets(source=INDIFFERENT), np.array([16.0])
    for off, least, most in ((0.0, 0, 0), (0.1, 0, 0), (0.23, 0, 0), (0.25, 0, 0.2), (0.5, 0.7, 0.8), (3.0, 0.99, 1)):
        target, believed = made.find(at(made, made.average, off), NO_CONTENT, images, EMPTY)
        np.testing.assert_allclose(target, made.average)
        assert least <= believed.min() and believed.max() <= most and believed.shape == (1, LAYERS, 1)


def test_the_more_images_the_smaller_a_deviation_is_believed() -> None:
    made = targets(source=INDIFFERENT)
    updates = np.repeat(at(made, made.average, 0.5), 4, axis=0)
    _, believed = made.find(updates, np.zeros((4, KINDS)), np.array([0.0, 1.0, 8.0, 200.0]), EMPTY)
    assert (believed[:2] == 0).all() and (believed[2] < believed[3]).all() and (believed[3] > 0.95).all()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_without_images_nothing_is_believed_however_well_content_explains_the_tokens(noise: float) -> None:
    """Tokens that follow from content alone leave no error by chance, and none of them may follow from no image."""
    rng = np.random.default_rng(1)
    shown = rng.standard_normal((40, KINDS))
    law = np.tensordot(shown, LAW, 1)
    values = {name: law + noise * rng.standard_normal(law.shape) for name in SourceStatistics.PARTS}
    made = targets(source=invented_source(shown, values))
    target, believed = made.find(np.zeros((1, LAYERS, DIM)), NO_CONTENT, np.zeros(1), EMPTY)
    assert (believed == 0).all() and np.isfinite(target).all()


def test_tokens_that_were_the_same_on_all_clean_images_are_no_trouble() -> None:
    shown = np.random.default_rng(1).standard_normal((20, KINDS))
    made = targets(source=invented_source(shown, {name: np.ones((20, DEPTH, DIM)) for name in SourceStatistics.PARTS}))
    for images in (0.0, 20.0):
        target, believed = made.find(added(made.average + 0.1), np.ones((1, KINDS)), np.array([images]), EMPTY)
        np.testing.assert_allclose(target, 1)
        assert ((believed >= 0) & (believed <= 1)).all()


def test_narrow_content_has_a_target_of_its_own() -> None:
    """Where calibration's law puts the tokens of birds there is nothing to correct; at the average image there is."""
    made, images, content = targets(), np.array([1000.0]), 2 * BIRDS[None]
    target, believed = made.find(at(made, made.average), content, images, EMPTY)
    law = 2 * np.concatenate([LAW[0], LAW[0], LAW[0, : DEPTH // 2]])
    np.testing.assert_allclose(target[0] - made.average[0], law, atol=0.25)
    assert np.square(target[0] - made.average[0] - law).mean() < 0.01 * np.square(law).mean()
    # The tokens of birds that look like any image: all of the correction is missing, but a part of it is uncertain.
    np.testing.assert_allclose(believed, 1 - CONTENT_ERROR, atol=0.01)
    assert (made.find(at(made, target), content, images, EMPTY)[1] == 0).all()


def test_content_error_says_how_far_the_correction_for_content_is_trusted() -> None:
    images, content = np.array([1000.0]), 2 * BIRDS[None]
    found = []
    for content_error in (0.0, 0.4, 1.0, 5.0):
        made = targets(content_error)
        found.append(made.find(at(made, made.average), content, images, EMPTY)[1][:, :DEPTH].mean())
    assert found[0] > 0.99 and found[0] > found[1] > found[2] and found[2:] == [0, 0]


def test_content_is_read_from_predictions() -> None:
    """Confident predictions have the content of their class, less that of calibration, whatever its logit's size."""
    logits = np.full((2, 2 * KINDS), -50.0, dtype=np.float32)
    logits[0, 0] = logits[1, 1] = 50.0
    np.testing.assert_allclose(contents(logits, targets().offsets), [BIRDS, FISH] - SOURCE.content.mean, atol=1e-12)


def test_residuals_are_what_content_does_not_explain() -> None:
    made, content = targets(), np.stack([BIRDS, -FISH])
    tokens = made.average + made.shift(content)
    np.testing.assert_allclose(made.residuals(at(made, tokens), content), 0, atol=1e-9)
    off = made.residuals(at(made, tokens, 2.0), content)
    np.testing.assert_allclose(off, np.repeat(2 * made.scale, 2, axis=0), atol=1e-9)


def test_the_baseline_is_a_weighted_average_of_the_images_it_learnt() -> None:
    rng, learnt = np.random.default_rng(0), EMPTY
    weights, offsets = rng.uniform(0.1, 8, 4), rng.standard_normal((4, KINDS))
    residuals = rng.standard_normal((4, LAYERS, DIM))
    for weight, offset, residual in zip(weights.tolist(), offsets, residuals, strict=True):
        learnt = learnt.learn(weight, offset, residual)
    assert learnt.images == pytest.approx(weights.sum())
    np.testing.assert_allclose(learnt.offset, np.average(offsets, axis=0, weights=weights))
    np.testing.assert_allclose(learnt.residual, np.average(residuals, axis=0, weights=weights))


def test_the_baseline_forgets_slowly_beyond_512_images() -> None:
    """A full one gives an eighth of its weight to 64 images, and its number stays; it is never overshot."""
    learnt = baseline(0 * BIRDS, residual=0.0)
    for i in range(1, 4):
        learnt = learnt.learn(64.0, np.ones(KINDS), np.ones((LAYERS, DIM)))
        assert learnt.images == 512
        np.testing.assert_allclose(learnt.residual, 1 - (7 / 8) ** i)
    np.testing.assert_allclose(learnt.offset, learnt.residual[0, 0])
    learnt = baseline(0 * BIRDS, residual=0.0, images=100.0).learn(812.0, np.ones(KINDS), np.ones((LAYERS, DIM)))
    assert learnt.images == 512 and (learnt.offset == 1).all() and (learnt.residual == 1).all()


@pytest.mark.parametrize(
    ("content", "part"),
    [(BIRDS, 1.0), (2 * BIRDS, 1.0), (0.5 * BIRDS, 0.5), (FISH, 0.0), (-BIRDS, 0.0), (0 * BIRDS, 0.0)],
    ids=["same", "more of it", "half of it", "other", "opposite", "none"],
)
def test_a_baseline_counts_in_proportion_to_its_agreement_in_content(content: Array, part: float) -> None:
    """The camera has shown birds, clean ones, whose tokens were off by 0.7."""
    made, images = targets(), np.array([50.0])
    updates = at(made, made.average)
    found = [made.find(updates, content[None], images, each)[0] for each in (baseline(BIRDS), EMPTY)]
    np.testing.assert_allclose(found[0] - found[1], part * 0.7, atol=0.02 * part)


def test_domains_are_judged_one_by_one() -> None:
    made, content, images = targets(), np.stack([BIRDS, FISH, -BIRDS]), np.array([4.0, 16.0, 64.0])
    updates = at(made, np.repeat(made.average, 3, axis=0), 0.5)
    target, believed = made.find(updates, content, images, baseline(BIRDS))
    for i in range(3):
        alone = made.find(updates[[i]], content[[i]], images[[i]], baseline(BIRDS))
        np.testing.assert_allclose(target[[i]], alone[0])
        np.testing.assert_allclose(believed[[i]], alone[1], atol=1e-12)


def test_a_baseline_of_few_images_is_trusted_little() -> None:
    """It measures the error that ``content_error`` expects, and few images measure badly."""

    def moved(made: Targets, count: float) -> float:
        """How far the baseline moves the target."""
        updates, images = at(made, made.average), np.array([50.0])
        each = (baseline(BIRDS, images=count), EMPTY)
        with_it, without = (made.find(updates, BIRDS[None], images, camera)[0] for camera in each)
        return float((with_it - without).mean())

    found = [moved(targets(), count) for count in (0.0, 0.01, 1.0, 8.0, FULL)]
    assert found[0] == pytest.approx(0, abs=1e-6) and found[1] < 0.1 * 0.7
    assert sorted(found) == found and found[-1] == pytest.approx(0.7, rel=0.02)
    assert moved(targets(content_error=0.0), FULL) == 0  # if content says all, the camera has nothing to add


def test_a_camera_of_average_content_has_no_baseline() -> None:
    """Without narrow content there is no error of the regression to mend: what differs then is drift."""
    made, images = targets(), np.array([50.0])
    for content in (2 * BIRDS[None], NO_CONTENT):
        average = baseline(0 * BIRDS)
        found, expected = (made.find(at(made, made.average, 0.3), content, images, each) for each in (average, EMPTY))
        for one, two in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, two)


def test_a_baseline_removes_the_content_error_where_it_agrees() -> None:
    """A deviation from what this camera has shown of the same content is believed more than one from a regression."""
    made, images, content = targets(), np.array([1000.0]), 2 * BIRDS[None]
    deviating = at(made, made.find(at(made, made.average), content, images, EMPTY)[0], 0.5)
    guess = made.find(deviating, content, images, EMPTY)[1]
    agreeing, other = (made.find(deviating, content, images, baseline(2 * kind, 0.0))[1] for kind in (BIRDS, FISH))
    assert (guess < 0.6).all() and (agreeing > 0.9).all()
    np.testing.assert_allclose(other, guess)
