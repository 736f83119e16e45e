"""What all engines have beside the engine's contract."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from fozo.data.inputs import as_batch, to_type_of
from fozo.errors import FozoError
from fozo.io.system import uncompiled
from fozo.types import Affine, Engine, Images, ImagesT, Spec, Tap

if TYPE_CHECKING:
    from typing_extensions import Self

E = TypeVar("E")


class EngineBase:
    """Calls, shows and copies an engine."""

    @overload
    def __call__(self: Engine, images: ImagesT) -> ImagesT: ...
    @overload
    def __call__(self: Engine, images: object) -> Images: ...
    @uncompiled
    def __call__(self: Engine, images: object) -> Images:
        """Return the plain model's logits ``[B, classes]`` of images in any form of :mod:`fozo.data.inputs`."""
        array = as_batch(images, self.spec)
        return to_type_of(array, self.run(self.check(array))[Tap.LOGITS][0])

    def __repr__(self: Engine) -> str:
        spec = self.spec
        channels, height, width = spec.image_shape
        kind = type(self).__name__
        return f"<{kind} {spec.name}: {channels}x{height}x{width} to {spec.classes} classes, {self.device}>"

    def __deepcopy__(self: E, memo: dict[int, object]) -> E:
        """Return the engine itself: it is frozen, so copies of an adapter may share it."""
        return self


class HeadEngine(EngineBase):
    """An engine whose head is applied outside of the model, so that it can be cut."""

    spec: Spec
    _head: Affine

    def head(self) -> Affine:
        return self._head

    def adjust(self, classes: Sequence[int] | None, **changes: Any) -> Self:  # noqa: ANN401 - fields of a spec
        """Change fields of the spec that are given, and keep only some classes of the head. Returns the engine."""
        self.spec = replace(self.spec, **{name: value for name, value in changes.items() if value is not None})
        if classes is not None:
            self.spec = self.spec.restricted(classes)
            rows = list(classes)
            self._head = Affine(np.ascontiguousarray(self._head.weight[:, rows]), self._head.bias[rows])
        return self


def foreign(batch: object) -> FozoError:
    return FozoError(f"this batch ({type(batch).__name__}) is another engine's; check the images with this one")
