"""Calibration: an engine and clean images give the source statistics that adaptation is measured against."""

from __future__ import annotations

from collections.abc import Iterable

from fozo.core.descriptor import describe
from fozo.core.moments import Moments, log_variance
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.types import Engine, Images, Tap

TAPS = (Tap.CLS, Tap.FEATURES, Tap.POOLED, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


def calibrate(engine: Engine, batches: Iterable[Images]) -> SourceStatistics:
    """Run the plain model once over clean batches ``[B, channels, height, width]``, normalised.

    One forward pass an image, memory of one batch. A few hundred images are enough; the paper uses the
    whole ImageNet validation set.
    """
    gathered: SourceStatistics | None = None
    for images in batches:
        batch = engine.check(images)
        taps = engine.run(batch, taps=TAPS)
        part = SourceStatistics(
            fingerprint=engine.spec.fingerprint,
            cls=Moments.of(taps[Tap.CLS][0]),
            features=Moments.of(taps[Tap.FEATURES][0]),
            pooled=Moments.of(taps[Tap.POOLED][0]),
            patch_mean=Moments.of(taps[Tap.PATCH_MEAN][0]),
            patch_log_variance=Moments.of(log_variance(taps[Tap.PATCH_VARIANCE][0])),
            descriptor=Moments.of(describe(batch.images)),
            model=engine.spec.name,
        )
        gathered = part if gathered is None else gathered.merge(part)
    if gathered is None or gathered.images < 2:
        count = 0 if gathered is None else gathered.images
        raise FozoError(f"source statistics need at least two clean images, not {count}; give more batches")
    return gathered
