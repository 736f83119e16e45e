"""fozo keeps a deployed vision model accurate while its images drift, with forward passes only."""

from typing import TYPE_CHECKING

from fozo.api import adapter
from fozo.calibration import calibrate
from fozo.core.statistics import SourceStatistics
from fozo.errors import FozoError
from fozo.loading import LoadOptions, load_engine
from fozo.methods.align import Align
from fozo.methods.base import Method, MethodInfo
from fozo.methods.fozo import FOZO, replay
from fozo.methods.noadapt import NoAdapt
from fozo.methods.registry import create, list_methods
from fozo.types import Engine, Knobs, Move, Spec, Tap

if TYPE_CHECKING:
    from fozo.data.sets import open_images
    from fozo.data.streams import Stream
    from fozo.exporting import export

__version__ = "0.1.0"

__all__ = [
    "FOZO", "Align", "Engine", "FozoError", "Knobs", "LoadOptions", "Method", "MethodInfo", "Move", "NoAdapt",
    "SourceStatistics", "Spec", "Stream", "Tap", "adapter", "calibrate", "create", "export", "list_methods",
    "load_engine", "open_images", "replay",
]  # fmt: skip

_LAZY = {"Stream": "fozo.data.streams", "export": "fozo.exporting", "open_images": "fozo.data.sets"}


def __getattr__(name: str) -> object:
    """Import what needs image libraries only when it is asked for: ``import fozo`` stays light."""
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'fozo' has no attribute {name!r}")
