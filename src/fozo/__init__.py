"""fozo keeps a deployed vision model accurate while its images drift, with forward passes only."""

import sys

TYPE_CHECKING = False  # type checkers know the name; typing, which it usually comes from, is slow to import

if TYPE_CHECKING:
    from fozo.core.statistics import SourceStatistics
    from fozo.data.sets import open_images
    from fozo.data.streams import Stream
    from fozo.engines.load import LoadOptions, load_engine
    from fozo.errors import FozoError
    from fozo.methods.align import Align
    from fozo.methods.base import Method
    from fozo.methods.common.description import ModelDescription, describe_model
    from fozo.methods.common.info import MethodInfo
    from fozo.methods.fozo import FOZO, replay
    from fozo.methods.noadapt import NoAdapt
    from fozo.methods.registry import create, list_methods
    from fozo.monitor import Guarded, Monitor, MonitorReference, describe
    from fozo.public import adapter, calibrate, export
    from fozo.types import Engine, Knobs, Move, Spec, Tap

__version__ = "0.2.0"

__all__ = [
    "FOZO", "Align", "Engine", "FozoError", "Guarded", "Knobs", "LoadOptions", "Method", "MethodInfo",
    "ModelDescription", "Monitor", "MonitorReference", "Move", "NoAdapt", "SourceStatistics", "Spec", "Stream", "Tap",
    "adapter", "calibrate", "create", "describe", "describe_model", "export", "list_methods", "load_engine",
    "open_images", "replay",
]  # fmt: skip

_HOMES = {
    "core.statistics": ("SourceStatistics",),
    "data.sets": ("open_images",),
    "data.streams": ("Stream",),
    "engines.load": ("LoadOptions", "load_engine"),
    "errors": ("FozoError",),
    "methods.align": ("Align",),
    "methods.base": ("Method",),
    "methods.common.description": ("ModelDescription", "describe_model"),
    "methods.common.info": ("MethodInfo",),
    "methods.fozo": ("FOZO", "replay"),
    "methods.noadapt": ("NoAdapt",),
    "methods.registry": ("create", "list_methods"),
    "monitor": ("Guarded", "Monitor", "MonitorReference", "describe"),
    "public": ("adapter", "calibrate", "export"),
    "types": ("Engine", "Knobs", "Move", "Spec", "Tap"),
}
"""Where the public names live. The imports above are for readers and type checkers."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for.

    So ``import fozo`` costs nothing, and the command can see to Ctrl-C before it imports anything that takes time.
    """
    import importlib

    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f"fozo.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module 'fozo' has no attribute {name!r}")


class _Torchvision:
    """Lets torchvision, and so timm, be imported where a CUDA build of it lies beside a CPU build of torch.

    Its extension does not load there, and its import fails for two operators, which are declared here in time.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "torchvision._meta_registrations":
            import importlib

            importlib.import_module("torchvision.extension")  # declares them, where it loads
            torch, schema = sys.modules["torch"], "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            for operator in ("nms", "qnms"):
                if not hasattr(torch.ops.torchvision, operator):
                    torch.library.define(f"torchvision::{operator}", schema)


sys.meta_path.insert(0, _Torchvision)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
