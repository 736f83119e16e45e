"""Our variant of FOZO: one prompt in units of the model's tokens."""

import numpy as np
import pytest
from scipy.special import softmax

import fozo
from fozo.methods.common.content_shift import ContentShift
from fozo.methods.scaled_fozo import ScaledFOZO, token_rms
from fozo.types import Tap
from tests.helpers import random_images, run


def test_it_predicts_the_mean_of_all_candidates(engine: fozo.Engine, source: fozo.Statistics) -> None:
    method = ScaledFOZO(engine, source, passes=4)
    candidates = method._spsa.ask(method.state().spsa)
    drifted = random_images(8) + 1.5
    logits = method(drifted)
    pooled = run(engine, drifted, fozo.Knobs(prompts=candidates))[Tap.POOLED]
    shift = method._shift.vector(method.state().shift)  # of this batch: it counts already
    assert np.abs(shift).max() > 0
    expected = softmax(engine.head()(pooled + shift), axis=2).mean(axis=0)
    np.testing.assert_allclose(np.exp(logits), expected, rtol=1e-4)


def test_it_perturbs_in_units_of_the_tokens_and_stays_in_its_radius(
    engine: fozo.Engine, source: fozo.Statistics
) -> None:
    method = ScaledFOZO(engine, source, trust=0.05)
    unit = token_rms(source)
    plus, minus = method._spsa.ask(method.state().spsa)
    assert plus.shape == (1, engine.spec.dim) and np.allclose(plus, -minus)
    assert np.std(plus) == pytest.approx(method.config.epsilon * unit, rel=0.2)
    stays = False
    for seed in range(20):
        before = method.state().spsa.point
        method(random_images(8, seed=seed))
        point = method.state().spsa.point
        stays = stays or bool((point == before).all())
        assert np.sqrt(np.square(point).mean()) <= 0.05 * unit
    assert point.any() and stays  # it moves, and a step that leads out is not taken


def test_the_content_shift_leaves_clean_images_alone_and_believes_a_drift(
    engine: fozo.Engine, source: fozo.Statistics
) -> None:
    scale = source.pooled.std
    for offset, believed in ((0.0, False), (2.0, True)):
        shift = ContentShift(source, engine.head(), 40.0)
        np.testing.assert_allclose(shift.deviation, scale, rtol=1e-2)  # the unit of what is believed
        sums = shift.init()
        for seed in range(3):
            pooled = run(engine, random_images(32, seed=200 + seed))[Tap.POOLED][0] + offset * scale
            sums = shift.take(sums, pooled)
        vector = shift.vector(sums)
        size = np.abs(vector / scale).mean()
        assert size > 1.0 if believed else size < 0.1
    centre = source.pooled.mean  # a drift is shifted to the origin, not to the source's mean
    assert (pooled.mean(axis=0) + vector) @ centre < 0.5 * centre @ centre
