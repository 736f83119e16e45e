"""Static front ends: the contrast enhancement that people put before a frozen model by hand.

CLAHE, automatic levels, histogram equalisation and the grey world, each applied to every image alike. They know no
clean images and remember nothing, so they also change images that needed nothing: the baselines for
:mod:`~fozo.methods.equalise`. They run on every engine; what a black box returns is passed through.

Where a luminance Y (BT.601) is equalised, its change is added to red, green and blue. That is the same as equalising Y
in YCbCr and keeping both chroma channels.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fozo.core.contrast import LEVELS, clahe, luminance
from fozo.errors import FozoError
from fozo.methods.common.options import NoOptions, positive
from fozo.methods.common.wrapper import Forward, Wrapper
from fozo.methods.method import C, Result
from fozo.methods.registry import register
from fozo.state import State
from fozo.types import Batch, Floats

CUT = 0.01  # part of a channel's pixels that automatic levels make black, and part that they make white


@dataclass(frozen=True)
class StaticState(State):
    """A front end remembers nothing; the method behind it may."""

    inner: State


class StaticFrontEnd(Wrapper[C, StaticState]):
    """Enhances images before the plain model, or before ``inner``: ``Clahe.around(fozo.FOZO(model, statistics))``."""

    @abstractmethod
    def enhance(self, pixels: Floats) -> Floats:
        """Return images ``[B, C, H, W]`` of pixels in [0, 1], enhanced; they are clipped afterwards."""

    def prepare(self) -> None:
        super().prepare()
        spec = self.engine.spec
        normalisation = spec.normalisation if self._statistics is None else self._statistics.normalisation(spec)
        if normalisation is None:
            raise FozoError(f"{self.info.name} needs the range of pixels: give the mean= and std= of {spec.name}")
        mean, std = normalisation
        self._mean = np.asarray(mean, dtype=np.float32)[:, None, None]
        self._std = np.asarray(std, dtype=np.float32)[:, None, None]

    def init(self) -> StaticState:
        return StaticState(self.inner.init())

    def wrap(self, state: StaticState, batch: Batch, forward: Forward) -> Result[StaticState]:
        pixels = np.clip(batch.images.astype(np.float32) * self._std + self._mean, 0, 1)
        enhanced = np.clip(self.enhance(pixels), 0, 1)
        images = ((enhanced - self._mean) / self._std).astype(batch.images.dtype)
        enhanced_batch = batch.with_images(images)
        inner = forward(enhanced_batch)
        # An inner method has described the enhanced images, so no descriptors are passed on.
        return Result(
            inner.logits,
            StaticState(inner.state),
            passes=inner.passes,
            last_input=images[-1],
            inner=(enhanced_batch, inner),
        )


@dataclass(frozen=True)
class ClaheConfig:
    """Everything about CLAHE that can be chosen."""

    clip: float = 2.0
    """At which multiple of its mean a tile's histogram is cut."""
    tiles: int = 8
    """Tiles down, and across."""

    def __post_init__(self) -> None:
        positive("clahe", clip=self.clip, tiles=self.tiles)


@register("clahe", passes="1", adapts="nothing", paper="Zuiderveld, Graphics Gems IV, 1994", label="CLAHE")
class Clahe(StaticFrontEnd[ClaheConfig]):
    """Contrast-limited adaptive histogram equalisation of the luminance of every image."""

    PRESETS: ClassVar = {"default": ClaheConfig()}

    def enhance(self, pixels: Floats) -> Floats:
        return _with_luminance(pixels, lambda luma: clahe(luma, self.config.clip, self.config.tiles))


@register("histeq", passes="1", adapts="nothing", paper="-", label="Histogram equalisation")
class HistogramEqualisation(StaticFrontEnd[NoOptions]):
    """Histogram equalisation of the luminance of every image."""

    def enhance(self, pixels: Floats) -> Floats:
        return _with_luminance(pixels, lambda luma: np.stack([self._equalise(plane) for plane in luma]))

    def _equalise(self, plane: Floats) -> Floats:
        levels = np.rint(plane * (LEVELS - 1)).astype(np.intp)
        total = np.bincount(levels.ravel(), minlength=LEVELS).cumsum()
        first = total[levels.min()]  # the darkest level becomes 0
        equalised: Floats = ((total - first) / max(levels.size - first, 1))[levels]
        return equalised


@register("autolevels", passes="1", adapts="nothing", paper="-", label="Auto levels")
class AutoLevels(StaticFrontEnd[NoOptions]):
    """Every channel of every image stretched, so that its darkest and its brightest percent are black and white."""

    def enhance(self, pixels: Floats) -> Floats:
        low, high = np.quantile(pixels, (CUT, 1 - CUT), axis=(2, 3), keepdims=True).astype(np.float32)
        flat = high <= low  # a channel of one value has no contrast to stretch
        return np.where(flat, pixels, (pixels - low) / np.where(flat, 1, high - low))


@register(
    "greyworld", passes="1", adapts="nothing", paper="Buchsbaum, J. Franklin Institute 310, 1980", label="Grey world",
)  # fmt: skip
class GreyWorld(StaticFrontEnd[NoOptions]):
    """The channels of every image scaled to one mean."""

    def enhance(self, pixels: Floats) -> Floats:
        means = pixels.mean((2, 3), keepdims=True)
        balanced: Floats = pixels * (means.mean(1, keepdims=True) / np.maximum(means, 1 / (LEVELS - 1)))
        return balanced


def _with_luminance(pixels: Floats, change: Callable[[Floats], Floats]) -> Floats:
    luma = luminance(pixels)
    return pixels + (change(luma) - luma).astype(pixels.dtype)[:, None]
