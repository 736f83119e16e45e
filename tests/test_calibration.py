"""Calibration: what an engine shows on clean images, gathered in one pass."""

import numpy as np
import pytest

import fozo
from fozo.core.descriptor import describe
from fozo.types import Tap
from tests.helpers import SMALL, random_images, run
from tests.refusals import refuses


def test_collected_statistics_equal_numpys(engine: fozo.Engine) -> None:
    images = random_images(20)
    whole = fozo.calibrate(engine, [images])
    parts = fozo.calibrate(engine, [images[:3]]).merge(fozo.calibrate(engine, [images[3:]]))
    taps = run(engine, images)
    np.testing.assert_allclose(whole.features.mean, taps[Tap.FEATURES][0].mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(whole.cls.std, taps[Tap.CLS][0].std(axis=0, ddof=1), atol=1e-5)
    assert whole.pooled.mean.shape == (SMALL.dim,)
    np.testing.assert_allclose(whole.patch_mean.mean, taps[Tap.PATCH_MEAN][0].mean(axis=0), atol=1e-5)
    log_variance = np.log(taps[Tap.PATCH_VARIANCE][0])
    np.testing.assert_allclose(whole.patch_log_variance.mean, log_variance.mean(axis=0), atol=1e-5)
    np.testing.assert_allclose(whole.descriptor.mean, describe(images).mean(axis=0), atol=1e-5)
    assert whole.descriptor.count == whole.images == 20
    assert whole.fingerprint == engine.spec.fingerprint and whole.model == engine.spec.name
    for name in whole.PARTS:
        np.testing.assert_allclose(getattr(parts, name).std, getattr(whole, name).std, atol=1e-5)
    assert parts.content.count == 20
    np.testing.assert_allclose(parts.content.products, whole.content.products, rtol=1e-4, atol=1e-5)
    for name in whole.CONDITIONED:
        found, wanted = parts.content.cross[name], whole.content.cross[name]
        np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_images(engine: fozo.Engine, count: int) -> None:
    refuses(f"at least two clean images, not {count}", fozo.calibrate, engine, [random_images(1)] * count)


def test_images_that_the_model_cannot_read_are_refused(engine: fozo.Engine) -> None:
    broken = random_images(4)
    broken[1] = np.nan
    refuses("image 1 of the batch", fozo.calibrate, engine, [random_images(4), broken])
