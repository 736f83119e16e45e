"""fozo keeps a deployed Vision Transformer accurate while its data drifts, with forward passes only."""

from typing import TYPE_CHECKING

from fozo.core.journal import replay
from fozo.core.statistics import SourceStatistics
from fozo.engines.base import Engine, Knobs, Move, Spec, Taps
from fozo.engines.load import load_engine
from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.fozo import FOZO
from fozo.methods.noadapt import NoAdapt
from fozo.methods.registry import MethodInfo, create

if TYPE_CHECKING:
    from fozo.methods.registry import methods
else:  # the callable package, see fozo/methods/__init__.py
    from fozo import methods

__version__ = "0.1.0"

__all__ = [
    "FOZO",
    "Engine",
    "FozoError",
    "Knobs",
    "Method",
    "MethodInfo",
    "Move",
    "NoAdapt",
    "SourceStatistics",
    "Spec",
    "Taps",
    "create",
    "load_engine",
    "methods",
    "replay",
]
