"""The functions that a README shows: ``fozo.adapter``, ``fozo.calibrate`` and ``fozo.export``."""

import importlib
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from fozo.core.content import ContentBasis, ContentMoments, contents
from fozo.core.descriptor import describe, haar_noise
from fozo.core.moments import Moments, log_variance
from fozo.core.noise import generator
from fozo.core.normalisation import BYTES, InputRange, Normalisation, common, name_of
from fozo.core.statistics import Statistics
from fozo.core.tokens import PatchMoments, displacement, pooled_moments, transport
from fozo.data.inputs import batches, is_video
from fozo.data.sets import open_images
from fozo.data.streams import in_order
from fozo.engines.blackbox import to_numpy
from fozo.engines.load import LoadOptions, Model, load_engine
from fozo.errors import FozoError, ImageWarning
from fozo.io import check_output
from fozo.methods.align import Align
from fozo.methods.common.description import report_model
from fozo.methods.equalise import Equalise
from fozo.methods.frames import Equaliser, FrameAdapter, describe_images
from fozo.types import LOG, Array, Batch, Engine, Floats, Spec, Tap

LOG_SECONDS = 5.0  # between two lines of the log
GROUP = 8  # images whose patch moments are measured together
SAMPLED_IMAGES = 40
SAMPLE_BYTES = 64 << 20
TAPS = (Tap.LOGITS, Tap.CLS, Tap.FEATURES, Tap.POOLED, Tap.PATCH_MEAN, Tap.PATCH_VARIANCE)
INT8 = ("dynamic", "static")
CALIBRATION_IMAGES = 128
CALIBRATION_BATCH = 8
LEAST_WHITE = 8.0  # the brightest value of a batch of bytes is above it, that of normalised floats is not
LEAST_PROBED = 16  # images on which normalisations are compared
LEAST_LEAD = 0.02  # in mean confidence
LEAST_LEAD_ERRORS = 2.0
"""In standard errors of the mean. On 64 images the own normalisations of ViT-Tiny and DeiT-Tiny lead by 1.9 of them or
more; on 16, no other leads by more than 0.5."""


@overload
def adapter(model: Model, clean: object, *, channels: str, **options: object) -> FrameAdapter: ...  # type: ignore[overload-overlap]
@overload
def adapter(model: Model, clean: object, **options: object) -> Align | Equalise: ...
def adapter(model: Model, clean: object, **options: object) -> Align | Equalise | FrameAdapter:
    """Make the recommended method for a model: ``adapter(images)`` adapts to a batch and predicts it.

    Examples:
        >>> adapter = fozo.adapter(model, "camera/clean", slots=2)
        >>> logits = adapter(batch)

    Args:
        model: an engine, or anything that :func:`fozo.load_engine` makes one of: a ViT of timm, transformers or
            torchvision, a file of weights, an ``.onnx`` file, a folder of transformers', ``timm:NAME``, or any other
            model or function of images, which then has its images equalised and returns what it always returns.
        clean: clean images to calibrate on now, in any form that :func:`fozo.calibrate` takes (a ``DataLoader``, a
            folder, a video, a list of PIL images), or what it gave, or the file that keeps that.
        options: fields of :class:`fozo.LoadOptions` (``mean=0.5``) and of :class:`fozo.methods.align.AlignConfig`
            (``slots=2``), and ``journal=``; for models that show no tokens of
            :class:`fozo.methods.equalise.EqualiseConfig`. With ``channels="bgr"`` (or ``"rgb"``) images are frames as
            OpenCV gives them, ``uint8 [height, width, 3]`` of several sizes, and so is what the model gets
            (:class:`fozo.methods.frames.FrameAdapter`).
    """
    load: dict[str, Any] = {
        field.name: options.pop(field.name) for field in fields(LoadOptions) if field.name in options
    }
    channels = load.pop("channels", None)
    if channels is not None:
        if not callable(model) or isinstance(model, Engine) or load:
            what = f"takes no {next(iter(load))}=" if load else "is for a function of frames"
            raise FozoError(
                f"fozo.adapter with channels= {what}; prepare frames for the model in a function, and give that"
            )
        return FrameAdapter(Equaliser(clean, channels=channels, **options), model)
    engine = load_engine(model, **load)
    if isinstance(clean, Statistics):
        report_model(engine)
        statistics = clean
    elif isinstance(clean, (str, os.PathLike)) and not Path(clean).is_dir() and not is_video(clean):
        report_model(engine)
        statistics = Statistics.load(clean)
    else:
        statistics = calibrate(engine, clean)
    if "tokens" not in engine.abilities:
        return Equalise(engine, statistics, **options)  # type: ignore[arg-type]
    return Align(engine, statistics, **options)  # type: ignore[arg-type]


