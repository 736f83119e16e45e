"""What all engines have beside the engine's contract."""

from __future__ import annotations

from typing import TypeVar, overload

from fozo.data.inputs import as_batch, to_type_of
from fozo.types import Engine, Images, ImagesT, Tap

E = TypeVar("E")


class EngineBase:
    """Calls, shows and copies an engine."""

    @overload
    def __call__(self: Engine, images: ImagesT) -> ImagesT: ...
    @overload
    def __call__(self: Engine, images: object) -> Images: ...
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
