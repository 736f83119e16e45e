"""A ViT quantised by PTQ4ViT, run in simulation; :func:`fozo.quant.ptq4vit` searches its steps."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fozo.engines.ptq4vit.scales import BITS, METRICS, Scales
from fozo.types import Engine

if TYPE_CHECKING:
    from fozo.engines.ptq4vit.engine import QuantisedEngine

__all__ = ["BITS", "METRICS", "Scales", "with_scales"]


def with_scales(engine: Engine, scales: Scales | str | os.PathLike[str]) -> QuantisedEngine:
    """Quantise a torch engine's ViT with steps found before; a file of another model is refused."""
    from fozo.engines.ptq4vit.engine import QuantisedEngine, full_precision

    return QuantisedEngine(full_precision(engine), scales if isinstance(scales, Scales) else Scales.load(scales))
