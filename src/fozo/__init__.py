"""fozo keeps a deployed vision model accurate while its images drift, with forward passes only."""

import importlib

TYPE_CHECKING = False  # type checkers know the name, and importing typing for it takes time

if TYPE_CHECKING:
    from fozo.core.statistics import Statistics
    from fozo.data.sets import open_images
    from fozo.data.streams import Stream
    from fozo.engines.load import LoadOptions, load_engine
    from fozo.errors import FozoError
    from fozo.methods.align import Align
    from fozo.methods.common.description import ModelDescription, describe_model
    from fozo.methods.common.info import MethodInfo
    from fozo.methods.fozo import FOZO, replay_prompts
    from fozo.methods.frames import Equaliser
    from fozo.methods.method import Method, Result
    from fozo.methods.noadapt import NoAdapt
    from fozo.methods.registry import create, list_methods
    from fozo.monitor import Guarded, Monitor, Reference, describe
    from fozo.public import adapter, calibrate, export
    from fozo.state import State
    from fozo.types import Engine, Knobs, Move, Spec, Tap

__version__ = "0.3.0"

__all__ = [
    "FOZO", "Align", "Engine", "Equaliser", "FozoError", "Guarded", "Knobs", "LoadOptions", "Method", "MethodInfo",
    "ModelDescription", "Monitor", "Move", "NoAdapt", "Reference", "Result", "Spec", "State", "Statistics", "Stream",
    "Tap", "adapter", "calibrate", "create", "describe", "describe_model", "export", "list_methods", "load_engine",
    "open_images", "replay_prompts",
]  # fmt: skip

_MODULES = {
    "core.statistics": ("Statistics",),
    "data.sets": ("open_images",),
    "data.streams": ("Stream",),
    "engines.load": ("LoadOptions", "load_engine"),
    "errors": ("FozoError",),
    "methods.align": ("Align",),
    "methods.common.description": ("ModelDescription", "describe_model"),
    "methods.common.info": ("MethodInfo",),
    "methods.fozo": ("FOZO", "replay_prompts"),
    "methods.frames": ("Equaliser",),
    "methods.method": ("Method", "Result"),
    "methods.noadapt": ("NoAdapt",),
    "methods.registry": ("create", "list_methods"),
    "monitor": ("Guarded", "Monitor", "Reference", "describe"),
    "public": ("adapter", "calibrate", "export"),
    "state": ("State",),
    "types": ("Engine", "Knobs", "Move", "Spec", "Tap"),
}
"""The modules of the public names. The imports above are for readers and type checkers."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that ``import fozo`` takes no time."""
    for module, names in _MODULES.items():
        if name in names:
            value = getattr(importlib.import_module(f"fozo.{module}"), name)
            globals()[name] = value
            return value
    from fozo.errors import RENAMED

    hint = f"; it is called {RENAMED[name]} now" if name in RENAMED else ""
    raise AttributeError(f"module 'fozo' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