def calibrate(model: Model, clean: object) -> Statistics:
    """Run the plain model once over clean images.

    One forward pass an image, memory of one batch. A few dozen images of your own camera are enough, or a few hundred
    mixed ones (``itertools.islice(loader, 8)`` takes eight batches).

    Examples:
        >>> fozo.calibrate(model, "camera/clean").save("camera.safetensors")
        >>> fozo.Statistics.load("camera.safetensors").images
        16

    Args:
        model: an engine, or anything that :func:`fozo.load_engine` makes one of.
        clean: clean images: a ``DataLoader``, a ``Dataset`` or another iterable of batches or of single images, an
            array of all of them, a folder, a video, or what :func:`fozo.open_images` opened. :mod:`fozo.data.inputs`
            lists the forms of a batch.
    """
    engine = load_engine(model)
    report_model(engine)
    if "tokens" not in engine.abilities:  # a black box is not run: its images are described
        return _gather(engine, engine.spec, clean, partial(describe_images, engine))
    spec, clean = _with_normalisation(engine, clean)
    head = engine.head()
    basis = ContentBasis.of(head)
    vectors = basis.vectors(head)

    sample = PatchSample() if "matrices" in engine.abilities and engine.spec.aligned else None

    def measure(batch: Batch) -> Statistics:
        taps, patch_moments = _run_in_groups(engine, batch, sample)
        values: dict[str, Array] = {
            tap.value: np.asarray(taps[tap][0], dtype=np.float64)
            for tap in (Tap.CLS, Tap.FEATURES, Tap.POOLED, Tap.PATCH_MEAN)
        }
        values["patch_log_variance"] = log_variance(taps[Tap.PATCH_VARIANCE][0])
        values["descriptor"] = describe(batch.images)
        conditioned = {name: values[name] for name in Statistics.CONDITIONED}
        return Statistics(
            fingerprint=engine.spec.fingerprint,
            content=ContentMoments.of(basis, contents(taps[Tap.LOGITS][0], vectors), conditioned),
            model=engine.spec.name,
            inputs=InputRange.of(batch.images, spec.normalisation),
            patch_moments=patch_moments,
            noise=float(haar_noise(batch.images).mean()),
            **{name: Moments.of(value) for name, value in values.items()},
        )

    statistics = _gather(engine, spec, clean, measure)
    if sample is None or statistics.patch_moments is None:
        return statistics
    return replace(statistics, patch_moments=sample.with_displacement(statistics.patch_moments))


def _run_in_groups(
    engine: Engine, batch: Batch, sample: "PatchSample | None"
) -> tuple[dict[Tap, Floats], PatchMoments | None]:
    """Run some images at a time, because their patch moments take much memory."""
    if sample is None:
        return engine.run(batch, taps=TAPS), None
    runs = []
    patch_moments: PatchMoments | None = None
    for start in range(0, len(batch), GROUP):
        group = batch.part(slice(start, start + GROUP))
        taps = engine.run(group, taps=(*TAPS, Tap.PATCH_MOMENTS))
        moments = taps.pop(Tap.PATCH_MOMENTS)[0]
        sample.add(moments)
        mean, covariance = pooled_moments(moments)
        unknown = np.zeros(len(mean))
        new = PatchMoments(len(group), mean, covariance.astype(np.float32), unknown)
        patch_moments = new if patch_moments is None else patch_moments.merge(new)
        runs.append(taps)
    return {tap: np.concatenate([taps[tap] for taps in runs], axis=1) for tap in TAPS}, patch_moments


