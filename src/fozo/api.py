"""The line that a README shows."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fozo.core.statistics import SourceStatistics
from fozo.loading import load_engine
from fozo.methods.align import Align
from fozo.types import Engine

if TYPE_CHECKING:
    import torch


def adapter(
    model: Engine | torch.nn.Module | str | os.PathLike[str],
    source: SourceStatistics | str | os.PathLike[str],
    **options: object,
) -> Align:
    """Make the recommended method for a model: ``adapter(images)`` adapts to a batch and predicts it.

    Args:
        model: an engine, or anything that :func:`fozo.load_engine` makes one of.
        source: the model's statistics on clean images, from :func:`fozo.calibrate`, or the file that keeps them.
        options: fields of :class:`fozo.methods.align.AlignConfig`.
    """
    statistics = source if isinstance(source, SourceStatistics) else SourceStatistics.load(source)
    return Align(load_engine(model), statistics, Align.configure(None, options))
