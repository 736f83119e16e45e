"""Equalise: what fozo does for a black-box model, on the images alone.

The half of :mod:`Align <fozo.methods.align>` that needs no model: every image is described by its bands of spatial
frequency, earlier images of the same domain are found, and what that domain lacks of clean images (contrast, light,
detail) or has too much (noise) :mod:`~fozo.methods.align.equaliser` restores before the model sees it. Images of
domains that look clean are passed on unchanged.

The model is called once a batch, on all of it, whatever it returns. Nothing is learnt from its answers: a detector's
boxes are as good as logits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fozo.errors import FozoError
from fozo.methods.align.equaliser import PROFILES, Equaliser
from fozo.methods.align.memory import RetrievalConfig, Rows
from fozo.methods.common.options import one_of
from fozo.methods.common.wrapper import Wrapper
from fozo.methods.registry import register
from fozo.types import Answer, Batch, Floats


@dataclass(frozen=True)
class EqualiseConfig:
    """Everything about Equalise that can be chosen."""

    strength: float = 0.7
    """Part of the way that bands of spatial frequency are moved to their clean energy, 0 being none of it."""
    profile: str = "detector"
    """``"detector"`` restores local contrast too, ``"tokens"`` is what Align does before a ViT."""
    retrieval: RetrievalConfig = field(default_factory=RetrievalConfig)

    def __post_init__(self) -> None:
        one_of("equalise", PROFILES, profile=self.profile)
        if not 0 <= self.strength <= 1:
            raise FozoError(f"equalise: strength is {self.strength}; give a part from 0 (none) to 1 (all the way)")


@register("equalise", passes="1", adapts="image bands", paper="fozo, docs/models.md", needs={"source"})
class Equalise(Wrapper[EqualiseConfig]):
    """Images equalised by domain, and nothing else: for models that show no tokens.

    Examples:
        >>> detector = fozo.load_engine(lambda images: [f"boxes of image {i}" for i in range(len(images))])
        >>> Equalise(detector, fozo.calibrate(detector, frames))(frames)[:2]
        ['boxes of image 0', 'boxes of image 1']
        >>> Equalise.around(fozo.FOZO(model, source), strength=0.5).config
        EqualiseConfig(strength=0.5, profile='detector', ...)

    ``inner`` is a method that gets the equalised images instead of the plain model, see :meth:`around`.
    """

    PRESETS: ClassVar = {"default": EqualiseConfig()}
    STATE: ClassVar = ("memory",)
    VARIABLE_LENGTH: ClassVar = dict.fromkeys(("mean", "variance", "descriptor"), "images")

    if TYPE_CHECKING:

        def __call__(self, images: object) -> Any:  # noqa: ANN401 - it is the model that decides
            """Adapt to images and return what the model returns for them."""

    def prepare(self) -> None:
        super().prepare()
        config = self.config
        self.equaliser = Equaliser(self.source, self.engine, config.strength, config.retrieval, config.profile)
        spectra = self.equaliser.spectra
        self.parameters += spectra.channels * spectra.bands  # a gain for each band of each channel

    def begin(self) -> None:
        self.memory = self.equaliser.memory()

    def step(self, batch: Batch) -> Floats | Answer:
        """Equalise images and run the model; those that cannot be pictures are left as they are."""
        coefficients, descriptors, sound = self.equaliser.describe(batch.images)
        samples, last = 0.0, None
        if sound.any():
            domains = self.equaliser.domains(descriptors[sound], self.memory)
            own = domains.same_domain()
            retrieved = self.memory.retrieve(own)
            samples, plan = float(retrieved.samples.mean()), self.equaliser.plan(own, retrieved)
            if plan:
                images = np.array(batch.images)
                images[sound] = self._in_range(self.equaliser.restore(batch.images[sound], coefficients[sound], plan))
                batch, last = batch.with_images(images), images[-1]
            none = np.zeros((int(sound.sum()), 0), dtype=np.float32)
            self.memory.add(Rows.pack(domains, none[:, None], none))
        shift = self.equaliser.shift(descriptors[sound])
        self.report(shift=shift, effective_sample_size=samples, skipped=float((~sound).sum()))
        found = self.forward(batch)
        self.descriptors = descriptors
        if last is not None:
            self.last_input = last
        return found

    def _in_range(self, images: Floats) -> Floats:
        """Keep pixels within what a camera gives, where the normalisation is known or seen: a model may count on it."""
        if self.equaliser.normalisation is None:
            return images
        mean, std = self.equaliser.normalisation
        return np.clip(images, -mean / std, (1 - mean) / std)

    def checkpoint(self) -> Callable[[], None]:
        return partial(setattr, self, "memory", copy.copy(self.memory))