class PatchSample:
    """Patch moments of some images, drawn evenly from all that come: what chance does to groups of them."""

    def __init__(self) -> None:
        self.images: list[npt.NDArray[np.float32]] = []
        self.seen = 0
        self._numbers = generator(0, "patch sample")

    def add(self, moments: Floats) -> None:
        for image in moments.astype(np.float32):
            self.seen += 1
            size = max(2 * GROUP, min(SAMPLED_IMAGES, SAMPLE_BYTES // image.nbytes))
            if len(self.images) < size:
                self.images.append(image)
            elif (place := int(self._numbers.integers(self.seen))) < size:
                self.images[place] = image

    def with_displacement(self, clean: PatchMoments) -> PatchMoments | None:
        """Say how far groups of clean images are displaced; nothing is known of fewer than two groups."""
        groups = [self.images[start : start + GROUP] for start in range(0, len(self.images) - GROUP + 1, GROUP)]
        if len(groups) < 2:
            return None
        roots = clean.roots
        total = np.zeros(len(roots))
        for group in groups:
            _, covariances = pooled_moments(np.stack(group).astype(np.float64))
            for block, (root, covariance) in enumerate(zip(roots, covariances, strict=True)):
                total[block] += displacement(transport(root, covariance), covariance)
        own_share = GROUP / self.seen  # a group is a part of what it is compared with
        return replace(clean, displacement=GROUP * total / len(groups) / (1 - own_share))


def _with_normalisation(engine: Engine, clean: object) -> tuple[Spec, object]:
    """Find the mean and std of a model that states none, by its confidence on clean pixels under the usual ones.

    Returns the engine's spec, completed, and the clean images again, which may be such as can be read only once.
    Images that come as normalised floats are left to :func:`_report_normalisation`.
    """
    spec = engine.spec
    if spec.normalisation is not None:
        return spec, clean
    first = clean
    if isinstance(clean, Iterator):
        clean, first = itertools.tee(clean)
    mean, std = BYTES
    as_bytes = replace(spec, mean=mean[:1] * spec.channels, std=std[:1] * spec.channels)
    images = next(iter(batches(first, as_bytes)), None)
    if images is None or images.min() < 0 or images.max() < LEAST_WHITE:
        return spec, clean
    pixels = to_numpy(images) / 255
    usual = common(spec.channels)
    confidences = [_confidences(engine, pixels, normalisation) for normalisation in usual]
    best, second, *others = np.argsort([-values.mean() for values in confidences]).tolist()
    compared = (
        f"on {len(pixels)} clean images it is surest of {name_of(usual[best])} ({confidences[best].mean():.2f}), then "
        f"of {name_of(usual[second])} ({confidences[second].mean():.2f})"
    )
    leads = [confidences[best] - confidences[other] for other in (second, *others)]
    errors = [lead.std() / len(pixels) ** 0.5 for lead in leads]
    clear = all(
        lead.mean() >= max(LEAST_LEAD, LEAST_LEAD_ERRORS * error) for lead, error in zip(leads, errors, strict=True)
    )
    if not clear or len(pixels) < LEAST_PROBED:
        raise FozoError(
            f"the mean and std of {spec.name} are unknown; pass mean= and std= (augreg ViTs use 0.5 for both, DeiT "
            f"uses ImageNet's), or more clean images, because its confidence does not tell them clearly: {compared}"
        )
    sentence = (
        f"{spec.name} does not state its mean and std; {compared}, so clean images and later ones are read as the "
        f"first; pass mean= and std= to be certain"
    )
    LOG.warning(sentence)
    warnings.warn(sentence, ImageWarning, stacklevel=3)
    mean, std = usual[best]
    return replace(spec, mean=mean, std=std), clean


def _confidences(engine: Engine, pixels: Floats, normalisation: Normalisation) -> Array:
    """How sure the model is of each image; pixels are 0 to 1."""
    mean, std = np.reshape(normalisation, (2, -1, 1, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImageWarning)  # of values that few models read
        batch = engine.check(((pixels - mean) / std).astype(np.float32))
    confidences: Array = softmax(engine.run(batch)[Tap.LOGITS][0].astype(np.float64), axis=1).max(axis=1)
    return confidences


def _gather(engine: Engine, spec: Spec, clean: object, measure: Callable[[Batch], Statistics]) -> Statistics:
    gathered: Statistics | None = None
    began = time.monotonic()
    logged = began
    for images in batches(clean, spec):
        statistics = measure(engine.check(images))
        gathered = statistics if gathered is None else gathered.merge(statistics)
        now = time.monotonic()
        if now - logged > LOG_SECONDS:
            logged = now
            LOG.info("calibrating %s: %d images in %.0f s", engine.spec.name, gathered.images, now - began)
    if gathered is None or gathered.images < 2:
        count = 0 if gathered is None else gathered.images
        raise FozoError(f"source statistics need at least two clean images, not {count}; give more batches")
    LOG.info("calibrated: %r", gathered)
    _report_normalisation(gathered, spec)
    return gathered


def _report_normalisation(statistics: Statistics, spec: Spec) -> None:
    """Say how the clean images were normalised, where the model does not: a wrong one costs many points."""
    if spec.normalisation is not None or statistics.inputs is None:
        return
    normalisation = statistics.inputs.inferred()
    if normalisation is None:
        LOG.warning(
            "%s does not state its mean and std, and its clean images do not show one of the usual: only their range "
            "is compared with later images", spec.name,
        )  # fmt: skip
        return
    raw = normalisation == common(spec.channels)[0]
    if raw and not spec.depth:  # as detectors read them
        return
    hint = ", which few models read: normalise them as the training images were" if raw else ""
    sentence = (
        f"{spec.name} does not state its mean and std; the clean images look like {name_of(normalisation)}{hint}, and "
        f"later images are compared with that; pass mean= and std= to be certain"
    )
    LOG.warning(sentence)
    warnings.warn(sentence, ImageWarning, stacklevel=4)


def export(
    engine: Engine,
    path: str | os.PathLike[str],
    *,
    int8: str | None = None,
    calibration: str | os.PathLike[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Spec:
    """Write the model of a torch engine as ONNX and return the spec of what was written.

    Examples:
        >>> fozo.export(fozo.load_engine(torch_vit, mean=0.5, std=0.5), "model.onnx").classes
        7

    Args:
        engine: what ``load_engine`` made of a torch model or a weights file.
        path: the ``.onnx`` file to write; an old one is replaced once the new one is complete.
        int8: ``None`` for float32; ``"dynamic"`` for INT8 weights and activations quantized as they come;
            ``"static"`` for activation ranges fixed beforehand on clean images.
        calibration: a folder of clean images (``class/image`` or any other layout of ``open_images``), for ``static``.
        labels: names of the classes, in the order of the logits.
    """
    target = Path(path)
    _check(target, engine, int8, calibration)
    spec = engine.spec
    if labels is not None:
        spec = replace(spec, labels=tuple(labels))
    from fozo.engines.onnx.export import build_graph, write_model
    from fozo.engines.torch_engine import TorchEngine

    assert isinstance(engine, TorchEngine)
    if int8 is None:
        write_model(build_graph(engine), spec, target)
        return spec
    from fozo.quant.onnx_int8 import write_int8

    return write_int8(engine, spec, target, None if calibration is None else _clean_batches(spec, Path(calibration)))


def _check(target: Path, engine: Engine, int8: str | None, calibration: str | os.PathLike[str] | None) -> None:
    if target.suffix != ".onnx":
        raise FozoError(f"the exported file must end in .onnx, not {target.name!r}; engines are chosen by that ending")
    check_output(target)
    if int8 is not None and int8 not in INT8:
        raise FozoError(f"int8 must be 'dynamic' or 'static', not {int8!r}")
    if int8 == "static" and calibration is None:
        raise FozoError("static INT8 needs clean images to learn activation ranges from; give --calibration DIR")
    if int8 != "static" and calibration is not None:
        raise FozoError("calibration images are used by static INT8 only; leave them out, or give --int8 static")
    if "torch" not in engine.abilities:
        raise FozoError(f"only a torch model can be exported, not {type(engine).__name__}; give its weights file")
    if "gradient" not in engine.abilities:
        raise FozoError(
            f"{engine.spec.name} is quantised in simulation, which ONNX cannot hold; export its weights with --int8"
        )
    try:
        importlib.import_module("onnx")
    except ImportError as error:
        raise FozoError("exporting needs the onnx package; install it with pip install 'fozo[export]'") from error


def _clean_batches(spec: Spec, folder: Path) -> Iterator[Floats]:
    images = open_images(folder)
    # Labels play no part, so sets with other classes than the model's will do; corruptions will not.
    if images.corrupted:
        raise FozoError(f"{folder} holds corrupted images; calibrate on clean ones")
    few = images.take(min(len(images), CALIBRATION_IMAGES))
    return (batch.images for batch in in_order(few, spec, batch_size=CALIBRATION_BATCH))
