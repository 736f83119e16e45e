"""The methods: one file each. Importing this package registers them all.

The package can be called: ``fozo.methods()`` lists what is registered. (The public function and the folder share a
name, so the module itself answers the call; ``import fozo.methods.noadapt`` keeps working.)
"""

import sys
from types import ModuleType

from fozo.methods import deyo, eata, foa, fozo, lame, noadapt, registry, sar, t3a, tent, zoa

__all__ = ["deyo", "eata", "foa", "fozo", "lame", "noadapt", "registry", "sar", "t3a", "tent", "zoa"]


class _Callable(ModuleType):
    def __call__(self) -> dict[str, registry.MethodInfo]:
        return registry.methods()


sys.modules[__name__].__class__ = _Callable
