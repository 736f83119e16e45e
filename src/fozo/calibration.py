"""Calibration: an engine and clean images give the source statistics that adaptation is measured against."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from fozo.core.content import ContentBasis, ContentMoments, contents
from fozo.core.descriptor import describe
from fozo.core.moments import Moments, log_variance
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.types import Array, Engine, Images, Tap

TAPS = (Tap.LOGITS, Tap.CLS, Tap.FEATURES, Tap.POOLED, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


def calibrate(engine: Engine, batches: Iterable[Images]) -> SourceStatistics:
    """Run the plain model once over clean batches ``[B, channels, height, width]``, normalised.

    One forward pass an image, memory of one batch. A few hundred images are enough; the paper uses the
    whole ImageNet validation set.
    """
    if "tokens" not in engine.abilities:
        return calibrate_black_box(engine, batches)
    gathered: SourceStatistics | None = None
    head = engine.head()
    basis = ContentBasis.of(head)
    vectors = basis.vectors(head)
    for images in batches:
        batch = engine.check(images)
        taps = engine.run(batch, taps=TAPS)
        values: dict[str, Array] = {
            tap.value: np.asarray(taps[tap][0], dtype=np.float64)
            for tap in (Tap.CLS, Tap.FEATURES, Tap.POOLED, Tap.PATCH_MEAN)
        }
        values["patch_log_variance"] = log_variance(taps[Tap.PATCH_VARIANCE][0])
        values["descriptor"] = describe(batch.images)
        conditioned = {name: values[name] for name in SourceStatistics.CONDITIONED}
        part = SourceStatistics(
            fingerprint=engine.spec.fingerprint,
            content=ContentMoments.of(basis, contents(taps[Tap.LOGITS][0], vectors), conditioned),
            model=engine.spec.name,
            **{name: Moments.of(value) for name, value in values.items()},
        )
        gathered = part if gathered is None else gathered.merge(part)
    return _enough(gathered)


def calibrate_black_box(engine: Engine, batches: Iterable[Images]) -> SourceStatistics:
    """Describe clean images. A model that shows nothing of its inside is not run at all."""
    gathered: SourceStatistics | None = None
    for images in batches:
        descriptors = describe(engine.check(images).images)
        part = SourceStatistics.of_images(engine.spec.fingerprint, engine.spec.name, descriptors)
        gathered = part if gathered is None else gathered.merge(part)
    return _enough(gathered)


def _enough(gathered: SourceStatistics | None) -> SourceStatistics:
    if gathered is None or gathered.images < 2:
        count = 0 if gathered is None else gathered.images
        raise FozoError(f"source statistics need at least two clean images, not {count}; give more batches")
    return gathered
