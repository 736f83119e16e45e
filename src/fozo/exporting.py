"""``fozo.export``: a model as one ``.onnx`` file, in float32 or INT8."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fozo.data.sets import CLEAN, open_images
from fozo.data.sources import Stored
from fozo.errors import FozoError
from fozo.io import check_output
from fozo.types import Engine, Floats, Spec

INT8 = ("dynamic", "static")
CALIBRATION_IMAGES = 128
CALIBRATION_BATCH = 8


def export(
    engine: Engine,
    path: str | os.PathLike[str],
    *,
    int8: str | None = None,
    calibration: str | os.PathLike[str] | None = None,
    labels: Sequence[str] | None = None,
) -> Spec:
    """Write the model of a torch engine as ONNX and return the spec of what was written.

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
        if len(labels) != spec.classes:
            raise FozoError(f"{len(labels)} labels were given for the {spec.classes} classes of {spec.name}")
        spec = replace(spec, labels=tuple(labels))
    from fozo.engines.onnx.export import build_graph, write_model
    from fozo.engines.torch_engine import TorchEngine

    if not isinstance(engine, TorchEngine):
        raise FozoError(f"only a torch model can be exported, not {type(engine).__name__}; give its weights file")
    if int8 is None:
        write_model(build_graph(engine), spec, target)
        return spec
    from fozo.quant.onnx_int8 import write_int8

    return write_int8(engine, spec, target, None if calibration is None else _clean_batches(spec, Path(calibration)))


def _check(target: Path, engine: Engine, int8: str | None, calibration: str | os.PathLike[str] | None) -> None:
    """Refuse what cannot work before the work begins."""
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
    """Read clean images of any classes, a few at a time."""
    images = open_images(folder)
    # Labels play no part, so sets with other classes than the model's will do; corruptions will not.
    if images.corrupted:
        raise FozoError(f"{folder} holds corrupted images; calibrate on clean ones")
    source = Stored(images.take(min(len(images), CALIBRATION_IMAGES)), spec.image_size, spec.channels)
    for start in range(0, len(source.images), CALIBRATION_BATCH):
        indices = range(start, min(start + CALIBRATION_BATCH, len(source.images)))
        yield spec.normalise(np.stack([source.load(CLEAN, i) for i in indices]))
