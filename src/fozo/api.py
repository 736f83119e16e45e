"""The line that a README shows."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from fozo.calibration import calibrate
from fozo.core.statistics import SourceStatistics
from fozo.loading import LoadOptions, Model, load_engine
from fozo.methods.align import Align
from fozo.methods.equalise import Equalise


def adapter(model: Model, source: object, **options: object) -> Align | Equalise:
    """Make the recommended method for a model: ``adapter(images)`` adapts to a batch and predicts it.

    >>> adapter = fozo.adapter(model, clean_loader)
    >>> logits = adapter(batch)

    Args:
        model: an engine, or anything that :func:`fozo.load_engine` makes one of: a ViT of timm, transformers or
            torchvision, a file of weights, an ``.onnx`` file, a folder of transformers', ``timm:NAME``, or any other
            model or function of images, which then has its images equalised and returns what it always returns.
        source: clean images to calibrate on now, in any form that :func:`fozo.calibrate` takes (a ``DataLoader``, a
            folder, a list of PIL images), or what it gave, or the ``.npz`` file that keeps that.
        options: fields of :class:`fozo.LoadOptions` (``mean=0.5``) and of :class:`fozo.methods.align.AlignConfig`
            (``passes=2``), and ``journal=``; for models that show no tokens of
            :class:`fozo.methods.equalise.EqualiseConfig`.
    """
    load: dict[str, Any] = {
        field.name: options.pop(field.name) for field in fields(LoadOptions) if field.name in options
    }
    engine = load_engine(model, **load)
    statistics = _statistics(engine, source)
    if "tokens" not in engine.abilities:
        return Equalise(engine, statistics, **options)  # type: ignore[arg-type]
    return Align(engine, statistics, **options)  # type: ignore[arg-type]


def _statistics(engine: Model, source: object) -> SourceStatistics:
    if isinstance(source, SourceStatistics):
        return source
    if isinstance(source, (str, os.PathLike)) and not Path(source).is_dir() and Path(source).suffix != ".tar":
        return SourceStatistics.load(source)
    return calibrate(engine, source)
