"""The line that a README shows."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fozo.core.statistics import SourceStatistics
from fozo.loading import load_engine
from fozo.methods.align import Align
from fozo.methods.equalise import Equalise
from fozo.types import Engine

if TYPE_CHECKING:
    import torch


def adapter(
    model: Engine | torch.nn.Module | Callable[[Any], object] | str | os.PathLike[str],
    source: SourceStatistics | str | os.PathLike[str],
    **options: object,
) -> Align | Equalise:
    """Make the recommended method for a model: ``adapter(images)`` adapts to a batch and predicts it.

    Args:
        model: an engine, or anything that :func:`fozo.load_engine` makes one of.
        source: the model's statistics on clean images, from :func:`fozo.calibrate`, or the file that keeps them.
        options: fields of :class:`fozo.methods.align.AlignConfig`; for a model that shows no tokens, of
            :class:`fozo.methods.equalise.EqualiseConfig`.
    """
    statistics = source if isinstance(source, SourceStatistics) else SourceStatistics.load(source)
    engine = load_engine(model)
    if "tokens" not in engine.abilities:
        return Equalise(engine, statistics, Equalise.configure(None, options))
    return Align(engine, statistics, Align.configure(None, options))
