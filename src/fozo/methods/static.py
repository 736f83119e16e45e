"""Static front ends: the contrast enhancement that people put before a frozen model by hand.

CLAHE, automatic levels, histogram equalisation and the grey world, each applied to every image alike. They know no
clean images and remember nothing, so they also change images that needed nothing: the baselines for
:mod:`~fozo.methods.equalise`. They run on every engine; what a black box returns is passed through.

Where a luminance Y (BT.601) is equalised, its change is added to red, green and blue. That is the same as equalising Y
in YCbCr and keeping both chroma channels.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fozo.core.contrast import LEVELS, clahe, luminance
from fozo.errors import FozoError
from fozo.methods.base import Method
from fozo.methods.common.options import NoOptions, below_one, positive
from fozo.methods.common.stateful import C
from fozo.methods.common.wrapper import Wrapper
from fozo.methods.registry import register
from fozo.types import Answer, Batch, Floats


class StaticFrontEnd(Wrapper[C]):
    """Enhances images before the plain model, or before ``inner``: ``Clahe.before(fozo.FOZO(model, source))``."""

    @classmethod
    def before(cls, method: Method[Any], **options: object) -> StaticFrontEnd[C]:
        return cls.around(method, **options)

    @abstractmethod
    def enhance(self, pixels: Floats) -> Floats:
        """Return images ``[B, C, H, W]`` of pixels in [0, 1], enhanced; they are clipped afterwards."""

    def prepare(self) -> None:
        super().prepare()
        spec = self.engine.spec
        known = spec.normalisation if self.statistics is None else self.statistics.normalisation(spec)
        if known is None:
            raise FozoError(f"{self.info.name} needs the range of pixels: give the mean= and std= of {spec.name}")
        self.mean, self.std = (np.asarray(value, dtype=np.float32)[:, None, None] for value in known)

    def step(self, batch: Batch) -> Floats | Answer:
        given = batch.images
        pixels = np.clip(given.astype(np.float32) * self.std + self.mean, 0, 1)
        images = ((np.clip(self.enhance(pixels), 0, 1) - self.mean) / self.std).astype(given.dtype)
        found = self.forward(batch.with_images(images))
        self.descriptors, self.last_input = None, images[-1]  # an inner method described the enhanced images
        return found


@dataclass(frozen=True)
class ClaheConfig:
    """Everything about CLAHE that can be chosen."""

    clip: float = 2.0
    """Clip limit of a tile's histogram, in multiples of its mean."""
    tiles: int = 8
    """Tiles down, and tiles across."""

    def __post_init__(self) -> None:
        positive("clahe", clip=self.clip, tiles=self.tiles)


@register("clahe", passes="1", adapts="nothing", paper="Zuiderveld, Graphics Gems IV, 1994")
class Clahe(StaticFrontEnd[ClaheConfig]):
    """Contrast-limited adaptive histogram equalisation of the luminance of every image."""

    PRESETS: ClassVar = {"default": ClaheConfig()}

    def enhance(self, pixels: Floats) -> Floats:
        return _with_luminance(pixels, lambda luma: clahe(luma, self.config.clip, self.config.tiles))


@register("histeq", passes="1", adapts="nothing", paper="-")
class HistogramEqualisation(StaticFrontEnd[NoOptions]):
    """Histogram equalisation of the luminance of every image."""

    def enhance(self, pixels: Floats) -> Floats:
        def equalise(luma: Floats) -> Floats:
            levels, counts = _histograms(luma[:, None])
            total = counts.cumsum(-1)
            first = np.take_along_axis(counts, (counts > 0).argmax(-1)[..., None], -1)  # the darkest level becomes 0
            tables = (total - first) / np.maximum(total[..., -1:] - first, 1)
            return np.take_along_axis(tables[:, 0], levels.reshape(len(luma), -1), -1).reshape(luma.shape)

        return _with_luminance(pixels, equalise)


@dataclass(frozen=True)
class AutoLevelsConfig:
    """Everything about automatic levels that can be chosen."""

    cut: float = 0.01
    """Part of a channel's pixels that become black, and part that become white."""

    def __post_init__(self) -> None:
        below_one("autolevels", cut=2 * self.cut)


@register("autolevels", passes="1", adapts="nothing", paper="-")
class AutoLevels(StaticFrontEnd[AutoLevelsConfig]):
    """Every channel of every image stretched from black to white."""

    PRESETS: ClassVar = {"default": AutoLevelsConfig()}

    def enhance(self, pixels: Floats) -> Floats:
        parts = _histograms(pixels)[1].cumsum(-1) / (pixels.shape[2] * pixels.shape[3])
        low = (parts > self.config.cut).argmax(-1)
        high = (parts >= 1 - self.config.cut).argmax(-1)
        low, high = ((level / (LEVELS - 1)).astype(np.float32)[..., None, None] for level in (low, high))
        stretched: Floats = (pixels - low) / np.where(high > low, high - low, 1)
        return np.where(high > low, stretched, pixels)  # a channel of one value has no contrast to stretch


@register("greyworld", passes="1", adapts="nothing", paper="Buchsbaum, J. Franklin Institute 310, 1980")
class GreyWorld(StaticFrontEnd[NoOptions]):
    """The channels of every image scaled to one mean."""

    def enhance(self, pixels: Floats) -> Floats:
        means = pixels.mean((2, 3), keepdims=True)
        balanced: Floats = pixels * (means.mean(1, keepdims=True) / np.maximum(means, 1 / (LEVELS - 1)))
        return balanced


def _with_luminance(pixels: Floats, change: Callable[[Floats], Floats]) -> Floats:
    luma = luminance(pixels)
    changed: Floats = pixels + (change(luma) - luma).astype(pixels.dtype)[:, None]
    return changed


def _histograms(pixels: Floats) -> tuple[np.ndarray[Any, np.dtype[np.intp]], np.ndarray[Any, np.dtype[np.intp]]]:
    """Levels 0..255 of pixels ``[B, C, H, W]``, and how often each channel of each image has each: ``[B, C, 256]``."""
    levels = np.rint(pixels * (LEVELS - 1)).astype(np.intp)
    flat = levels.reshape(levels.shape[0] * levels.shape[1], -1)
    counts = np.stack([np.bincount(plane, minlength=LEVELS) for plane in flat])
    return levels, counts.reshape(*levels.shape[:2], LEVELS)
