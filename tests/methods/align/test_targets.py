"""Targets: deviations are believed as far as they are beyond chance and content."""

import numpy as np
import pytest

from fozo.core.content import contents
from fozo.core.statistics import SourceStatistics
from fozo.methods.align.moves import NAMES, Targets, layer_counts, split
from fozo.types import Affine, Array
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


def find(
    made: Targets, tokens: Array, content: Array, images: float | list[float], off: float = 0.0
) -> tuple[Array, Array]:
    """Targets, and beliefs, for tokens that are ``off`` by this many standard deviations in each feature."""
    unmoved = tokens + off * made.scale
    updates = np.concatenate([np.diff(part, axis=1, prepend=0.0) for part in split(unmoved, DEPTH)], axis=1)
    vectors = ((updates - made.centre) / made.unit).astype(np.float32)
    return made.find(vectors, content.astype(np.float32), np.atleast_1d(images))[1:]


SOURCE, INDIFFERENT = calibrated(), calibrated(0 * LAW)


def test_a_deviation_within_chance_is_not_believed_and_one_far_beyond_it_is() -> None:
    """Sixteen images are off by a quarter of a standard deviation by chance."""
    made = targets(source=INDIFFERENT)
    for off, least, most in ((0.0, 0, 0), (0.1, 0, 0), (0.23, 0, 0), (0.25, 0, 0.2), (0.5, 0.7, 0.8), (3.0, 0.99, 1)):
        target, believed = find(made, made.average, NO_CONTENT, 16.0, off)
        np.testing.assert_allclose(target, made.average)
        assert least <= believed.min() and believed.max() <= most and believed.shape == (1, LAYERS, 1)


def test_the_more_images_the_smaller_a_deviation_is_believed() -> None:
    made = targets(source=INDIFFERENT)
    tokens = np.repeat(made.average, 4, axis=0)
    _, believed = find(made, tokens, np.zeros((4, KINDS)), [0.0, 1.0, 8.0, 200.0], 0.5)
    assert (believed[:2] == 0).all() and (believed[2] < believed[3]).all() and (believed[3] > 0.95).all()


@pytest.mark.parametrize("noise", [0.0, 1e-9])
def test_without_images_nothing_is_believed_however_well_content_explains_the_tokens(noise: float) -> None:
    """Tokens that follow from content alone leave no error by chance, and none of them may follow from no image."""
    rng = np.random.default_rng(1)
    shown = rng.standard_normal((40, KINDS))
    law = np.tensordot(shown, LAW, 1)
    values = {name: law + noise * rng.standard_normal(law.shape) for name in SourceStatistics.PARTS}
    target, believed = find(targets(source=invented_source(shown, values)), np.zeros((1, LAYERS, DIM)), NO_CONTENT, 0.0)
    assert (believed == 0).all() and np.isfinite(target).all()


def test_tokens_that_were_the_same_on_all_clean_images_are_no_trouble() -> None:
    shown = np.random.default_rng(1).standard_normal((20, KINDS))
    made = targets(source=invented_source(shown, {name: np.ones((20, DEPTH, DIM)) for name in SourceStatistics.PARTS}))
    for images in (0.0, 20.0):
        target, believed = find(made, made.average + 0.1, np.ones((1, KINDS)), images)
        np.testing.assert_allclose(target, 1)
        assert ((believed >= 0) & (believed <= 1)).all()


def test_narrow_content_has_a_target_of_its_own() -> None:
    """Where calibration's law puts the tokens of birds there is nothing to correct; at the average image there is."""
    made, content = targets(), 2 * BIRDS[None]
    target, believed = find(made, made.average, content, 1000.0)
    law = 2 * np.concatenate([LAW[0], LAW[0], LAW[0, : DEPTH // 2]])
    np.testing.assert_allclose(target[0] - made.average[0], law, atol=0.25)
    assert np.square(target[0] - made.average[0] - law).mean() < 0.01 * np.square(law).mean()
    # The tokens of birds that look like any image: all of the correction is missing, but a part of it is uncertain.
    np.testing.assert_allclose(believed, 1 - CONTENT_ERROR, atol=0.01)
    assert (find(made, target, content, 1000.0)[1] == 0).all()


def test_content_error_says_how_far_the_correction_for_content_is_trusted() -> None:
    found = []
    for content_error in (0.0, 0.4, 1.0, 5.0):
        made = targets(content_error)
        found.append(find(made, made.average, 2 * BIRDS[None], 1000.0)[1][:, :DEPTH].mean())
    assert found[0] > 0.99 and found[0] > found[1] > found[2] and found[2:] == [0, 0]


def test_content_is_read_from_predictions() -> None:
    """Confident predictions have the content of their class, less that of calibration, whatever its logit's size."""
    logits = np.full((2, 2 * KINDS), -50.0, dtype=np.float32)
    logits[0, 0] = logits[1, 1] = 50.0
    np.testing.assert_allclose(contents(logits, targets().offsets), [BIRDS, FISH] - SOURCE.content.mean, atol=1e-12)


def test_domains_are_judged_one_by_one() -> None:
    made, content, images = targets(), np.stack([BIRDS, FISH, -BIRDS]), [4.0, 16.0, 64.0]
    target, believed = find(made, np.repeat(made.average, 3, axis=0), content, images, 0.5)
    for i in range(3):
        alone = find(made, made.average, content[[i]], images[i], 0.5)
        np.testing.assert_allclose(target[[i]], alone[0])
        np.testing.assert_allclose(believed[[i]], alone[1], atol=1e-12)
