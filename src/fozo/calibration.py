"""Calibration: an engine and clean images give the source statistics that adaptation is measured against."""

from __future__ import annotations

import time
import warnings

import numpy as np

from fozo.core.content import ContentBasis, ContentMoments, contents
from fozo.core.descriptor import describe
from fozo.core.moments import Moments, log_variance
from fozo.core.normalisation import InputRange, common, name_of
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError, ImageWarning
from fozo.inputs import batches
from fozo.loading import Model, load_engine
from fozo.types import LOG, Array, Engine, Spec, Tap

TELL_SECONDS = 5.0
"""Between two lines of the log."""

TAPS = (Tap.LOGITS, Tap.CLS, Tap.FEATURES, Tap.POOLED, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)


def calibrate(model: Model, source: object) -> SourceStatistics:
    """Run the plain model once over clean images.

    One forward pass an image, memory of one batch. A few hundred images are enough, of which
    ``itertools.islice(loader, 8)`` takes eight batches; the paper uses the whole ImageNet validation set.

    Args:
        model: an engine, or anything that :func:`fozo.load_engine` makes one of.
        source: clean images: a ``DataLoader``, a ``Dataset`` or another iterable of batches or of single images, an
            array of all of them, a folder, a tar, or what :func:`fozo.open_images` opened. :mod:`fozo.inputs` has the
            forms of a batch.
    """
    engine = load_engine(model)
    if "tokens" not in engine.abilities:
        return _calibrate_black_box(engine, source)
    gathered: SourceStatistics | None = None
    head = engine.head()
    basis = ContentBasis.of(head)
    vectors = basis.vectors(head)
    began = told = time.monotonic()
    for images in batches(source, engine.spec):
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
            inputs=InputRange.of(batch.images, engine.spec.normalisation),
            **{name: Moments.of(value) for name, value in values.items()},
        )
        gathered = part if gathered is None else gathered.merge(part)
        if (now := time.monotonic()) - told > TELL_SECONDS:
            told = now
            LOG.info("calibrating %s: %d images in %.0f s", engine.spec.name, gathered.images, now - began)
    return _finished(gathered, engine.spec)


def _calibrate_black_box(engine: Engine, source: object) -> SourceStatistics:
    """Describe clean images. A model that shows nothing of its inside is not run at all."""
    gathered: SourceStatistics | None = None
    for images in batches(source, engine.spec):
        batch = engine.check(images)
        spec, inputs = engine.spec, InputRange.of(batch.images, engine.spec.normalisation)
        part = SourceStatistics.of_images(spec.fingerprint, spec.name, describe(batch.images), inputs)
        gathered = part if gathered is None else gathered.merge(part)
    return _finished(gathered, engine.spec)


def _finished(gathered: SourceStatistics | None, spec: Spec) -> SourceStatistics:
    if gathered is None or gathered.images < 2:
        count = 0 if gathered is None else gathered.images
        raise FozoError(f"source statistics need at least two clean images, not {count}; give more batches")
    _tell(gathered, spec)
    return gathered


def _tell(statistics: SourceStatistics, spec: Spec) -> None:
    """Say how the clean images were normalised, where the model does not: wrong for it, it costs many points."""
    LOG.info("calibrated: %r", statistics)
    if spec.normalisation is not None or statistics.inputs is None:
        return
    told = statistics.inputs.told()
    if told is None:
        LOG.warning(
            "%s does not tell its mean and std, and its clean images look like none of the usual: only their range can "
            "be held against later images", spec.name,
        )  # fmt: skip
        return
    left_out = (
        ", which few models read: normalise them as the training images were"
        if told == common(spec.channels)[0]
        else ""
    )
    sentence = (
        f"{spec.name} does not tell its mean and std; the clean images look like {name_of(told)}{left_out}, and later "
        f"images are held against that; pass mean= and std= to be sure"
    )
    LOG.warning(sentence)
    warnings.warn(sentence, ImageWarning, stacklevel=4)
